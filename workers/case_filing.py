"""Filing dead letters: each gets its case, and the case's numbers are kept in the transaction that writes the letter.

Order of locks: account, runs, then letters that exist, then cases by fingerprint; what belongs to a case is written
under its lock alone. New letters come after their case: their foreign key would lock it in a weaker mode first.
"""

import datetime as dt
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from quotas import audit
from quotas.database import database_time, in_transaction
from workers.fingerprints import Fingerprint, fingerprint_of
from workers.models import Case, CaseAccount, CaseHour, DeadLetter

HOURS = 24
HOURS_KEPT = 48
BACKFILL = 50
PRUNE = 500
VERSION = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,5})")
SYSTEM = "system"

READ = (
    "reason", "error_class", "message", "state", "version", "buried_at", "resolved_at", "case",
    "run__agent", "run__account", "run__error", "run__cost", "run__retried_by",
)  # fmt: skip
Shifts = Mapping[tuple[int, int | None], int]  # {(case, account): by how many letters}


def file_letters(letters: Sequence[DeadLetter], *, is_new: bool = True) -> None:
    """Put letters into their cases and count them there. Must run in the transaction that writes the letters.

    Each comes with its run, where it has one. `is_new`: they are buried now, not found later.
    """
    groups: dict[str, tuple[Fingerprint, list[DeadLetter]]] = {}
    for letter in letters:
        fingerprint = _fingerprint(letter)
        groups.setdefault(fingerprint.value, (fingerprint, []))[1].append(letter)
    known = dict(Case.objects.filter(fingerprint__in=groups).values_list("fingerprint", "pk"))
    for value in sorted(groups):
        fingerprint, group = groups[value]
        case = _locked(known.get(value), fingerprint, group)
        case.pattern, case.error_type = fingerprint.pattern, fingerprint.error_type  # forgotten words come back so
        _count(case, group, is_new=is_new)
        for letter in group:
            letter.case = case


def _fingerprint(letter: DeadLetter) -> Fingerprint:
    run = letter.run
    return fingerprint_of(
        agent="" if run is None else run.agent,
        reason=letter.reason,
        error_class=letter.error_class,
        message=letter.message,
        error=None if run is None else run.error,
    )


def _locked(pk: int | None, fingerprint: Fingerprint, letters: Sequence[DeadLetter]) -> Case:
    """Return the case, locked; made where there is none."""
    rows = Case.objects.select_for_update()
    case = rows.filter(pk=pk).first() if pk is not None else None
    if case is not None:
        return case
    times = [letter.buried_at for letter in letters]
    first = letters[0]
    made = Case(
        fingerprint=fingerprint.value,
        agent="" if first.run is None else first.run.agent,
        error_class=first.error_class,
        reason=first.reason,
        error_type=fingerprint.error_type,
        pattern=fingerprint.pattern,
        first_seen_at=min(times),
        last_seen_at=max(times),
    )
    # An upsert, not "insert or ignore": of two who make the same case the second waits for the row itself. The reader's
    # lock that MySQL gives for a duplicate would let both go on, and neither could write.
    by = ["fingerprint"] if connection.features.supports_update_conflicts_with_target else None
    Case.objects.bulk_create([made], update_conflicts=True, unique_fields=by, update_fields=["reason"])
    return rows.get(fingerprint=fingerprint.value)


def _count(case: Case, letters: Sequence[DeadLetter], *, is_new: bool) -> None:
    newest = max(letters, key=lambda letter: letter.buried_at)
    case.count += len(letters)
    case.open_count += sum(map(_is_open, letters))
    case.cost += sum(letter.run.cost for letter in letters if letter.run is not None)
    case.first_seen_at = min(case.first_seen_at, *(letter.buried_at for letter in letters))
    because = _comes_back(case, letters, is_new=is_new)
    if because:
        _reopen(case, newest, because)
    if newest.buried_at >= case.last_seen_at:
        case.last_seen_at, case.last_version = newest.buried_at, newest.version
    case.account_count += _count_accounts(case, letters)
    case.save(update_fields=[*COUNTED, *(STATE if because else ())])
    _count_hours(case, letters)


COUNTED = (
    "pattern",
    "error_type",
    "count",
    "open_count",
    "account_count",
    "cost",
    "first_seen_at",
    "last_seen_at",
    "last_version",
)
STATE = ("state", "ignored_until", "ignored_until_count", "resolved_at", "resolved_in_version")


def _is_open(letter: DeadLetter) -> bool:
    return letter.state == DeadLetter.State.OPEN and (letter.run is None or letter.run.retried_by is None)


