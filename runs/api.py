"""Runs over HTTP: submit, list, get, cancel, retry, ticket."""

from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quotas.api_view import ApiView
from quotas.ledger import settle_line_of
from quotas.openapi import AFTER, IDEMPOTENCY_KEY, LIMIT, problems
from quotas.selectors import holds_of
from quotas.standing import standing_of
from runs import tickets
from runs.errors import InvalidCursor, RunEnded
from runs.filters import runs_matching
from runs.models import Run
from runs.selectors import attempts_of, estimate_at_submit, get_run, without_texts
from runs.serializers import (
    CancelOut,
    DryRunOut,
    NothingIn,
    ReasonIn,
    RunOut,
    RunPage,
    SubmitIn,
    TicketOut,
    body_digest,
)
from runs.services.cancel import cancel_run
from runs.services.dry_run import Preview, preview_run
from runs.services.requeue import preview_requeue, requeue_run
from runs.services.submit import Submitted, submit_run
from runs.states import RunState
from runs.why import Why, why_not_moving

FILTERS = (
    OpenApiParameter("state", str, enum=RunState.values),
    OpenApiParameter("agent", str),
    OpenApiParameter("session", str),
    OpenApiParameter("tag", str),
    OpenApiParameter("metadata", str, description="`key`, or `key=value`: a text, or what the value is in JSON."),
    OpenApiParameter(
        "from", str, description="Submitted from: a time with its offset, or a day of the account's zone."
    ),
    OpenApiParameter("to", str, description="The same; a time itself does not belong to it, a day does, all of it."),
    OpenApiParameter("fingerprint", str, description="Of the case of its dead letter."),
)
DRY_RUN = OpenApiParameter("dry_run", int, enum=[0, 1], description="1: check everything and store nothing.")
RUN_OR_DRY_RUN = PolymorphicProxySerializer("RunOrDryRun", [RunOut, DryRunOut], resource_type_field_name=None)


def shown(run: Run, why: Why | None = None) -> RunOut:
    """Return the run's full JSON with its hold and attempts, and why it is not moving where that was asked for."""
    if run.fence == 1:  # as submitted: of what has begun since this row was read nothing is mixed in
        as_submitted = {"hold": run.budget, "attempts": [], "estimate": run.budget, "ledger_line": None}
        return RunOut(run, context={**as_submitted, "why": why})
    hold = holds_of([run.id]).get(run.id)
    found: dict[str, Any] = {
        "hold": hold and hold.amount,
        "attempts": attempts_of(run.id),
        "estimate": estimate_at_submit(run),
    }
    found["ledger_line"] = settle_line_of(run.id) if run.is_terminal else None
    found["why"] = why
    return RunOut(run, context=found)


def accepted(submitted: Submitted) -> Response:
    """Answer a new run with 202 and its address, a replayed one with 200."""
    run = submitted.run
    headers = {"Location": reverse("run", args=[run.id])}
    if submitted.replayed:
        headers["Idempotent-Replayed"] = "true"
    return Response(shown(run).data, status=200 if submitted.replayed else 202, headers=headers)


def previewed(preview: Preview) -> Response:
    """Answer a dry run."""
    return Response(preview.facts)


class RunsView(ApiView):
    """Submit a run, list runs."""

    scopes = {"GET": "read", "POST": "submit"}
    query = frozenset({"limit", "after", *(one.name for one in FILTERS)})
    post_query = frozenset({"dry_run"})

    @extend_schema(
        operation_id="list_runs",
        tags=["runs"],
        parameters=[LIMIT, AFTER, *FILTERS],
        responses={200: RunPage, **problems()},
    )
    def get(self, request: Request) -> Response:  # noqa: ARG002
        """List the account's runs, newest first."""
        limit = self.limit
        rows = list(self._rows()[: limit + 1])
        more = str(rows[limit - 1].id) if len(rows) > limit else None
        return Response(RunPage({"results": rows[:limit], "next": more}).data)

    def _rows(self) -> QuerySet[Run]:
        account, after = self.caller.account, self._after()
        self.choice("state", RunState.values)
        asked = {one.name: self.parameter(one.name) or "" for one in FILTERS}
        rows = without_texts(runs_matching(asked, zone=ZoneInfo(account.timezone))).filter(account=account)
        return rows if after is None else rows.filter(pk__lt=after)

    def _after(self) -> UUID | None:
        raw = self.parameter("after")
        if raw is None:
            return None
        try:
            return UUID(raw)
        except ValueError:
            raise InvalidCursor(cursor=ascii(raw[:60])) from None

    @extend_schema(
        operation_id="submit_run",
        tags=["runs"],
        parameters=[IDEMPOTENCY_KEY, DRY_RUN],
        request=SubmitIn,
        responses={202: RunOut, 200: RUN_OR_DRY_RUN, **problems(402, 409, 413, 415, 422, 429)},
    )
    def post(self, request: Request) -> Response:  # noqa: ARG002
        """Submit a run. It is stored when the answer is 202; `Location` is its address.

        With `dry_run=1` nothing is stored: 200 with the estimate, the limits it would hit and its place in the queue.
        """
        is_dry = self.flag("dry_run")
        body = self.body(SubmitIn)
        caller = self.caller
        asked = {
            "account": caller.account,
            "actor": caller.actor,
            "idempotency_key": self.idempotency_key,
            "idempotency_digest": body_digest(body),
            "request_id": self.request_id,
            "traceparent": self.traceparent,
            **body,
        }
        return previewed(preview_run(**asked)) if is_dry else accepted(submit_run(**asked))


