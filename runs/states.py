"""The state machine as data (protocol 2). Everything that needs to know a state's nature derives it from EDGES.

An edge names the event of its lifecycle line, where it leads from and to, and who may take it. `runs.transitions`
is the only writer of `Run.state`.
"""

from dataclasses import dataclass

from django.db.models import TextChoices


class RunState(TextChoices):
    """The states of a run. Each comment says who moves a run in and who moves it out."""

    SCHEDULED = "scheduled"  # in: submit with a delay, a retry's back-off; out: promotion, cancel
    QUEUED = "queued"  # in: submit, promotion, wake, hand-back; out: a worker's claim, cancel, the sweeper's limits
    RUNNING = "running"  # in: claim; out: the owner's finalise, takeover after a lost lease
    WAITING = "waiting"  # in: the owner waits for something; out: wake, cancel, wall clock
    SUCCEEDED = "succeeded"  # in: the owner's finalise; out: never
    FAILED = "failed"  # in: the owner's finalise, limits, takeover; out: never
    CANCELLED = "cancelled"  # in: cancel, the owner's finalise after a cancel mark; out: never
    INTERRUPTED = "interrupted"  # in: drain or takeover by policy `interrupt`; out: never


@dataclass(frozen=True, slots=True)
class Edge:
    """One allowed move. `by` is for people: it appears in the generated page."""

    event: str
    sources: frozenset[RunState]
    target: RunState
    by: str

    @property
    def by_owner(self) -> bool:
        """Whether the move leaves `running`, so that it must repeat the owner's fence."""
        return RunState.RUNNING in self.sources


def _edge(event: str, sources: set[RunState], target: RunState, by: str) -> Edge:
    return Edge(event, frozenset(sources), target, by)


S = RunState
SUBMIT = _edge("run.queued", set(), S.QUEUED, "submit")
SUBMIT_LATER = _edge("run.scheduled", set(), S.SCHEDULED, "submit, with a delay or behind its session")
PROMOTE = _edge("run.queued", {S.SCHEDULED}, S.QUEUED, "promotion: due, and its session free")
CLAIM = _edge("run.started", {S.QUEUED}, S.RUNNING, "claim")
SUCCEED = _edge("run.succeeded", {S.RUNNING}, S.SUCCEEDED, "owner's finalise")
FAIL = _edge("run.failed", {S.RUNNING}, S.FAILED, "owner's finalise, takeover, time limits")
CONFIRM_CANCEL = _edge("run.cancelled", {S.RUNNING}, S.CANCELLED, "owner's finalise, takeover")
INTERRUPT = _edge("run.interrupted", {S.RUNNING}, S.INTERRUPTED, "owner's drain, takeover")
REPRIORITISE = _edge("run.queued", {S.QUEUED}, S.QUEUED, "change of priority: to the stream of the new one")
HAND_BACK = _edge("run.handed_back", {S.RUNNING}, S.QUEUED, "owner who could not begin it, or drains by hand-back")
RETRY_LATER = _edge("run.retrying", {S.RUNNING}, S.SCHEDULED, "owner: retry with back-off")
RETRY_NOW = _edge("run.retrying", {S.RUNNING}, S.QUEUED, "owner: retry without delay")
RETAKE = _edge("run.retaken", {S.RUNNING}, S.SCHEDULED, "takeover by policy `rerun`")
CANCEL = _edge("run.cancelled", {S.SCHEDULED, S.QUEUED, S.WAITING}, S.CANCELLED, "cancel")
REFUSE = _edge(
    "run.failed", {S.SCHEDULED, S.QUEUED}, S.FAILED, "queue-wait limit, unknown agent, lapsed hold, poison entry"
)

EDGES = (
    SUBMIT,
    SUBMIT_LATER,
    PROMOTE,
    REPRIORITISE,
    CLAIM,
    SUCCEED,
    FAIL,
    CONFIRM_CANCEL,
    INTERRUPT,
    HAND_BACK,
    RETRY_LATER,
    RETRY_NOW,
    RETAKE,
    CANCEL,
    REFUSE,
)
LEFT = frozenset(source for edge in EDGES for source in edge.sources)
TERMINAL = frozenset(edge.target for edge in EDGES) - LEFT
OPEN = frozenset(RunState) - TERMINAL
TERMINAL_EVENTS = frozenset(edge.event for edge in EDGES if edge.target in TERMINAL)
