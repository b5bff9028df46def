"""Cases: what an operator looks at and decides. Every decision is audited in its transaction.

A case is a list's line of its own numbers; letters are read for one case at a time. What counts letters is
`workers.case_filing`.
"""

import datetime as dt
from collections.abc import Callable, Collection
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.utils import timezone

from quotas import audit
from quotas.database import in_transaction
from quotas.models import Account, AuditEntry
from workers.case_filing import HOURS, hour_of, set_state, standing
from workers.errors import CaseUnchanged, NoSuchCase
from workers.models import Case, CaseAccount, CaseHour, DeadLetter

ID_MAX = 2**63 - 1
ACCOUNTS_SHOWN = 20
HISTORY_SHOWN = 200
COUNT_MAX = 1_000_000_000
LIVE = (Case.State.OPEN, Case.State.ASSIGNED)
READ = ("run__input_json", "run__result_json", "run__usage")


def top_cases(limit: int = 5) -> list[Case]:
    """Return the cases that wait for a person, those with most open letters first."""
    rows = Case.objects.select_related("owner").filter(open_count__gt=0)
    # Each state by its index: over both at once the whole table would be sorted.
    found = [case for state in LIVE for case in rows.filter(state=state).order_by("-open_count")[:limit]]
    return sorted(found, key=lambda case: (-case.open_count, -case.last_seen_at.timestamp()))[:limit]


def live_cases() -> QuerySet[Case]:
    """Return the cases that nobody has resolved or chosen to ignore."""
    return Case.objects.filter(state__in=LIVE)


def get_case(case_id: int) -> Case:
    """Return a case with its owner. Raises NoSuchCase."""
    case = Case.objects.select_related("owner").filter(pk=case_id).first() if 0 < case_id <= ID_MAX else None
    if case is None:
        raise NoSuchCase(case=case_id)
    return case


def newest_letter(case: Case) -> DeadLetter | None:
    """Return the sample of a case: its newest letter with its run; None where retention has taken all of them."""
    return case.letters.select_related("run__account").defer(*READ).order_by("-pk").first()


