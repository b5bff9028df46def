from django.db import migrations, models


def keep_lifetimes(apps, _schema_editor):
    keys = apps.get_model("quotas", "ApiKey").objects.exclude(expires_at=None)
    keys.update(lifetime=models.F("expires_at") - models.F("created_at"))


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0005_ledger_append_only'),
    ]

    operations = [
        migrations.AddField(
            model_name='apikey',
            name='lifetime',
            field=models.DurationField(blank=True, null=True),
        ),
        migrations.RunPython(keep_lifetimes, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name='ledgerentry',
            index=models.Index(fields=['account', 'at'], name='ledger_time'),
        ),
    ]