def _count_accounts(case: Case, letters: Sequence[DeadLetter]) -> int:
    """Count what each account has of the case. Returns how many accounts are new to it."""
    shares: defaultdict[int, list[DeadLetter]] = defaultdict(list)
    for letter in letters:
        if letter.run is not None:
            shares[letter.run.account_id].append(letter)
    found = {row.account_id: row for row in CaseAccount.objects.filter(case=case, account__in=list(shares))}
    for account_id, share in shares.items():
        times = [letter.buried_at for letter in share]
        row = found.get(account_id) or CaseAccount(
            case=case, account_id=account_id, first_seen_at=min(times), last_seen_at=max(times)
        )
        row.count += len(share)
        row.open_count += sum(map(_is_open, share))
        row.cost += sum(letter.run.cost for letter in share if letter.run is not None)
        row.first_seen_at, row.last_seen_at = min(row.first_seen_at, *times), max(row.last_seen_at, *times)
        if account_id not in found:
            row.save(force_insert=True)
        else:
            row.save(update_fields=["count", "open_count", "cost", "first_seen_at", "last_seen_at"])
    return len(shares) - len(found)


def _count_hours(case: Case, letters: Sequence[DeadLetter]) -> None:
    hours = Counter(hour_of(letter.buried_at) for letter in letters)
    oldest = hour_of(timezone.now()) - dt.timedelta(hours=HOURS)
    for hour, count in hours.items():
        if hour > oldest and not CaseHour.objects.filter(case=case, hour=hour).update(count=F("count") + count):
            CaseHour.objects.create(case=case, hour=hour, count=count)


def hour_of(moment: dt.datetime) -> dt.datetime:
    """Return the beginning of a moment's hour."""
    return moment.replace(minute=0, second=0, microsecond=0)


# -- coming back -----------------------------------------------------------------------------------------------------
def _comes_back(case: Case, letters: Sequence[DeadLetter], *, is_new: bool) -> str:
    """Return why these letters, counted already, open the case again; "" where they do not."""
    if case.state == Case.State.RESOLVED:
        for letter in letters:
            is_after = is_new or (case.resolved_at is not None and letter.buried_at > case.resolved_at)
            if is_after and is_fixed_in(letter.version, case):
                return f"it came back in version {letter.version}" if letter.version else "it came back"
    if case.state == Case.State.IGNORED:
        if case.ignored_until is not None and any(letter.buried_at >= case.ignored_until for letter in letters):
            return "it came back after the time until which it was ignored"
        if case.ignored_until_count is not None and case.count > case.ignored_until_count:
            return f"it came more than {case.ignored_until_count} times"
    return ""


def is_fixed_in(version: str, case: Case) -> bool:
    """Whether a worker of this version should have the fix of a resolved case, so that its letter is a relapse.

    Versions of numbers are compared: from the one it was resolved in on. Others cannot be: there every version counts
    but the one it last failed in, which may still be at work while the new one is rolled out.
    """
    fixed = case.resolved_in_version
    if not fixed or not version or version == fixed:
        return True
    own, wanted = _numbers(version), _numbers(fixed)
    if own is not None and wanted is not None:
        return own >= wanted
    return version != case.last_version


def _numbers(version: str) -> tuple[int, ...] | None:
    found = VERSION.fullmatch(version)
    if found is None:
        return None
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()  # 1.2.0 is 1.2
    return tuple(numbers)


def _reopen(case: Case, letter: DeadLetter, because: str) -> None:
    before = standing(case)
    set_state(case, Case.State.OPEN)
    audit.record(
        actor=SYSTEM,
        action="case.comes_back",
        target_type="case",
        target_id=case.pk,
        before=before,
        after={**standing(case), "run": None if letter.run is None else str(letter.run.pk), "version": letter.version},
        reason=because,
    )


def set_state(case: Case, state: Case.State) -> None:
    """Put a locked case into a state: what belongs to the one it leaves is emptied. One with an owner is assigned."""
    case.ignored_until = case.ignored_until_count = case.resolved_at = None
    case.resolved_in_version = ""
    case.state = Case.State.ASSIGNED if state == Case.State.OPEN and case.owner_id is not None else state


def standing(case: Case) -> dict[str, object]:
    """Return what an operator decided about a case, as the audit trail has it."""
    return {
        "state": str(case.state),
        "owner": None if case.owner is None else case.owner.get_username(),
        "ignored_until": None if case.ignored_until is None else case.ignored_until.isoformat(),
        "ignored_until_count": case.ignored_until_count,
        "resolved_in_version": case.resolved_in_version,
    }


# -- letters that leave and come back --------------------------------------------------------------------------------
def count_open(letter_id: int, by: int) -> None:
    """Count a letter that was closed (-1) or opened again (+1). Must run in the transaction that wrote its state.

    Its case is read here, under the letter's lock: it may have been filed a moment ago.
    """
    found = DeadLetter.objects.filter(pk=letter_id).values_list("case_id", "run__account_id").first()
    if found is not None and found[0] is not None:
        shift_open({(found[0], found[1]): by})


def shift_open(shifts: Shifts) -> None:
    """Change the open counts of cases and of their accounts. Must run in the transaction that wrote the letters."""
    cases = Counter[int]()
    for (case_id, _), by in shifts.items():
        cases[case_id] += by
    ordered = dict(Case.objects.filter(pk__in=cases).order_by("fingerprint").values_list("pk", "fingerprint"))
    for case_id in ordered:
        _add(Case.objects.filter(pk=case_id), cases[case_id])
        for (of_case, account_id), by in shifts.items():
            if of_case == case_id and account_id is not None:
                _add(CaseAccount.objects.filter(case=case_id, account=account_id), by)


