"""Filling an instance with made-up runs, and taking them away again."""

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from agentops.benchmark.bulk import Table
from agentops.benchmark.made_up import ACCOUNTS, CASES, MARK, WORKERS, Kind, Maker, Rows, kinds
from quotas import append_only
from quotas.errors import Refusal
from quotas.models import AMOUNT_MAX, Account, Hold, LedgerEntry
from runs.models import Attempt, EventArchive, Run, Transition
from workers.fingerprints import fingerprint_of
from workers.models import Case, CaseAccount, CaseHour, DeadLetter, WorkerProcess

BATCH = 5_000
REMOVED_AT_ONCE = 2_000
CASE_LETTERS = 20  # a case has that many letters or more, on average
HOURS_KEPT = 48
LARGE = ("input_json", "result_json", "error", "usage", "metadata", "tags")
Tell = Callable[[int], None]


class NotOurs(Refusal):
    """There are runs here that were not made up. `--force` fills an instance in use; think twice."""


class FilledBefore(Refusal):
    """There are made-up runs here already. Take them away first: bench fill --remove."""


class MoreDead(Refusal):
    """There cannot be {dead} dead letters of {runs} runs: at most half of them."""


def accounts() -> Any:
    """Return the accounts of made-up runs."""
    return Account.objects.filter(name__startswith=f"{MARK}-")


def check(*, runs: int, dead: int, force: bool) -> None:
    """Raise what speaks against filling: NotOurs, FilledBefore, MoreDead."""
    if dead * 2 > runs:
        raise MoreDead(dead=dead, runs=runs)
    if Run.objects.filter(account__in=accounts()).exists():
        raise FilledBefore
    if not force and Run.objects.exclude(account__in=accounts()).exists():
        raise NotOurs


@dataclass
class _Case:
    """What a case's numbers come to."""

    count: int = 0
    open_count: int = 0
    cost: int = 0
    first: dt.datetime | None = None
    last: dt.datetime | None = None

    def add(self, letter: dict[str, Any]) -> None:
        at = letter["buried_at"]
        self.count += 1
        self.open_count += letter["state"] == DeadLetter.State.OPEN
        self.cost += letter["cost"]
        self.first, self.last = min(self.first or at, at), max(self.last or at, at)


@dataclass
class _Sums:
    """What the rows add up to, for the rows that cache it."""

    held: Counter[int] = field(default_factory=Counter)
    in_flight: Counter[int] = field(default_factory=Counter)
    spent: Counter[int] = field(default_factory=Counter)
    cases: dict[int, _Case] = field(default_factory=lambda: defaultdict(_Case))
    shares: dict[tuple[int, int], _Case] = field(default_factory=lambda: defaultdict(_Case))
    hours: Counter[tuple[int, dt.datetime]] = field(default_factory=Counter)

    def add(self, rows: Rows) -> None:
        for hold in rows.holds:
            if hold["state"] == Hold.State.ACTIVE:
                self.held[hold["account_id"]] += hold["amount"]
                self.in_flight[hold["account_id"]] += 1
        for line in rows.lines:
            self.spent[line["account_id"]] += line["amount"]
        for letter in rows.letters:
            kind = letter["case_id"]
            self.cases[kind].add(dict(letter))
            self.shares[kind, letter["account_id"]].add(dict(letter))
            self.hours[kind, letter["buried_at"].replace(minute=0, second=0, microsecond=0)] += 1


