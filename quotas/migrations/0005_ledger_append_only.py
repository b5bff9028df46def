from django.db import migrations

from quotas import append_only


def install(apps, schema_editor):
    # Where the server does not allow triggers, `doctor` says so and `reconcile_quotas --fix` tries again.
    append_only.install([append_only.LEDGER], apps.get_model("quotas", "LedgerEntry"))


def remove(apps, schema_editor):
    append_only.remove([append_only.LEDGER])


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0004_money'),
    ]

    operations = [
        migrations.RunPython(install, remove),
    ]
