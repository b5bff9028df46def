"""The steps of a sweeper (protocol 8 and 10): relay, promote, takeover, close, dead entries."""

from collections.abc import Iterator

from tests.model import world as w
from tests.model.explorer import Step
from tests.model.run_steps import call, has_healthy_owner, owns, says, set_sweeper
from tests.model.run_worker import MAX_ATTEMPTS
from tests.model.world import ENDED, RESTING, Sweeper, World


class SweeperSteps:
    """Every step a sweeper can take. Its duties come in any order: each may run at any time and twice."""

    def __init__(self, rules: frozenset[str], *, policy: str, outages: bool) -> None:
        self.rules = rules
        self.policy = policy
        self.outages = outages  # only an outage can cost an owner its lease that never stood still

    def steps(self, world: World, number: int) -> Iterator[Step]:
        sweeper = world.sweepers[number]
        name = "sweeper" if len(world.sweepers) == 1 else f"sweeper {number + 1}"
        what, _, then = sweeper.at.partition(" ")
        yield from getattr(self, f"_{what}")(world, number, sweeper, name, then)

    def _idle(self, world: World, number: int, sweeper: Sweeper, name: str, then: str) -> Iterator[Step]:
        row = world.row
        if row.state == "queued" and "relay" in self.rules:
            yield self._goes(world, number, sweeper, "relay", row.fence, f"{name} reads the queued row at {row.fence}")
        if row.state == "scheduled":
            after = w.move(world, "queued", "q")
            yield self._goes(after, number, sweeper, "say dispatch", after.row.fence, f"{name} promotes")
        if row.state == "running":
            yield from self._lease(world, number, sweeper, name)
        if row.state in ENDED:
            if not row.closed and "close duty" in self.rules:
                label = f"{name} finds an open log of an ended run"
                yield self._goes(world, number, sweeper, "close named", row.fence, label)
            if world.index:
                label = f"{name} finds an ended run in the index"
                yield self._goes(world, number, sweeper, "named", row.fence, label)
        if any(entry.status == "o" for entry in world.stream):
            alive = tuple(entry for entry in world.stream if entry.status != "o")
            yield Step(f"{name} deletes dead entries", world._replace(stream=alive))

    def _goes(self, world: World, number: int, sweeper: Sweeper, at: str, fence: int, label: str) -> Step:
        # What it remembers is read again: another step of its own may just have made it void.
        remembers = world.sweepers[number].remembers
        return Step(label, set_sweeper(world, number, sweeper._replace(at=at, fence=fence, remembers=remembers)))

    # -- takeover ----------------------------------------------------------------------------------------------------
    def _lease(self, world: World, number: int, sweeper: Sweeper, name: str) -> Iterator[Step]:
        """Remember a lapsed lease for half a lease, in which every healthy owner renews; then take over."""
        needs_memory = "takeover memory" in self.rules
        if needs_memory and world.row.lapsed and not sweeper.remembers and not has_healthy_owner(world):
            after = set_sweeper(world, number, sweeper._replace(remembers=True))
            yield Step(f"{name} has seen the same lapsed lease for half a lease", after)
        if sweeper.remembers or (world.row.lapsed and not needs_memory):
            yield self._take_over(world, number, sweeper, f"{name} takes over")
        elif not any(owns(world, worker) for worker in world.workers):
            # The short cut of 8.4: whoever has reaped the owner's process needs no lease to tell that it is dead.
            yield self._take_over(world, number, sweeper, f"{name} finds the owner's process dead", dead=True)

    def _take_over(self, world: World, number: int, sweeper: Sweeper, label: str, *, dead: bool = False) -> Step:
        row = world.row
        if row.cancel:
            target = "cancelled"
        elif self.policy == "interrupt":
            target = "interrupted"
        else:
            target = "scheduled" if row.attempt < MAX_ATTEMPTS else "failed"
        oops = ""
        if not row.lapsed and not dead:
            oops = "8.2: a run was taken over while its lease was live"
        elif self.outages and any(
            worker.nap == 0 and worker.fence == row.fence and worker.at == "run" for worker in world.workers
        ):
            oops = "8.2: a run was taken over from an owner that never stood still"
        after = w.move(world, target, "t", attempt=row.attempt + (target == "scheduled"))
        after = after._replace(oops=after.oops or oops)
        fence = after.row.fence
        return self._goes(after, number, sweeper, "say named", fence, f"{label}: {target}, fence {fence}")

    # -- one script at a time ----------------------------------------------------------------------------------------
    def _relay(self, world: World, number: int, sweeper: Sweeper, name: str, then: str) -> Iterator[Step]:
        label = f"{name} dispatches fence {sweeper.fence}"
        rest = self._rester(number)
        yield from call(label, world, lambda b: w.dispatch(b, sweeper.fence, self.rules), rest, rest)

    _dispatch = _relay

    def _say(self, world: World, number: int, sweeper: Sweeper, name: str, then: str) -> Iterator[Step]:
        """Announce. A promotion's dispatch is in the same pipeline; a takeover's ack is tried all the same."""
        following = self._goer(number, then)
        failed = following if then == "named" else self._rester(number)
        label = f"{name} appends {sweeper.fence}-1"
        yield from call(label, world, lambda b: says(b, sweeper.fence, self.rules), following, failed)

    def _named(self, world: World, number: int, sweeper: Sweeper, name: str, then: str) -> Iterator[Step]:
        rest = self._rester(number)
        label = f"{name} acks what the index names"
        yield from call(label, world, lambda b: w.ack_named(b, sweeper.fence, self.rules), rest, rest)

    def _close(self, world: World, number: int, sweeper: Sweeper, name: str, then: str) -> Iterator[Step]:
        following, label = self._goer(number, "store"), f"{name} reads the log to its end {sweeper.fence}-1"
        yield from call(label, world, lambda b: says(b, sweeper.fence, self.rules), following, self._rester(number))

    def _store(self, world: World, number: int, sweeper: Sweeper, name: str, then: str) -> Iterator[Step]:
        yield Step(f"{name} stores the archive", self._goer(number, "named")(w.close(world)))

    def _goer(self, number: int, at: str):
        return lambda world: set_sweeper(world, number, world.sweepers[number]._replace(at=at))

    def _rester(self, number: int):
        return lambda world: set_sweeper(world, number, RESTING._replace(remembers=world.sweepers[number].remembers))
