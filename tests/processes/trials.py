"""What the trials on broken processes share: submitting, and what the rows say."""

from collections.abc import Iterable
from typing import Any

from quotas.models import Account
from runs.models import Run
from runs.services import submit_run
from tests.probes import eventually, probe_log

RETAKEN_LIFE = ["run.queued", "run.started", "run.retaken", "run.queued", "run.started", "run.succeeded"]


def submit(account: Account, agent: str, *, session: str = "", **run_input: Any) -> Run:
    return submit_run(account=account, agent=agent, input=run_input, actor="test", session=session).run


def rerun(account: Account, agent: str, *, attempts: int, **run_input: Any) -> Run:
    """Submit a run that is tried again when its worker is lost."""
    options: dict[str, Any] = {"on_lost": "rerun", "max_attempts": attempts}
    return submit_run(account=account, agent=agent, input=run_input, actor="test", **options).run


def states(runs: Iterable[Run]) -> list[str]:
    """Return the states of the runs as the rows have them now, in the order given."""
    runs = list(runs)
    found = dict(Run.objects.filter(pk__in=[run.pk for run in runs]).values_list("pk", "state"))
    return [found[run.pk] for run in runs]


def until(state: str, *runs: Run, timeout: float = 20.0) -> None:
    """Wait until every run is in the state."""

    def reached() -> None:
        assert states(runs) == [state] * len(runs)

    eventually(reached, timeout=timeout)


def until_begun(*runs: Run, timeout: float = 20.0) -> None:
    """Wait until the handler of every run has begun."""

    def begun() -> None:
        assert [run.pk for run in runs if not probe_log(run.pk)] == []

    eventually(begun, timeout=timeout)


def kinds(run: Run) -> list[str]:
    """Return the run's life: the kinds of its transitions."""
    return list(run.transitions.order_by("fence").values_list("kind", flat=True))


def phases(run: Run) -> list[str]:
    """Return what the run's handlers wrote to the probe log."""
    return [line["phase"] for line in probe_log(run.pk)]
