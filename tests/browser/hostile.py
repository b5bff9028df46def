"""A console full of hostile text: every column that people, models or agents write holds markup and what hides."""

import uuid
from typing import Any
from urllib.parse import quote

from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib.auth.models import Group, Permission, User
from django.utils import timezone

from quotas import audit
from quotas import services as money
from quotas.models import MICRO, Account, Hold, LedgerEntry, Price, PriceBook
from runs.archive import pack
from runs.events import Event
from runs.models import Artifact, EventArchive, Maintenance, QueuePause, Run, SavedView
from tests import builders
from workers.cases import note
from workers.models import BulkItem, BulkOperation

MARKUP = "<script>window.broken=1</script><img src=x onerror=window.broken=1>"
LINK = "javascript:window.broken=1"
HIDDEN = "\u202egnp.exe\u2066\u200b\u200d\ufeff\u0301"  # turns what follows around, breaks nothing, shows nothing
WIDE = "W" * 600
FRAMES = "\n".join(f'  File "/srv/agent/{MARKUP}.py", line {n}, in step_{n}' for n in range(3000))
MEGABYTE = (f"{MARKUP} {HIDDEN} " * 12_000)[: 1024 * 1024]


def text(length: int) -> str:
    """Return hostile text of a column's length: markup, then what turns and hides, then one word without a break."""
    return (MARKUP + HIDDEN + WIDE)[:length]


def fill() -> dict[str, Any]:
    """Make rows for every page of the console; returns the ids by which tests/browser/pages.py fills its addresses."""
    root = builders.make_user("root", is_staff=True, is_superuser=True)
    account = builders.make_account(text(100), limit=500 * MICRO)
    rows: dict[str, Any] = {"quotas/account": account.pk, "hostile": MARKUP.replace("=", "%3D")}
    rows["agent"] = quote(text(120))
    rows |= _runs(account) | _people(account) | _money(account)
    letter = builders.make_dead_letter(
        Run.objects.get(pk=rows["runs/run"]), message=text(2000), payload=MEGABYTE, resolved_reason=text(500)
    )
    note(case_id=letter.case_id, text=text(500), actor=text(150))
    builders.make_dead_letter(
        builders.make_run("failed", account=account, agent=LINK),
        state="discarded", resolved_by=text(150), resolved_reason=LINK, resolved_at=timezone.now(),
    )  # fmt: skip
    rows |= {"workers/deadletter": letter.pk, "workers/case": letter.case_id}
    bulk = BulkOperation.objects.create(
        form_id=uuid.uuid4(), kind="requeue", source="letters", query={"session": WIDE, MARKUP: LINK}, state="failed",
        problem=text(500), total=1, failed_count=1, actor=text(150), reason=text(500), finished_at=timezone.now(),
    )  # fmt: skip
    Run.objects.filter(pk=rows["runs/run"]).update(retry_of=rows["running"])  # its page shows the changes too
    BulkItem.objects.create(
        operation=bulk,
        position=1,
        run_id=rows["runs/run"],
        letter_id=letter.pk,
        state="failed",
        code=text(60),
        message=text(500),
        new_run=rows["runs/run"],
        changes={MARKUP: {"before": WIDE, "after": {MARKUP: [WIDE, LINK]}}, HIDDEN: {"after": MEGABYTE[:10_000]}},
    )
    rows["workers/bulkoperation"] = bulk.pk
    rows["workers/workerprocess"] = _workers()
    entry = audit.record(
        actor=text(150), action="run.cancel", target_type=text(40), target_id=text(64), reason=text(500),
        before={MARKUP: LINK}, after={HIDDEN: [WIDE]},
    )  # fmt: skip
    rows["quotas/auditentry"] = entry.pk
    SavedView.objects.create(owner=root, name=text(60), query=f"session={WIDE}", is_shared=True)
    QueuePause.objects.create(queue=text(60), reason=text(500), paused_by=text(150))
    Maintenance.objects.create(message=text(500), retry_after_seconds=30, set_by=text(150))
    return rows


