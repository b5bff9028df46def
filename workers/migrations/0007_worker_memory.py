from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('workers', '0006_bulk'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='workerprocess',
            options={'permissions': [('drain_workerprocess', 'Can drain, undrain and take over workers'), ('repair_streams', 'Can repair streams')], 'verbose_name': 'worker', 'verbose_name_plural': 'workers'},
        ),
        migrations.AddField(
            model_name='workerprocess',
            name='leaving_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='workerprocess',
            name='memory_bytes',
            field=models.BigIntegerField(blank=True, null=True),
        ),
    ]