def hourly(cases: Collection[Case], now: dt.datetime | None = None) -> dict[int, list[int]]:
    """Return for each case the letters of the last 24 hours, the oldest first: {case id: 24 counts}."""
    last = hour_of(now or timezone.now())
    first = last - dt.timedelta(hours=HOURS - 1)
    counts = {case.pk: [0] * HOURS for case in cases}
    rows = CaseHour.objects.filter(case__in=list(counts), hour__gte=first, hour__lte=last)
    for case_id, hour, count in rows.values_list("case_id", "hour", "count"):
        counts[case_id][int((hour - first).total_seconds()) // 3600] = count
    return counts


def accounts_of(case: Case, limit: int = ACCOUNTS_SHOWN) -> list[CaseAccount]:
    """Return the accounts with most letters in a case; `case.account_count` says how many there are."""
    return list(case.accounts.select_related("account").order_by("-count")[:limit])


def history_of(case: Case, limit: int = HISTORY_SHOWN) -> list[AuditEntry]:
    """Return what was decided and written about a case, the newest first."""
    rows = AuditEntry.objects.filter(target_id=str(case.pk), target_type="case")
    return list(rows.order_by("-id")[:limit])


def owners() -> QuerySet[Any]:
    """Return who may own a case: the active staff users, by name."""
    return get_user_model().objects.filter(is_active=True, is_staff=True).order_by("username")


# -- what one account may know -----------------------------------------------------------------------------------------
def shares_of(account: Account) -> QuerySet[CaseAccount]:
    """Return what an account has of each case, the newest case first: its numbers count its own letters alone."""
    return CaseAccount.objects.filter(account=account).select_related("case").order_by("-case")


def share_of(account: Account, case_id: int) -> CaseAccount:
    """Return what an account has of a case. Raises NoSuchCase, also where it has nothing of it."""
    row = shares_of(account).filter(case=case_id).first() if 0 < case_id <= ID_MAX else None
    if row is None:
        raise NoSuchCase(case=case_id)
    return row


# -- decisions -------------------------------------------------------------------------------------------------------
def assign(*, case_id: int, owner: str, actor: str, reason: str = "", request_id: str = "") -> Case:
    """Give a case an owner by username; "" takes it away. Raises NoSuchCase, CaseUnchanged."""

    def change(case: Case) -> None:
        user = owners().filter(username=owner).first() if owner else None
        if owner and user is None:
            raise CaseUnchanged(
                case=case_id, problem=f"cannot be given to {owner!r}: there is no such active staff user"
            )
        if case.owner_id == (None if user is None else user.pk):
            raise CaseUnchanged(case=case_id, problem=f"is {owner}'s already" if owner else "has no owner")
        case.owner = user
        if case.state in LIVE:
            set_state(case, Case.State.OPEN)

    return _decide(case_id, "case.assign", change, actor, reason, request_id)


def ignore(
    *,
    case_id: int,
    actor: str,
    hours: int | None = None,
    times: int | None = None,
    reason: str = "",
    request_id: str = "",
) -> Case:
    """Ignore a case for so many hours, or until it came so many times more; with both, whatever is first.

    Raises NoSuchCase, CaseUnchanged.
    """
    if not hours and not times:
        raise CaseUnchanged(case=case_id, problem="is ignored until a time or a count: say which")

    def change(case: Case) -> None:
        set_state(case, Case.State.IGNORED)
        if hours:
            case.ignored_until = timezone.now() + dt.timedelta(hours=hours)
        if times:
            case.ignored_until_count = min(COUNT_MAX, case.count + times)

    return _decide(case_id, "case.ignore", change, actor, reason, request_id, new=Case.State.IGNORED)


def resolve(*, case_id: int, actor: str, version: str = "", reason: str = "", request_id: str = "") -> Case:
    """Call a case resolved in a version of what is deployed; "": from now on, whatever the version.

    Raises NoSuchCase, CaseUnchanged.
    """

    def change(case: Case) -> None:
        set_state(case, Case.State.RESOLVED)
        case.resolved_at, case.resolved_in_version = timezone.now(), version.strip()[:40]

    return _decide(case_id, "case.resolve", change, actor, reason, request_id, new=Case.State.RESOLVED)


def reopen(*, case_id: int, actor: str, reason: str = "", request_id: str = "") -> Case:
    """Open an ignored or resolved case again. Raises NoSuchCase, CaseUnchanged."""

    def change(case: Case) -> None:
        if case.state in LIVE:
            raise CaseUnchanged(case=case_id, problem="is open already")
        set_state(case, Case.State.OPEN)

    return _decide(case_id, "case.reopen", change, actor, reason, request_id)


def note(*, case_id: int, text: str, actor: str, request_id: str = "") -> Case:
    """Write a note: an entry of the audit trail. Raises NoSuchCase; CaseUnchanged where it is empty or there."""

    def change(case: Case) -> None:
        if not text.strip():
            raise CaseUnchanged(case=case_id, problem="got a note without words")
        last = next(iter(history_of(case, 1)), None)
        if last is not None and (last.action, last.actor, last.reason) == ("case.note", actor[:150], text[:500]):
            raise CaseUnchanged(case=case_id, problem="has this note already")

    return _decide(case_id, "case.note", change, actor, text, request_id)


def _decide(
    case_id: int,
    action: str,
    change: Callable[[Case], None],
    actor: str,
    reason: str,
    request_id: str,
    *,
    new: Case.State | None = None,
) -> Case:
    """Change a case under its lock and write who did it. `new` is a state in which it may not be already."""

    def work() -> Case:
        case = Case.objects.select_for_update().filter(pk=case_id).first() if 0 < case_id <= ID_MAX else None
        if case is None:
            raise NoSuchCase(case=case_id)
        if new is not None and case.state == new:
            raise CaseUnchanged(case=case_id, problem=f"is {new} already")
        before = standing(case)
        change(case)
        case.save(update_fields=DECIDED)
        audit.record(
            actor=actor,
            action=action,
            target_type="case",
            target_id=case.pk,
            before=None if action == "case.note" else before,
            after=None if action == "case.note" else standing(case),
            reason=reason,
            request_id=request_id,
        )
        return case

    return in_transaction(work)


DECIDED = ("state", "owner", "ignored_until", "ignored_until_count", "resolved_at", "resolved_in_version")
