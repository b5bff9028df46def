import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0006_key_lifetime'),
        ('runs', '0006_controls'),
        ('workers', '0004_budget_exceeded'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='CaseAccount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('count', models.PositiveIntegerField(default=0)),
                ('open_count', models.PositiveIntegerField(default=0)),
                ('cost', models.BigIntegerField(default=0)),
                ('first_seen_at', models.DateTimeField()),
                ('last_seen_at', models.DateTimeField()),
            ],
            options={
                'default_permissions': (),
            },
        ),
        migrations.CreateModel(
            name='CaseHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField(db_index=True)),
                ('count', models.PositiveIntegerField(default=0)),
            ],
            options={
                'default_permissions': (),
            },
        ),
        migrations.AddField(
            model_name='deadletter',
            name='version',
            field=models.CharField(blank=True, db_default='', default='', max_length=40),
        ),
        migrations.CreateModel(
            name='Case',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('fingerprint', models.CharField(max_length=64, unique=True)),
                ('agent', models.CharField(blank=True, default='', max_length=120)),
                ('error_class', models.CharField(blank=True, default='', max_length=30)),
                ('reason', models.CharField(max_length=20)),
                ('error_type', models.CharField(blank=True, default='', max_length=120)),
                ('pattern', models.CharField(blank=True, default='', max_length=300)),
                ('state', models.CharField(choices=[('open', 'Open'), ('assigned', 'Assigned'), ('ignored', 'Ignored'), ('resolved', 'Resolved')], default='open', max_length=10)),
                ('count', models.PositiveIntegerField(default=0)),
                ('open_count', models.PositiveIntegerField(default=0)),
                ('account_count', models.PositiveIntegerField(default=0)),
                ('cost', models.BigIntegerField(default=0)),
                ('first_seen_at', models.DateTimeField()),
                ('last_seen_at', models.DateTimeField()),
                ('last_version', models.CharField(blank=True, default='', max_length=40)),
                ('ignored_until', models.DateTimeField(blank=True, null=True)),
                ('ignored_until_count', models.PositiveIntegerField(blank=True, null=True)),
                ('resolved_at', models.DateTimeField(blank=True, null=True)),
                ('resolved_in_version', models.CharField(blank=True, default='', max_length=40)),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'permissions': [('triage_case', 'Can assign, ignore, resolve and reopen cases, and write notes')],
            },
        ),
        migrations.AddField(
            model_name='deadletter',
            name='case',
            field=models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='letters', to='workers.case'),
        ),
        migrations.AddField(
            model_name='caseaccount',
            name='account',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='quotas.account'),
        ),
        migrations.AddField(
            model_name='caseaccount',
            name='case',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='accounts', to='workers.case'),
        ),
        migrations.AddField(
            model_name='casehour',
            name='case',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='hours', to='workers.case'),
        ),
        migrations.AddIndex(
            model_name='case',
            index=models.Index(fields=['-last_seen_at'], name='case_last_seen'),
        ),
        migrations.AddIndex(
            model_name='case',
            index=models.Index(fields=['state', '-last_seen_at'], name='case_state'),
        ),
        migrations.AddIndex(
            model_name='case',
            index=models.Index(fields=['state', '-open_count'], name='case_open'),
        ),
        migrations.AddIndex(
            model_name='case',
            index=models.Index(fields=['agent', '-last_seen_at'], name='case_agent'),
        ),
        migrations.AddIndex(
            model_name='caseaccount',
            index=models.Index(fields=['case', '-count'], name='case_accounts'),
        ),
        migrations.AddIndex(
            model_name='caseaccount',
            index=models.Index(fields=['account', '-case'], name='account_cases'),
        ),
        migrations.AddConstraint(
            model_name='caseaccount',
            constraint=models.UniqueConstraint(fields=('case', 'account'), name='one_case_account'),
        ),
        migrations.AddConstraint(
            model_name='casehour',
            constraint=models.UniqueConstraint(fields=('case', 'hour'), name='one_case_hour'),
        ),
    ]