def _runs(account: Account) -> dict[str, Any]:
    told: dict[str, Any] = {
        "session": text(200), "tags": [text(64), LINK, HIDDEN], "metadata": {text(60): WIDE, LINK: LINK},
        "submitted_by": text(150), "input": {MARKUP: LINK, "wide": WIDE}, "usage": {text(100): {MARKUP: 3}},
    }  # fmt: skip
    error = {"class": "agent_bug", "type": text(120), "message": MEGABYTE, "traceback": FRAMES, "cause": "fatal"}
    failed = builders.make_run(
        "failed",
        account=account,
        agent=text(120),
        cost=1_234_567,
        error=error,
        archived=False,
        worker=text(120),
        **told | {"input": {MARKUP: LINK, "wide": WIDE, "long": MEGABYTE}},
    )
    planned = builders.make_run("failed", account=account, agent="probe.ret", input={"value": MEGABYTE})
    said = [("output.delta", {"text": f"{MARKUP} {HIDDEN} {WIDE}"}), (MARKUP, {MARKUP: LINK}), (LINK, {"wide": WIDE})]
    events = [
        (Event(id=f"2-{n}", run=str(failed.pk), at="2030-01-01T00:00:00Z", kind=kind, data=data), "")
        for n, (kind, data) in enumerate(said, start=1)
    ]
    EventArchive.objects.create(run=failed, body=pack(events), event_count=len(events), last_id="2-3")
    Run.objects.filter(pk=failed.pk).update(log_closed_at=failed.finished_at)
    Artifact.objects.create(run=failed, name=text(200), content_type=text(100), size=3, path="nowhere", fence=2)
    running = builders.make_run("running", account=account, agent=LINK, worker=text(120), **told)
    for state in ("queued", "scheduled", "succeeded", "cancelled", "interrupted"):
        builders.make_run(
            state, account=account, agent=text(120), result={MARKUP: WIDE} if state == "succeeded" else None
        )
    ids = {"runs/run": failed.pk, "running": running.pk, "planned": planned.pk}
    return ids | {"quotas/hold": Hold.objects.get(run_id=failed.pk).pk}


def _people(account: Account) -> dict[str, Any]:
    user = builders.make_user(text(150), account=account, first_name=text(150), email=LINK)
    group = Group.objects.create(name=text(150))
    group.permissions.set(Permission.objects.all()[:3])
    key, _ = builders.make_api_key(account, name=text(100))
    seen = {"user_agent": text(255), "username": text(255), "http_accept": text(255), "path_info": text(255)}
    seen |= {"ip_address": "192.0.2.1"}
    attempt = AccessAttempt.objects.create(**seen, get_data=WIDE, post_data=MARKUP, failures_since_start=3)
    return {
        "auth/user": user.pk,
        "auth/group": group.pk,
        "quotas/apikey": key.pk,
        "quotas/membership": user.memberships.get().pk,
        "axes/accessattempt": attempt.pk,
        "axes/accesslog": AccessLog.objects.create(**seen).pk,
        "axes/accessfailurelog": AccessFailureLog.objects.create(**seen).pk,
    }


def _money(account: Account) -> dict[str, Any]:
    money.grant(account, amount=25 * MICRO, reason=f"{MARKUP} {WIDE}"[:500], actor=text(150))
    book = PriceBook.objects.create(valid_from=timezone.now(), note=text(200))
    price = Price.objects.create(book=book, model=text(120), kind="input", per_million=MICRO)
    return {"quotas/price": price.pk, "quotas/ledgerentry": LedgerEntry.objects.latest("pk").pk}


def _workers() -> Any:
    builders.make_worker(name=LINK)
    made = builders.make_worker(
        name=text(120), host=text(200), version=text(40), queues=[text(60)], drain_requested_by=text(150)
    )
    return made.pk


def users() -> User:
    """Make the one user of an empty console, and the account that every instance has."""
    builders.make_account("default")
    return builders.make_user("root", is_staff=True, is_superuser=True)