def _add(rows: QuerySet[Any], by: int) -> None:
    # Never below zero: a number that is wrong must not stop a requeue.
    rows.filter(open_count__gte=-by).update(open_count=F("open_count") + by)


# -- what was not filed, and what is old -----------------------------------------------------------------------------
def backfill(limit: int = BACKFILL) -> int:
    """File letters that have no case: those a worker before cases buried. Returns how many were."""
    ids = list(DeadLetter.objects.filter(case=None).order_by("pk").values_list("pk", flat=True)[:limit])
    if not ids:
        return 0

    def work() -> int:
        locked = DeadLetter.objects.select_for_update().filter(pk__in=ids, case=None).order_by("pk")
        rows = list(locked.values_list("pk", flat=True))
        letters = list(DeadLetter.objects.filter(pk__in=rows).select_related("run").only(*READ))
        for letter in letters:
            if letter.state == DeadLetter.State.OPEN and not _is_open(letter):
                letter.state, letter.resolved_at = DeadLetter.State.REQUEUED, timezone.now()
        file_letters(letters, is_new=False)
        DeadLetter.objects.bulk_update(letters, ["case", "state", "resolved_at"])
        return len(letters)

    return in_transaction(work)


def wake(limit: int = BACKFILL) -> int:
    """Open cases whose time to be ignored is over, and assigned ones whose owner is gone. Returns how many."""
    over = Q(state=Case.State.IGNORED, ignored_until__lte=Now())
    lost = Q(state=Case.State.ASSIGNED) & (Q(owner=None) | Q(owner__is_active=False))
    ids = list(Case.objects.filter(over | lost).order_by("pk").values_list("pk", flat=True)[:limit])
    return sum(in_transaction(partial(_wake, pk)) for pk in ids)


def _wake(pk: int) -> bool:
    case = Case.objects.select_for_update().annotate(db_now=Now()).filter(pk=pk).first()
    if case is None:
        return False
    before, until = standing(case), case.ignored_until
    if case.state == Case.State.IGNORED and until is not None and until <= database_time(case):
        because = "the time until which it was ignored is over"
    elif case.state == Case.State.ASSIGNED and (case.owner is None or not case.owner.is_active):
        because, case.owner = "its owner is gone", None
    else:
        return False
    set_state(case, Case.State.OPEN)
    case.save(update_fields=["owner", *STATE])
    audit.record(
        actor=SYSTEM,
        action="case.reopen",
        target_type="case",
        target_id=pk,
        before=before,
        after=standing(case),
        reason=because,
    )
    return True


def close_forgotten(letter_ids: Sequence[int]) -> None:
    """Discard the open ones of letters whose account is forgotten. Must run in the caller's transaction."""
    rows = DeadLetter.objects.filter(pk__in=letter_ids, state=DeadLetter.State.OPEN)
    found = list(rows.select_for_update().order_by("pk").values_list("pk", "case_id"))
    accounts = dict(DeadLetter.objects.filter(pk__in=letter_ids).values_list("pk", "run__account_id"))
    rows.update(state=DeadLetter.State.DISCARDED, resolved_at=Now(), resolved_by=SYSTEM)
    shifts = Counter((case_id, accounts.get(pk)) for pk, case_id in found if case_id)
    shift_open({key: -count for key, count in shifts.items()})


def forget_account(account_id: int) -> None:
    """Take an account from its cases. What a case of its alone says in words goes too; its numbers stay."""
    for case_id in CaseAccount.objects.filter(account=account_id).order_by("pk").values_list("case_id", flat=True):
        in_transaction(partial(_forget_in, case_id, account_id))


def _forget_in(case_id: int, account_id: int) -> None:
    case = Case.objects.select_for_update().filter(pk=case_id).first()
    if case is None or not CaseAccount.objects.filter(case=case, account=account_id).delete()[0]:
        return
    case.account_count = max(0, case.account_count - 1)
    if not case.account_count:
        case.pattern = case.error_type = ""
        audit.forget_texts(target_type="case", target_ids=[case_id])
    case.save(update_fields=["account_count", "pattern", "error_type"])


def prune(days: float) -> int:
    """Delete hours that no sparkline shows, and cases that are older than `days` and have no letter (0 keeps them)."""
    before = timezone.now() - dt.timedelta(hours=HOURS_KEPT)
    hours = list(CaseHour.objects.filter(hour__lt=before).order_by("hour").values_list("pk", flat=True)[:PRUNE])
    CaseHour.objects.filter(pk__in=hours).delete()
    if not days:
        return 0
    old = Case.objects.filter(last_seen_at__lt=timezone.now() - dt.timedelta(days=days), open_count=0)
    letterless = old.filter(~Exists(DeadLetter.objects.filter(case=OuterRef("pk"))))
    ids = list(letterless.order_by("last_seen_at").values_list("pk", flat=True)[:PRUNE])
    return sum(in_transaction(partial(_delete, pk)) for pk in ids)


def _delete(pk: int) -> bool:
    case = Case.objects.select_for_update().filter(pk=pk, open_count=0).first()
    if case is None or case.letters.exists():
        return False
    case.delete()
    return True
