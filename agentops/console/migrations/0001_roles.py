from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations

from agentops.console import roles


def make(apps, schema_editor):
    # Django makes permissions after all migrations; the groups need them now.
    for label in ("auth", "quotas", "runs", "workers"):
        create_permissions(installed.get_app_config(label), verbosity=0, apps=apps)
    roles.give(apps)


class Migration(migrations.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('quotas', '0008_audit_indexes'),
        ('runs', '0007_lists'),
        ('workers', '0007_worker_memory'),
    ]

    operations = [
        migrations.RunPython(make, migrations.RunPython.noop),
    ]
