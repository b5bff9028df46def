"""Runs over HTTP: submit, list, get, cancel, retry, ticket."""

from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quotas.api_view import ApiView
from quotas.database import exactly
from quotas.ledger import settle_line_of
from quotas.openapi import AFTER, IDEMPOTENCY_KEY, LIMIT, problems
from quotas.selectors import holds_of
from quotas.standing import standing_of
from runs import tickets
from runs.errors import InvalidCursor, RunEnded
from runs.listing import with_tag
from runs.models import Run
from runs.selectors import attempts_of, estimate_at_submit, get_run, list_runs
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

TEXT_FILTERS = ("agent", "session", "tag")
DRY_RUN = OpenApiParameter("dry_run", int, enum=[0, 1], description="1: check everything and store nothing.")
RUN_OR_DRY_RUN = PolymorphicProxySerializer("RunOrDryRun", [RunOut, DryRunOut], resource_type_field_name=None)


def shown(run: Run) -> RunOut:
    """Return the run's full JSON with its hold and attempts."""
    if run.fence == 1:  # as submitted: of what has begun since this row was read nothing is mixed in
        return RunOut(run, context={"hold": run.budget, "attempts": [], "estimate": run.budget, "ledger_line": None})
    hold = holds_of([run.id]).get(run.id)
    found = {"hold": hold and hold.amount, "attempts": attempts_of(run.id), "estimate": estimate_at_submit(run)}
    found["ledger_line"] = settle_line_of(run.id) if run.is_terminal else None
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
    query = frozenset({"limit", "after", "state", *TEXT_FILTERS})
    post_query = frozenset({"dry_run"})

    @extend_schema(
        operation_id="list_runs",
        tags=["runs"],
        parameters=[
            LIMIT,
            AFTER,
            OpenApiParameter("state", str, enum=RunState.values),
            *(OpenApiParameter(name, str) for name in TEXT_FILTERS),
        ],
        responses={200: RunPage, **problems()},
    )
    def get(self, request: Request) -> Response:  # noqa: ARG002
        """List the account's runs, newest first."""
        limit = self.limit
        rows = list(self._rows()[: limit + 1])
        more = str(rows[limit - 1].id) if len(rows) > limit else None
        return Response(RunPage({"results": rows[:limit], "next": more}).data)

    def _rows(self) -> QuerySet[Run]:
        filters = {
            "state": self.choice("state", RunState.values),
            "agent": self.parameter("agent"),
            "pk__lt": self._after(),
        }
        given = {name: value for name, value in filters.items() if value is not None}
        rows = list_runs(self.caller.account, **given)
        session, tag = self.parameter("session"), self.parameter("tag")
        if session is not None:
            rows = rows.filter(exactly("session", session))
        return rows if tag is None else with_tag(rows, tag)

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
        """Return the run with its input, result, usage and cost."""
        return Response(shown(get_run(run_id, account=self.caller.account)).data)


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
