from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('workers', '0003_dead_letter_causes'),
    ]

    operations = [
        migrations.AlterField(
            model_name='deadletter',
            name='reason',
            field=models.CharField(choices=[('undecodable', 'Undecodable'), ('unknown_run', 'Unknown Run'), ('unknown_agent', 'Unknown Agent'), ('poison', 'Poison'), ('exhausted', 'Exhausted'), ('fatal', 'Fatal'), ('crash_loop', 'Crash Loop'), ('queue_timeout', 'Queue Timeout'), ('quota_exceeded', 'Quota'), ('budget_exceeded', 'Budget')], max_length=20),
        ),
    ]