class RunView(ApiView):
    """One run."""

    @extend_schema(operation_id="get_run", tags=["runs"], responses={200: RunOut, **problems(404)})
    def get(self, request: Request, run_id: UUID) -> Response:  # noqa: ARG002
        """Return the run with its input, result, usage and cost, and why it is not moving."""
        run = get_run(run_id, account=self.caller.account)
        return Response(shown(run, why_not_moving(run)).data)


class CancelView(ApiView):
    """Cancel a run."""

    scopes = {"POST": "cancel"}

    @extend_schema(
        operation_id="cancel_run",
        tags=["runs"],
        request=ReasonIn,
        responses={200: CancelOut, 202: CancelOut, **problems(404, 409)},
    )
    def post(self, request: Request, run_id: UUID) -> Response:  # noqa: ARG002
        """Cancel the run: 200 when it is cancelled, 202 when its worker was asked to stop."""
        reason = self.body(ReasonIn).get("reason", "")
        verdict = cancel_run(
            run_id=run_id,
            actor=self.caller.actor,
            account=self.caller.account,
            reason=reason,
            request_id=self.request_id,
        )
        run = verdict.run
        if verdict.what == "ended" and run.state != RunState.CANCELLED:
            raise RunEnded(run=str(run.id), state=str(run.state))
        what = "requested" if verdict.what == "requested" else "cancelled"
        status = 202 if what == "requested" else 200
        return Response({"what": what, "run": shown(get_run(run.id)).data}, status=status)


class RetryView(ApiView):
    """Requeue an ended run."""

    scopes = {"POST": "submit"}
    post_query = frozenset({"dry_run"})

    @extend_schema(
        operation_id="retry_run",
        tags=["runs"],
        parameters=[IDEMPOTENCY_KEY, DRY_RUN],
        request=ReasonIn,
        responses={202: RunOut, 200: RUN_OR_DRY_RUN, **problems(402, 404, 409, 422, 429)},
    )
    def post(self, request: Request, run_id: UUID) -> Response:  # noqa: ARG002
        """Make a new run of an ended one: same agent and input, a new hold, linked by `retry_of`."""
        is_dry = self.flag("dry_run")
        reason, caller, key = self.body(ReasonIn).get("reason", ""), self.caller, self.idempotency_key
        if is_dry:
            return previewed(preview_requeue(run_id=run_id, actor=caller.actor, account=caller.account))
        submitted = requeue_run(
            run_id=run_id,
            actor=caller.actor,
            account=caller.account,
            reason=reason,
            request_id=self.request_id,
            idempotency_key=key,
        )
        return accepted(submitted)


class TicketView(ApiView):
    """A ticket for a browser's socket."""

    scopes = {"POST": "read"}

    @extend_schema(
        operation_id="issue_ticket",
        tags=["runs"],
        request=NothingIn,
        responses={201: TicketOut, **problems(404)},
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """Return a ticket that opens the run's socket once within a minute: `/ws/runs/<id>/?ticket=…`."""
        self.body(NothingIn)
        run = get_run(run_id, account=self.caller.account)
        standing = standing_of(self.caller, request.session.session_key)
        ticket = tickets.issue(run.id, run.account_id, standing)
        return Response({"ticket": ticket, "expires_in": tickets.SECONDS}, status=201)
