"""The model of one run: API, workers, sweeper, a client that cancels, Redis, and everything that may go wrong.

A step is what happens between two commits or two Redis scripts. Whoever stands between two steps may die there, or
stand still, while all others go on. RULES are what can be taken out; an intact protocol has all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model import world as w
from tests.model.explorer import Step
from tests.model.run_steps import call, has_healthy_owner, says, set_sweeper, set_worker
from tests.model.run_sweeper import SweeperSteps
from tests.model.run_worker import WorkerSteps
from tests.model.world import ENDED, IDLE, OVER, RESTING, Entry, Helper, Left, Row, Worker, World

RULES = {
    "fence check": "an owner's UPDATE repeats the fence it was given (1.1, 9)",
    "hand-over script": "old entry out and new one in by one script that looks at the index (6.7)",
    "close duty": "the sweeper closes the logs that nobody closed (10)",
    "relay": "the sweeper dispatches queued rows that have no entry (4.6, 10)",
    "dispatch looks first": "dispatching again what is there changes nothing (4.6)",
    "deliverable check": "an entry that the index names counts only if it can be delivered (4.6)",
    "dispatch's fence check": "an entry of a lower fence does not count (4.6)",
    "takeover memory": "nobody takes over on the first look (8.2)",
    "takeover's lease check": "takeover's UPDATE repeats the lease it saw (8.2)",
    "cancel mark": "no end but `cancelled` after the mark (12.1)",
    "named check": "a running run keeps the entry that the index names (6.4)",
    "owner's prev": "the end of an attempt names the owner's last event (3.3)",
    "unknown end": "in a log made again, a lost owner's end says that it does not follow (3.3)",
    "ack's fence": "who acknowledges what the index names leaves an entry alone that was dispatched since",
    "mended end": "an end says that it does not follow wherever its own run.started had to be brought as well",
}
NOT_BUILT = frozenset({"mended end"})  # a proposal: what it would mend is told in docs/model.md
ALL = frozenset(RULES)
NONE = Left()


@dataclass(frozen=True)
class Scenario:
    """What is explored: which faults, how many, and what kind of agent."""

    name: str
    left: Left = NONE
    policy: str = "rerun"
    workers: int = 2
    sweepers: int = 1
    retries: str = "later now"  # how a handler may fail: not at all, with back-off, without
    emits: bool = True
    late_api: bool = True  # the API process may stand still between its commit and its first append
    strict: bool = False  # streams are exact at any moment, also with several sweepers


SCENARIOS = (
    Scenario("no fault"),
    Scenario("a cancel", Left(cancels=1)),
    Scenario("a crash", Left(crashes=1)),
    Scenario("two crashes", Left(crashes=2), retries=""),
    Scenario("a crash under policy interrupt", Left(crashes=1, cancels=1), policy="interrupt", retries=""),
    Scenario("a paused owner", Left(pauses=1), retries="later"),
    Scenario("a paused owner and a cancel", Left(pauses=1, cancels=1), retries="", workers=1),
    Scenario("loss of Redis", Left(losses=1), retries="now", workers=1),
    Scenario("loss of Redis and a crash", Left(losses=1, crashes=1), workers=1, retries="later", late_api=False),
    Scenario("a Redis call fails", Left(calls=1), workers=1),
    Scenario("a Redis call fails, and a crash", Left(calls=1, crashes=1), policy="interrupt", retries=""),
    Scenario("a slow claim", Left(slips=1, cancels=1), retries=""),
    Scenario("a database outage", Left(outages=1), retries="later"),
    Scenario("two sweepers and a crash", Left(crashes=1), sweepers=2, workers=1, retries="now"),
)
# By hand, for whoever changes the protocol: minutes instead of seconds.
LARGE = (
    Scenario("large: a crash and a pause", Left(crashes=1, pauses=1)),
    Scenario("large: loss of Redis", Left(losses=1)),
    Scenario("large: a Redis call fails", Left(calls=1)),
    Scenario("large: loss of Redis and a crash", Left(losses=1, crashes=1), retries="", late_api=False),
    Scenario("large: loss of Redis and a pause", Left(losses=1, pauses=1), retries="", late_api=False),
    Scenario("large: a Redis call fails, and a pause", Left(calls=1, pauses=1), retries="", late_api=False),
    Scenario("large: two sweepers", Left(crashes=1), sweepers=2, retries="later"),
    Scenario("large: cancel and crash", Left(cancels=1, crashes=1)),
)
# The smallest scenario that shows what a rule is for.
SHOWN_BY = {
    "fence check": Scenario("a paused owner", Left(pauses=1)),
    "hand-over script": Scenario("no fault"),
    "close duty": Scenario("a crash", Left(crashes=1), workers=1, retries=""),
    "relay": Scenario("a crash", Left(crashes=1), workers=1, retries=""),
    "dispatch looks first": Scenario("no fault"),
    "deliverable check": Scenario("loss of Redis", Left(losses=1), workers=1, retries=""),
    "dispatch's fence check": Scenario("a crash", Left(crashes=1)),
    "takeover memory": Scenario("a database outage", Left(outages=1)),
    "takeover's lease check": Scenario("a paused owner", Left(pauses=1)),
    "cancel mark": Scenario("a cancel", Left(cancels=1)),
    "named check": Scenario("a paused owner", Left(pauses=1)),
    "owner's prev": Scenario("loss of Redis", Left(losses=1), retries=""),
    "unknown end": Scenario("loss of Redis and a crash", Left(losses=1, crashes=1), retries="", late_api=False),
    "ack's fence": Scenario("two sweepers", Left(crashes=1), workers=1, sweepers=2, retries="", strict=True),
    "mended end": Scenario("loss of Redis and a crash", Left(losses=1, crashes=1), workers=1, retries=""),
}


class RunModel:
    """The protocol for one run under a scenario, without the rules named in `without`."""

    def __init__(self, scenario: Scenario, without: frozenset[str] = NOT_BUILT) -> None:
        self.scenario = scenario
        self.rules = ALL - without
        self.name = f"run/{scenario.name}"
        # Without the fence, a second hand may acknowledge what was dispatched since: the relay brings it again.
        self._exact = scenario.sweepers == 1 or "ack's fence" in self.rules or scenario.strict
        self._outages = scenario.left.outages > 0
        self._worker = WorkerSteps(self.rules, retries=scenario.retries, emits=scenario.emits)
        self._sweeper = SweeperSteps(self.rules, policy=scenario.policy, outages=self._outages)

    def initial(self) -> World:
        made = self.scenario
        workers, sweepers = (IDLE,) * made.workers, (RESTING,) * made.sweepers
        return World(Row(), (), None, 0, 0, workers, sweepers, Helper("submit"), Helper("cancel"), made.left)

    def steps(self, state: World) -> Iterator[Step]:
        yield from self._api(state)
        for number in range(len(state.workers)):
            yield from self._worker.steps(state, number)
        for number in range(len(state.sweepers)):
            yield from self._sweeper.steps(state, number)
        yield from self._client(state)
        if state.row.state == "running" and not state.row.lapsed and not has_healthy_owner(state):
            yield Step("the lease lapses", state._replace(row=state.row._replace(lapsed=True)))
        yield from self._deaths(state)
        yield from self._other_faults(state)

    # -- who submits and who cancels -----------------------------------------------------------------------------------
    def _api(self, world: World) -> Iterator[Step]:
        """Submit: commit, then one pipeline of append and dispatch (4.5, 4.6)."""
        match world.api.at:
            case "submit":
                after = w.move(world, "queued", "q")
                after = after._replace(api=Helper("say"))
                if not self.scenario.late_api:
                    after = says(after, 1, self.rules)._replace(api=Helper("dispatch"))
                yield Step("API commits the run: fence 1", after)
            case "say":
                yield from call(
                    "API appends 1-1",
                    world,
                    lambda b: says(b, 1, self.rules),
                    lambda b: b._replace(api=Helper("dispatch")),
                    lambda b: b._replace(api=OVER),
                )
            case "dispatch":

                def over(after: World) -> World:
                    return after._replace(api=OVER)

                yield from call("API dispatches", world, lambda b: w.dispatch(b, 1, self.rules), over, over)

    def _client(self, world: World) -> Iterator[Step]:
        """Cancel: one decision under the locks, then the announcement (12.1)."""
        row, client = world.row, world.client
        if client.at == "cancel" and world.left.cancels and row.state and row.state not in ENDED:
            if row.state == "running":
                marked = world._replace(row=row._replace(cancel=True), client=OVER)
                yield Step("client cancels: the row is marked", marked)
            else:
                after = w.move(world, "cancelled", "x")
                after = after._replace(client=Helper("say", after.row.fence))
                yield Step(f"client cancels: fence {after.row.fence}", after)
        if client.at == "say":

            def over(after: World) -> World:
                return after._replace(client=OVER)

            label = f"client's API appends {client.fence}-1"
            yield from call(label, world, lambda b: says(b, client.fence, self.rules), over, over)

    # -- faults --------------------------------------------------------------------------------------------------------
    def _deaths(self, world: World) -> Iterator[Step]:
        """Everybody who stands between two steps may die there. A new process takes the place at once."""
        if not world.left.crashes:
            return
        after = world._replace(left=world.left._replace(crashes=world.left.crashes - 1))
        if world.api.at in {"say", "dispatch"}:
            yield Step(f"API dies before its {world.api.at}", after._replace(api=OVER), fault=True)
        if world.client.at == "say":
            yield Step("client's API dies before its announcement", after._replace(client=OVER), fault=True)
        for number, worker in enumerate(world.workers):
            if worker.at != "idle":
                dead = set_worker(after, number, IDLE)
                yield Step(f"worker {'AB'[number]} dies: it was about to {worker.at}", dead, fault=True)
        for number, sweeper in enumerate(world.sweepers):
            if sweeper != RESTING:
                yield Step(f"sweeper dies: it was about to {sweeper.at}", set_sweeper(after, number, RESTING), True)

    def _other_faults(self, world: World) -> Iterator[Step]:
        left = world.left
        if left.pauses:
            after = world._replace(left=left._replace(pauses=left.pauses - 1))
            for number, worker in enumerate(world.workers):
                if worker.at != "idle" and worker.nap == 0:
                    asleep = set_worker(after, number, worker._replace(nap=1))
                    yield Step(f"worker {'AB'[number]} stands still before: {worker.at}", asleep, fault=True)
        if left.losses and (world.stream or world.log or world.index):
            after = world._replace(left=left._replace(losses=left.losses - 1))
            yield Step("FLUSHALL", after._replace(stream=(), index=None, log=0), fault=True)
            if world.stream:
                dead = tuple(entry._replace(status="o") for entry in world.stream)
                anew = tuple(entry._replace(status="w") for entry in world.stream)
                yield Step("the ready stream is trimmed", after._replace(stream=()), fault=True)
                yield Step("the group stands at the end, with nothing pending", after._replace(stream=dead), True)
                yield Step("the group is destroyed and made again at 0", after._replace(stream=anew), fault=True)
        if left.outages and world.row.state == "running" and not world.row.lapsed and has_healthy_owner(world):
            after = world._replace(left=left._replace(outages=left.outages - 1))
            lapsed = after._replace(row=world.row._replace(lapsed=True))
            yield Step("the database was away for a lease: nobody could renew", lapsed, fault=True)

    # -- what has to hold ----------------------------------------------------------------------------------------------
    def broken(self, state: World) -> str:
        if state.oops:
            return state.oops
        if self._redis_kept(state):
            if state.row.state == "queued" and sum(e.fence == state.row.fence for e in state.stream) > 1:
                return "6.7: a queued run has two entries: the stream is longer than what waits and runs"
            if state.row.state == "running" and self._exact and not self._has_entry(state):
                return "6.7: a running run has no entry: the stream is shorter than what waits and runs"
        return ""

    def _redis_kept(self, state: World) -> bool:
        """Whether Redis has lost nothing: only then must the streams be exact at any moment."""
        return state.left[2:4] == self.scenario.left[2:4]

    @staticmethod
    def _has_entry(state: World) -> bool:
        entry = w.find(state, state.index[1]) if state.index else None
        return entry is not None and entry.status == "p"

    def is_settled(self, state: World) -> bool:
        """The run has ended, its log is closed, stream, pending list and index are empty, nobody has work left (P5)."""
        return (
            state.row.closed
            and not state.stream
            and state.index is None
            and all(worker == IDLE for worker in state.workers)
            and all(sweeper.at == "idle" for sweeper in state.sweepers)
            and state.api == OVER
            and state.client.at != "say"
        )

    def canonical(self, state: World) -> World:
        """Workers are interchangeable, and so are sweepers; entries are numbered in the order of the stream.

        What nobody can look at any more is blanked: it only made states differ that go on alike.
        """
        order = {entry.id: number for number, entry in enumerate(state.stream, 1)}
        if state.index and state.index[1] not in order:
            order[state.index[1]] = len(order) + 1
        return World(
            row=self._blanked(state),
            stream=tuple([Entry(order[number], fence, status) for number, fence, status in state.stream]),
            index=state.index and (state.index[0], order[state.index[1]]),
            log=state.log,
            stored=self._unread(state),
            workers=tuple(sorted([self._named(worker, order) for worker in state.workers])),
            sweepers=tuple(sorted(state.sweepers)),
            api=state.api,
            client=state.client,
            left=state.left,
            oops=state.oops,
        )

    def _log_may_go(self, state: World) -> bool:
        return not state.row.closed and (state.left.losses > 0 or state.left.calls > 0)

    def _unread(self, state: World) -> int:
        """What was stored up to the log's end is there, as long as the log is."""
        there = 0 if self._log_may_go(state) else (state.log + 8) // 10
        return state.stored >> there << there

    def _blanked(self, state: World) -> Row:
        row = state.row
        if row.closed:
            return Row("ended", row.fence, closed=True)
        past = row.past
        if not self._log_may_go(state):
            told = state.log // 10
            past = "." * told + past[told:]
        if row.state in ENDED:
            return Row("ended", row.fence, past=past)
        return row._replace(past=past)

    def _named(self, worker: Worker, order: dict[int, int]) -> Worker:
        """An entry that only a worker still names is gone: which one it was makes no difference to its ack."""
        if worker == IDLE:
            return worker
        nap = worker.nap if worker.nap < 2 or self._outages else 0
        at, entry, fence, seq, kept, _ = worker
        return Worker(at, order.get(entry, 99) if entry else 0, fence, seq, kept, nap)

    def describe(self, state: World) -> dict[str, str]:
        row = state.row
        marks = [name for name in ("cancel", "lapsed", "closed") if getattr(row, name)]
        told = {
            "row": f"{row.state or 'none'} fence {row.fence} attempt {row.attempt} {' '.join(marks)}".strip(),
            "stream": ", ".join(f"entry {e.id} of fence {e.fence} {STATUS[e.status]}" for e in state.stream),
            "index": f"fence {state.index[0]} → entry {state.index[1]}" if state.index else "",
            "log": f"ends in {state.log // 10}-{state.log % 10}" if state.log else "",
        }
        for number, worker in enumerate(state.workers):
            told[f"worker {'AB'[number]}"] = _of_worker(worker)
        for number, sweeper in enumerate(state.sweepers, 1):
            told[f"sweeper {number}"] = "" if sweeper.at == "idle" else f"next: {sweeper.at} (fence {sweeper.fence})"
        return told


STATUS = {"w": "waiting", "p": "pending", "o": "dead"}


def _of_worker(worker: Worker) -> str:
    if worker.at == "idle":
        return ""
    asleep = ", asleep" if worker.nap == 1 else ""
    return f"next: {worker.at} (entry {worker.entry}, fence {worker.fence}{asleep})"
