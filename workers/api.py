"""Dead letters, queues and workers over HTTP. All of it needs the scope admin."""

from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quotas.api_view import ApiView
from quotas.openapi import AFTER, LIMIT, problems
from runs.api import shown
from workers import dead_letters
from workers.letter_filters import narrowed
from workers.models import DeadLetter
from workers.selectors import list_workers, queue_status
from workers.serializers import (
    DeadLetterOut,
    DeadLetterPage,
    DiscardIn,
    QueueStatusOut,
    RequeueIn,
    RequeueOut,
    WorkerPage,
)

STATES = DeadLetter.State.values


class DeadLettersView(ApiView):
    """The account's dead letters."""

    scopes = {"GET": "admin"}
    query = frozenset({"limit", "after", "state", "case"})

    @extend_schema(
        operation_id="list_dead_letters",
        tags=["operators"],
        parameters=[
            LIMIT,
            AFTER,
            OpenApiParameter("state", str, enum=STATES),
            OpenApiParameter("case", int, description="Of this case only."),
        ],
        responses={200: DeadLetterPage, **problems()},
    )
    def get(self, request: Request) -> Response:  # noqa: ARG002
        """List dead letters, newest first."""
        limit, state, after = self.limit, self.choice("state", STATES), self.after_number
        rows = dead_letters.visible(self.caller.account)
        if state is not None:
            rows = dead_letters.in_state(rows, state)
        rows = narrowed(rows, {"case": self.parameter("case") or ""})
        if after is not None:
            rows = rows.filter(id__lt=after)
        page = list(rows[: limit + 1])
        more = str(page[limit - 1].pk) if len(page) > limit else None
        return Response(DeadLetterPage({"results": page[:limit], "next": more}).data)


class DeadLetterView(ApiView):
    """One dead letter."""

    scopes = {"GET": "admin"}

    @extend_schema(
        operation_id="get_dead_letter",
        tags=["operators"],
        responses={200: DeadLetterOut, **problems(404)},
    )
    def get(self, request: Request, letter_id: int) -> Response:  # noqa: ARG002
        """Return the dead letter with the stream entry it came from."""
        return Response(DeadLetterOut(dead_letters.get_dead_letter(letter_id, self.caller.account)).data)


class RequeueView(ApiView):
    """Try a dead letter's run again."""

    scopes = {"POST": "admin"}

    @extend_schema(
        operation_id="requeue_dead_letter",
        tags=["operators"],
        request=RequeueIn,
        responses={202: RequeueOut, **problems(402, 404, 409, 429)},
    )
    def post(self, request: Request, letter_id: int) -> Response:  # noqa: ARG002
        """Make a new run of the dead one, with a new hold."""
        reason = self.body(RequeueIn).get("reason", "")
        caller = self.caller
        run = dead_letters.requeue(
            dead_letter_id=letter_id,
            actor=caller.actor,
            reason=reason,
            account=caller.account,
            request_id=self.request_id,
        )
        location = {"Location": reverse("run", args=[run.pk])}
        return Response({"run": shown(run).data}, status=202, headers=location)


class DiscardView(ApiView):
    """Put a dead letter aside; it can be restored for a while."""

    scopes = {"POST": "admin"}

    @extend_schema(
        operation_id="discard_dead_letter",
        tags=["operators"],
        request=DiscardIn,
        responses={200: DeadLetterOut, **problems(404, 409)},
    )
    def post(self, request: Request, letter_id: int) -> Response:  # noqa: ARG002
        """Mark the dead letter as discarded, with the reason."""
        reason = self.body(DiscardIn)["reason"]
        caller = self.caller
        row = dead_letters.discard(
            dead_letter_id=letter_id,
            actor=caller.actor,
            reason=reason,
            account=caller.account,
            request_id=self.request_id,
        )
        return Response(DeadLetterOut(row).data)


class QueueStatusView(ApiView):
    """The queues as they are now."""

    scopes = {"GET": "admin"}

    @extend_schema(
        operation_id="get_queue_status",
        tags=["operators"],
        responses={200: QueueStatusOut, **problems()},
    )
    def get(self, request: Request) -> Response:  # noqa: ARG002
        """Return, for each stream, how many wait and run, and the oldest wait."""
        return Response(QueueStatusOut(queue_status()).data)


class WorkersView(ApiView):
    """The workers."""

    scopes = {"GET": "admin"}

    @extend_schema(operation_id="list_workers", tags=["operators"], responses={200: WorkerPage, **problems()})
    def get(self, request: Request) -> Response:  # noqa: ARG002
        """List the workers that are alive."""
        return Response(WorkerPage({"results": list_workers(alive=True), "next": None}).data)
