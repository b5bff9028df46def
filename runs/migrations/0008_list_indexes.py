"""Indexes for the lists of a million runs, made while runs go on. PostgreSQL's own are for filters by JSON.

Both leave out the runs without any, which then cost nothing. MySQL and MariaDB have no indexes with a condition: there
a filter by worker, error class, priority, cost or requeued reads the newest runs until a page is full.
"""

from django.db import migrations, models

from quotas.indexes import AddIndexConcurrently

POSTGRESQL = {
    # A rare tag among a million runs without it, in the API's list as well.
    "run_tags": "USING gin (tags jsonb_path_ops) WHERE tags <> '[]'",
    # The same by metadata; this class of operators knows keys without their values, too.
    "run_metadata": "USING gin (metadata) WHERE metadata <> '{}'",
}


def make(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        for name, rest in POSTGRESQL.items():
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            schema_editor.execute(f"CREATE INDEX CONCURRENTLY {name} ON runs_run {rest}")


def drop(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        for name in POSTGRESQL:
            schema_editor.execute(f"DROP INDEX CONCURRENTLY {name}")


class Migration(migrations.Migration):

    atomic = False  # as an index made beside writes has to be

    dependencies = [
        ('runs', '0007_lists'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='run',
            index=models.Index(fields=['state', '-id'], name='run_state'),
        ),
        AddIndexConcurrently(
            model_name='run',
            index=models.Index(fields=['worker', '-id'], condition=~models.Q(worker=''), name='run_worker'),
        ),
        AddIndexConcurrently(
            model_name='run',
            index=models.Index(fields=['error_class', '-id'], condition=~models.Q(error_class=''), name='run_error_class'),
        ),
        AddIndexConcurrently(
            model_name='run',
            index=models.Index(fields=['priority', '-id'], condition=~models.Q(priority='normal'), name='run_priority'),
        ),
        AddIndexConcurrently(
            model_name='run',
            index=models.Index(fields=['cost'], condition=models.Q(cost__gt=0), name='run_cost'),
        ),
        AddIndexConcurrently(
            model_name='run',
            index=models.Index(fields=['id'], condition=models.Q(retried_by__isnull=False), name='run_requeued'),
        ),
        AddIndexConcurrently(
            model_name='run',
            index=models.Index(fields=['finished_at'], name='run_ended'),
        ),
        AddIndexConcurrently(
            model_name='run',
            index=models.Index(fields=['agent', 'finished_at'], name='run_agent_ended'),
        ),
        migrations.RunPython(make, drop),
    ]
