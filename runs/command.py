"""Commands about runs: an instance here also has a Redis server."""

from typing import Any
from uuid import UUID

from django.conf import settings

from quotas.command import CANCELLED, DONE, FAILED, InstanceCommand, micro
from runs import broker
from runs.models import Run
from runs.states import RunState

EXIT_OF_STATE = {
    RunState.SUCCEEDED: DONE,
    RunState.FAILED: FAILED,
    RunState.CANCELLED: CANCELLED,
    RunState.INTERRUPTED: CANCELLED,
}


class RunCommand(InstanceCommand):
    """A command that needs Redis beside the database."""

    def find_instance(self) -> None:
        super().find_instance()
        try:
            broker.client().ping()
        except broker.RedisError as error:
            self.no_instance(f"Redis does not answer at {without_secret(settings.REDIS_URL)} ({error})")

    def write_raw(self, text: str) -> None:
        """Print text as it is and at once: a viewer waits for every token."""
        self.stdout.write(text, ending="")
        self.stdout.flush()

    def run_id(self, text: str) -> UUID:
        """Return a run's id as given on the command line."""
        try:
            return UUID(text)
        except ValueError:
            self.usage(f"{text!r} is not the id of a run.")


def without_secret(url: str) -> str:
    """Return the address without user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def run_facts(run: Run) -> dict[str, Any]:
    """Return what a command tells of a run as JSON."""
    return {
        "id": str(run.id),
        "state": run.state,
        "agent": run.agent,
        "attempt": run.attempt,
        "max_attempts": run.max_attempts,
        "fence": run.fence,
        "session": run.session,
        "result": run.result,
        "error": run.error,
        "usage": run.usage,
        "cost": run.cost,
        "budget": run.budget,
        "submitted_at": run.submitted_at,
        "queued_at": run.queued_at,
        "not_before": run.not_before,
        "blocked_by_session": run.session if run.blocked_by_session else None,
        "deadline_at": run.deadline_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "retry_of": run.retry_of_id,
        "retried_by": run.retried_by,
    }


def usage_line(run: Run) -> str:
    """Return usage and cost for people: `model: 12 input, 40 output; cost 0.00012 credits`."""
    parts = [
        f"{model}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        for model, kinds in sorted(run.usage.items())
    ]
    return "; ".join([*parts, f"cost {micro(run.cost)} credits ({run.cost} micro-units)"])