class Filling:
    """Fills: `run` writes batch after batch, each in its transaction, and tells how many runs are there."""

    def __init__(self, *, runs: int, dead: int) -> None:
        self._runs, self._now = runs, timezone.now()
        failures = kinds(max(1, min(CASES, dead // CASE_LETTERS)))
        with transaction.atomic():
            ids = [_account(number).pk for number in range(ACCOUNTS)]
            self._cases = {kind.number: self._case(kind) for kind in failures}
            WorkerProcess.objects.bulk_create(_worker(number, self._now) for number in range(WORKERS))
        self._maker = Maker(runs=runs, dead=dead, until=self._now, account_ids=ids, failures=failures)
        models = (Run, Transition, Attempt, EventArchive, Hold, LedgerEntry, DeadLetter)
        names = ("runs", "transitions", "attempts", "archives", "holds", "lines", "letters")
        self._tables = dict(zip(names, map(Table, models), strict=True))
        self._sums = _Sums()

    def run(self, tell: Tell) -> None:
        """Write everything. `tell` hears how many runs more are there."""
        _compress_well()
        for begin in range(0, self._runs, BATCH):
            rows, end = Rows(), min(begin + BATCH, self._runs)
            for n in range(begin, end):
                self._maker.add(rows, n)
            self._sums.add(rows)
            for letter in rows.letters:
                self._file(letter)
            with transaction.atomic():
                for name, table in self._tables.items():
                    table.write(getattr(rows, name))
            tell(end - begin)
        with transaction.atomic():
            self._write_sums()
        _analyse()

    def _case(self, kind: Kind) -> Case:
        error = kind.error(1)
        facts = {"agent": kind.agent, "reason": kind.reason, "error_class": kind.error_class}
        found = fingerprint_of(**facts, message=error["message"], error=error)
        texts = {"fingerprint": found.value, "pattern": found.pattern, "error_type": found.error_type}
        return Case.objects.create(**facts, **texts, first_seen_at=self._now, last_seen_at=self._now)

    def _file(self, letter: Any) -> None:
        letter["case_id"] = self._cases[letter["case_id"]].pk
        del letter["account_id"], letter["cost"]

    def _write_sums(self) -> None:
        sums = self._sums
        for account in accounts():
            values = {name: getattr(sums, name)[account.pk] for name in ("held", "in_flight", "spent")}
            Account.objects.filter(pk=account.pk).update(**values)
        accounts_of = Counter(kind for kind, _ in sums.shares)
        for number, found in sums.cases.items():
            values = {**_facts(found), "account_count": accounts_of[number], "last_version": "1.0"}
            Case.objects.filter(pk=self._cases[number].pk).update(**values)
        CaseAccount.objects.bulk_create(
            CaseAccount(case=self._cases[number], account_id=account, **_facts(found))
            for (number, account), found in sums.shares.items()
        )
        since = self._now - dt.timedelta(hours=HOURS_KEPT)
        CaseHour.objects.bulk_create(
            CaseHour(case=self._cases[number], hour=hour, count=count)
            for (number, hour), count in sums.hours.items()
            if hour >= since
        )


def remove(tell: Tell) -> bool:
    """Take away all that was made up. `tell` hears how many runs more are gone.

    False where lines of others are in the ledger: then its made-up lines stay, and the accounts they belong to.
    """
    mine = accounts()
    while True:
        ids = list(Run.objects.filter(account__in=mine).values_list("pk", flat=True)[:REMOVED_AT_ONCE])
        if not ids:
            break
        with transaction.atomic():
            Hold.objects.filter(run_id__in=ids).delete()
            Run.objects.filter(pk__in=ids).defer(*LARGE).delete()
        tell(len(ids))
    WorkerProcess.objects.filter(name__startswith=f"{MARK}-worker-").delete()
    Case.objects.filter(agent__startswith=f"{MARK}.agent", letters=None).delete()
    if LedgerEntry.objects.exclude(account__in=mine).exists():
        mine.update(held=0, in_flight=0)
        return False
    with transaction.atomic():
        append_only.remove()
        LedgerEntry.objects.filter(account__in=mine).delete()
        append_only.install()
        mine.delete()
    return True


def _account(number: int) -> Account:
    limits = {"limit": AMOUNT_MAX, "period": Account.Period.NONE, "max_in_flight": 1_000_000}
    return Account.objects.get_or_create(name=f"{MARK}-{number:02}", defaults=limits)[0]


def _worker(number: int, now: dt.datetime) -> WorkerProcess:
    facts = {"host": MARK, "pid": 0, "version": "1.0", "queues": [MARK], "concurrency": 16}
    return WorkerProcess(name=f"{MARK}-worker-{number:02}", heartbeat_at=now, stopped_at=now, **facts)


def _facts(found: _Case) -> dict[str, Any]:
    seen = {"first_seen_at": found.first, "last_seen_at": found.last}
    return {"count": found.count, "open_count": found.open_count, "cost": found.cost, **seen}


def _compress_well() -> None:
    """Have PostgreSQL compress the long texts of this connection by the faster way, where it knows one."""
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'")
        if cursor.fetchone() == (True,):
            cursor.execute("SET default_toast_compression = 'lz4'")


def _analyse() -> None:
    """Have the database look at what is there now, as it does by itself after a while."""
    tables = [model._meta.db_table for model in (Run, Transition, Attempt, Hold, LedgerEntry, DeadLetter, Case)]  # noqa: SLF001
    statements = {"postgresql": f"VACUUM (ANALYZE) {', '.join(tables)}", "mysql": f"ANALYZE TABLE {', '.join(tables)}"}
    if connection.in_atomic_block:
        return
    with connection.cursor() as cursor:
        cursor.execute(statements.get(connection.vendor, "ANALYZE"))
