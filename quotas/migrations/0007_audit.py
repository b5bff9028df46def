from django.db import migrations, models

from quotas import append_only


def install(apps, schema_editor):
    # Where the server does not allow triggers, `doctor` says so and `reconcile_quotas --fix` tries again.
    append_only.install([append_only.AUDIT], apps.get_model("quotas", "AuditEntry"))


def remove(apps, schema_editor):
    append_only.remove([append_only.AUDIT])


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0006_key_lifetime'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='auditentry',
            options={'ordering': ['-id'], 'permissions': [('export_audit', 'Can export the audit log')], 'verbose_name_plural': 'audit entries'},
        ),
        migrations.RunPython(install, remove),
    ]
