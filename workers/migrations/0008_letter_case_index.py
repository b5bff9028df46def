from django.db import migrations, models

from quotas.indexes import AddIndexConcurrently


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('workers', '0007_worker_memory'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='deadletter',
            index=models.Index(fields=['case', '-id'], name='dead_letter_case'),
        ),
    ]
