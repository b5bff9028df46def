"""The tables of a run's page as rows of texts: attempts, changes of state, what was done to it, its files."""

import datetime as dt
from typing import Any

from django.urls import reverse

from quotas.display import between, credits_of, excerpt, moment, pretty
from quotas.models import AuditEntry
from runs.models import Run
from runs.outcomes import Cause

ROWS = 100  # of each table: more is in the API
WORD_MAX = 40  # characters of a value that an act changed
TABLES = (
    (
        "attempts",
        "Attempts",
        ("No.", "Fence", "Worker", "Outcome", "Ran", "Cost", "Error", "Message"),
    ),
    ("usage", "Usage", ("Model", "Kind", "Tokens")),
    ("limits", "Limits", ("Of what", "Limit")),
    ("transitions", "Changes of state", ("Fence", "Event", "At", "By")),
    ("audit", "Audit", ("At", "Who", "Act", "Change", "Reason")),
)
CAUSES: dict[str, str] = {
    Cause.EXHAUSTED: "Its last attempt failed as well.",
    Cause.FATAL: "Another attempt would not mend it.",
    Cause.CRASH_LOOP: "It lost its worker, and no attempt was left.",
    Cause.POISON: "It was delivered again and again and never begun.",
    Cause.UNKNOWN_AGENT: "No worker knows its agent.",
    Cause.QUEUE_TIMEOUT: "Nobody began it in time.",
    Cause.QUOTA: "The account had no room for it any more.",
    Cause.BUDGET: "It spent more than was reserved for it.",
}


def attempts(run: Run, now: dt.datetime, *, payload: bool) -> list[list[str]]:
    """Return the attempts, the newest first."""
    rows = run.attempts.defer("result_json", "usage", "progress").order_by("-fence")[:ROWS]
    return [
        [
            str(a.number),
            str(a.fence),
            a.worker,
            a.outcome or "running",
            between(a.started_at, a.ended_at or now),
            credits_of(a.cost),
            a.error_class,
            error_line(a.error) if payload else "",
        ]
        for a in rows
    ]


def transitions(run: Run) -> list[list[str]]:
    """Return the changes of state, the newest first."""
    rows = run.transitions.order_by("-fence").only("fence", "kind", "at", "actor")[:ROWS]
    return [[str(t.fence), t.kind, moment(t.at), t.actor] for t in rows]


def audit(run: Run) -> list[list[str]]:
    """Return what people did to this run, the newest first."""
    rows = AuditEntry.objects.filter(target_id=str(run.pk)).order_by("-id")[:ROWS]
    return [[moment(e.at), e.actor, e.action, _change(e), e.reason] for e in rows]


def _change(entry: AuditEntry) -> str:
    """Return what an act changed, "priority: normal → high", in a line. Only plain words: no part of an input."""
    before, after = _words(entry.before), _words(entry.after)
    parts = [
        f"{name}: {before[name]} → {after[name]}" if name in before and name in after else f"{name}: {value}"
        for name, value in {**before, **after}.items()
    ]
    return ", ".join(parts)


def _words(facts: Any) -> dict[str, str]:
    given = facts.items() if isinstance(facts, dict) else ()
    return {name: str(word) for name, word in given if isinstance(word, str | int) and len(str(word)) <= WORD_MAX}


def artifacts(run: Run) -> list[list[str]]:
    """Return the run's files as [name, type, size, address]."""
    rows = run.artifacts.order_by("name")[:ROWS]
    return [[a.name, a.content_type, f"{a.size:,}", reverse("admin:run_artifact", args=[run.pk, a.pk])] for a in rows]


def error_line(error: Any) -> str:
    """Return an error's message, cut."""
    if isinstance(error, dict):
        return str(error.get("message", ""))[:300]
    return "" if error is None else str(error)[:300]


def error_text(error: Any) -> str:
    """Return an error for people: type and message, cause, then the traceback. Odd shapes are shown as they are."""
    if error is None:
        return ""
    if not isinstance(error, dict) or "message" not in error:
        return excerpt(pretty(error))
    head = excerpt(": ".join(filter(None, (str(error.get("type") or ""), str(error["message"])))))
    cause = CAUSES.get(str(error.get("cause") or ""), "")
    return "\n\n".join(filter(None, (head, cause, excerpt(str(error.get("traceback") or "")))))
