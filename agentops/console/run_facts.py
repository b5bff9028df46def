"""What a run's page shows, as texts: rendered by the page, answered by `facts.json`, redrawn by the script."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.urls import reverse
from django.utils import timezone

from agentops.console import run_tables
from agentops.console.run_compare import comparison
from agentops.console.run_times import limit_rows, waits_for
from quotas.display import NOTHING, between, credits_of, pretty_text, span, usage_rows
from quotas.ledger import lines_about
from quotas.models import Hold
from runs.models import Run
from runs.outcomes import ErrorClass
from runs.selectors import estimate_at_submit
from runs.services.asking import PRIORITY_ORDER
from runs.states import TERMINAL, RunState
from runs.why import why_not_moving
from workers.models import DeadLetter

Facts = dict[str, Any]
SEE_PAYLOAD = "runs.view_payload"
CANCEL = "runs.cancel_run"
REQUEUE = "runs.requeue_run"
REPRIORITISE = "runs.reprioritise_run"
WAITS = frozenset({RunState.QUEUED, RunState.SCHEDULED})
MOVES, OVER = "It is moving.", "It has ended."


def facts_of(run: Run, user: Any, asked: Mapping[str, str] | None = None) -> Facts:
    """Return what changes in a run's life: texts, rows of texts, links. `asked` may name two attempts, `a` and `b`.

    What quotes the run's content is left out without the permission to see payloads, and money without that on holds.
    """
    now = timezone.now()
    payload = user.has_perm(SEE_PAYLOAD)
    return {
        "state": run.state,
        "when": waits_for(run, now),
        "why": _why(run),
        "terminal": run.state in TERMINAL,
        "payload": payload,
        "head": _head(run, now),
        "lease_seconds": _lease_seconds(run, now),
        "money": _money(run) if user.has_perm("quotas.view_hold") else [],
        "attempts": run_tables.attempts(run, now, payload=payload),
        "compare": comparison(run, asked or {}, now, payload=payload),
        "usage": usage_rows(run.usage),
        "limits": limit_rows(run),
        "transitions": run_tables.transitions(run),
        "audit": run_tables.audit(run) if user.has_perm("quotas.view_auditentry") else [],
        "artifacts": run_tables.artifacts(run) if payload else [],
        "links": _links(run, user),
        "result": pretty_text(run.result_json) if payload else "",
        "result_name": _result_name(run),
        "error": run_tables.error_text(run.error) if payload else "",
        "error_class": run.error_class,
        "priority": run.priority,
        **_acts(run, user),
    }


def _why(run: Run) -> Facts:
    """Return {code, text}: why it is not moving; of one that moves or is over an empty code, and a word."""
    why = why_not_moving(run)
    if why is None:
        return {"code": "", "text": OVER if run.is_terminal else MOVES}
    return {"code": str(why.code), "text": why.text}


def _acts(run: Run, user: Any) -> Facts:
    """Return which acts are offered. The acts themselves look again, under their locks."""
    is_over = run.state in TERMINAL
    return {
        "may_cancel": not is_over and user.has_perm(CANCEL),
        "may_requeue": is_over and run.retried_by is None and not run.payload_pruned and user.has_perm(REQUEUE),
        "may_reprioritise": run.state in WAITS and user.has_perm(REPRIORITISE),
    }


def priorities_of(run: Run) -> list[str]:
    """Return the priorities that the run's account may use."""
    return PRIORITY_ORDER[PRIORITY_ORDER.index(run.account.max_priority) :]


def requeue_plan_of(run: Run) -> str:
    """Return the address of the plan of the run's requeue."""
    return reverse("admin:requeue_plan", query={"run": str(run.pk)})


def _result_name(run: Run) -> str:
    if run.state != RunState.FAILED:
        return "Result"
    return "Partial output" if run.error_class == ErrorClass.BUDGET else "Last answer, not accepted"


def _lease_seconds(run: Run, now: dt.datetime) -> float | None:
    if run.state != RunState.RUNNING or run.lease_expires_at is None:
        return None
    return round((run.lease_expires_at - now).total_seconds(), 3)


def _head(run: Run, now: dt.datetime) -> list[list[str]]:
    """Return the header's facts as [name, value, word by which the page finds it]."""
    running = run.state == RunState.RUNNING
    lease = _lease_seconds(run, now)
    lease_text = NOTHING if lease is None else span(round(lease)) if lease > 0 else "lapsed"
    begun = run.started_at or run.finished_at
    return [
        ["Attempt", f"{run.attempt} of {run.max_attempts}", ""],
        ["Fence", str(run.fence), ""],
        ["Priority", run.priority, ""],
        ["Worker" if running or not run.worker else "Last worker", run.worker or NOTHING, "worker"],
        ["Lease left", lease_text, "lease"],
        ["First start after", between(run.submitted_at, begun or now) + ("" if begun else " so far"), ""],
        ["Since its first start", between(run.started_at, run.finished_at or now), ""],
    ]


def _money(run: Run) -> list[list[str]]:
    hold = Hold.objects.filter(run_id=run.pk).first()
    rows = [["Cost", credits_of(run.cost), ""]]
    rows += [["Estimate", credits_of(estimate_at_submit(run)), ""], ["Budget", credits_of(run.budget), ""]]
    if hold is None:
        return [*rows, ["Hold", "none", ""]]
    raised = f", raised {hold.extensions} times" if hold.extensions else ""
    held = f"{credits_of(hold.amount)} ({hold.state}{raised})"
    payer = f"nobody: waived by {run.waived_by}" if run.waived_by else run.account.name
    return [*rows, ["Hold", held, ""], ["Settled at", credits_of(hold.actual), ""], ["Paid by", payer, ""]]


def _links(run: Run, user: Any) -> list[list[str]]:
    """Return the linked rows as [what, text, address]."""
    links = [
        ["Waits for the session's run", _session_holder(run)],
        ["Requeued from", str(run.retry_of_id or "")],
        ["Requeued as", str(run.retried_by or "")],
    ]
    found = [[what, i, reverse("admin:runs_run_change", args=[i])] for what, i in links if i]
    if user.has_perm("quotas.view_ledgerentry"):
        found += [
            ["Ledger line", f"{pk}: {kind} {credits_of(amount)}", reverse("admin:quotas_ledgerentry_change", args=[pk])]
            for pk, kind, amount in lines_about(run.pk)
        ]
    if user.has_perm("workers.view_deadletter"):
        letter = DeadLetter.objects.filter(run_id=run.pk).only("id", "reason", "state").first()
        if letter is not None:
            address = reverse("admin:workers_deadletter_change", args=[letter.pk])
            found.append(["Dead letter", f"{letter.pk}: {letter.reason}", address])
    return found


def _session_holder(run: Run) -> str:
    """Return the id of the run whose end a blocked run waits for, or nothing."""
    if run.blocked_by_session is None:
        return ""
    rows = Run.objects.filter(account=run.account_id, session_slot=run.blocked_by_session)
    return str(rows.values_list("pk", flat=True).first() or "")
