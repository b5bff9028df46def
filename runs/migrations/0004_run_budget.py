from django.db import migrations, models


def take_from_holds(apps, schema_editor):
    """Until now only its hold told what is reserved for a run."""
    hold = apps.get_model("quotas", "Hold").objects.filter(run_id=models.OuterRef("pk"))
    open_runs = apps.get_model("runs", "Run").objects.filter(finished_at=None)
    open_runs.filter(models.Exists(hold)).update(budget=models.Subquery(hold.values("amount")[:1]))


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0003_hold_lapses'),
        ('runs', '0003_retention'),
    ]

    operations = [
        migrations.AddField(
            model_name='run',
            name='budget',
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='run',
            name='price_book',
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='attempt',
            name='price_book',
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.RunPython(take_from_holds, migrations.RunPython.noop),
    ]
