import datetime as dt
from zoneinfo import ZoneInfo

from django.db import migrations, models


def period_key(account, now):
    """As quotas.periods had it when this was written."""
    local = now.astimezone(ZoneInfo(account.timezone))
    return local.strftime("%Y-%m-%d" if account.period == "day" else "%Y-%m")


def period_end(account, now):
    zone = ZoneInfo(account.timezone)
    local = now.astimezone(zone)
    if account.period == "day":
        following = local.date() + dt.timedelta(days=1)
    else:
        following = (local.date().replace(day=1) + dt.timedelta(days=32)).replace(day=1)
    return dt.datetime.combine(following, dt.time(), tzinfo=zone)


def name_periods(apps, _schema_editor):
    """Book the lines that are there in the period they were written in: one UPDATE for each period of an account."""
    ledger = apps.get_model("quotas", "LedgerEntry").objects
    for account in apps.get_model("quotas", "Account").objects.exclude(period="none"):
        lines = ledger.filter(account=account)
        span = lines.aggregate(first=models.Min("at"), last=models.Max("at"))
        at = span["first"]
        while at is not None and at <= span["last"]:
            end = period_end(account, at).astimezone(dt.UTC)
            lines.filter(at__gte=at, at__lt=end).update(period=period_key(account, at))
            at = lines.filter(at__gte=end).aggregate(first=models.Min("at"))["first"]


def count_spent(apps, _schema_editor):
    """Set what accounts have spent to the lines of their period: of one that changed its calendar they are others."""
    ledger = apps.get_model("quotas", "LedgerEntry").objects
    accounts = apps.get_model("quotas", "Account").objects
    for account in accounts.all():
        lines = ledger.filter(account=account, period=account.spent_period)
        spent = lines.aggregate(total=models.Sum("amount"))["total"] or 0
        if spent != account.spent:
            accounts.filter(pk=account.pk).update(spent=spent)


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0003_hold_lapses'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='ledgerentry',
            options={'permissions': [('grant', 'Can grant an account units'), ('adjust', 'Can adjust what an account has spent'), ('write_off', 'Can write off what an account has spent')], 'verbose_name_plural': 'ledger entries'},
        ),
        migrations.AddField(
            model_name='account',
            name='overdraft_rule',
            field=models.CharField(choices=[('forgive', 'Forgive'), ('carry', 'Carry')], default='forgive', max_length=7),
        ),
        migrations.AddField(
            model_name='hold',
            name='extensions',
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='agent',
            field=models.CharField(blank=True, default='', max_length=120),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='period',
            field=models.CharField(blank=True, default='', max_length=10),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='kind',
            field=models.CharField(choices=[('settle', 'Settle'), ('grant', 'Grant'), ('adjustment', 'Adjustment'), ('write_off', 'Write Off'), ('carry', 'Carry')], max_length=10),
        ),
        migrations.AddIndex(
            model_name='ledgerentry',
            index=models.Index(fields=['account', 'period', 'amount'], name='ledger_period'),
        ),
        migrations.RunPython(name_periods, migrations.RunPython.noop),
        migrations.RunPython(count_spent, migrations.RunPython.noop),
    ]
