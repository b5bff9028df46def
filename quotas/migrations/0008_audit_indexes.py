from django.db import migrations, models

from quotas.indexes import AddIndexConcurrently


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('quotas', '0007_audit'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='auditentry',
            index=models.Index(fields=['actor', '-id'], name='audit_actor'),
        ),
        AddIndexConcurrently(
            model_name='auditentry',
            index=models.Index(fields=['request_id', '-id'], name='audit_request'),
        ),
        AddIndexConcurrently(
            model_name='auditentry',
            index=models.Index(fields=['at'], name='audit_time'),
        ),
    ]
