"""The steps of one place of a worker (protocol 6, 7, 9): take, check, claim, begin, emit, end, acknowledge, close."""

from collections.abc import Iterator

from tests.model import world as w
from tests.model.explorer import Step
from tests.model.run_steps import call, is_kept_young, owns, says, set_worker
from tests.model.world import ENDED, IDLE, Worker, World

MAX_ATTEMPTS = 2


class WorkerSteps:
    """Every step a worker can take. `at` names what it does next; each is one commit or one script."""

    def __init__(self, rules: frozenset[str], *, retries: str, emits: bool) -> None:
        self.rules = rules
        self.emits = emits
        self.endings = [("succeeded", "its handler returns")]
        if "later" in retries:
            self.endings.append(("scheduled", "a failure, retry later"))
        if "now" in retries:
            self.endings.append(("queued", "a failure, retry now"))

    def steps(self, world: World, number: int) -> Iterator[Step]:
        worker = world.workers[number]
        name = "AB"[number]
        if worker.nap == 1:
            yield Step(f"{name} wakes up", set_worker(world, number, worker._replace(nap=2)))
            return
        what, _, then = worker.at.partition(" ")
        yield from getattr(self, f"_{what}")(world, number, worker, name, then)

    # -- take and check ----------------------------------------------------------------------------------------------
    def _idle(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        stale = [entry for entry in world.stream if entry.status == "p" and not is_kept_young(world, entry.id)]
        waiting = [entry for entry in world.stream if entry.status == "w"][:1]
        for entry, how in [(entry, "reclaims stale") for entry in stale] + [(entry, "takes") for entry in waiting]:

            def script(before: World, entry: w.Entry = entry) -> World:
                pending = tuple(e._replace(status="p") if e.id == entry.id else e for e in before.stream)
                return before if entry.status == "p" else before._replace(stream=pending)

            taken = Worker("taken", entry.id, entry.fence)
            yield from call(
                f"{name} {how} entry {entry.id} (fence {entry.fence})",
                world,
                script,
                lambda after, taken=taken: set_worker(after, number, taken),
                lambda after: after,
            )

    def _taken(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        """Claim, or decide by the row as the claim saw it (6.4)."""
        row = world.row
        if row.state == "queued" and row.fence == worker.fence:
            after = w.move(world, "running", "c")
            claimed = worker._replace(at="claimed", fence=after.row.fence, seq=1)
            yield Step(f"{name} claims: fence {after.row.fence}", set_worker(after, number, claimed))
            return
        if row.state == "running":
            at = "named" if "named check" in self.rules else "ackbare"
        elif row.state in ENDED and not row.closed:
            at = "close ack"
        else:
            at = "ack"
        decided = worker._replace(at=at, fence=row.fence)
        yield Step(f"{name} finds the row {row.state} at fence {row.fence}", set_worker(world, number, decided))

    def _named(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        if world.index and world.index[1] == worker.entry:
            yield Step(f"{name} leaves entry {worker.entry}: the owner's", set_worker(world, number, IDLE))
        else:
            after = set_worker(world, number, worker._replace(at="ackbare"))
            yield Step(f"{name} sees that entry {worker.entry} is left over", after)

    def _ackbare(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        rest = _rester(number)
        acked = f"{name} acks entry {worker.entry} alone"
        yield from call(acked, world, lambda b: w.ack(b, worker.entry, with_run=False), rest, rest)

    def _ack(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        following = _goer(number, worker._replace(at=then)) if then else _rester(number)
        yield from call(
            f"{name} acks entry {worker.entry}", world, lambda b: w.ack(b, worker.entry), following, following
        )

    # -- begin -------------------------------------------------------------------------------------------------------
    def _claimed(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        """Store run.started; who cannot, hands back (6.6)."""
        back = _goer(number, worker._replace(at="back"))
        _, answer = w.say(world, worker.fence, self.rules)
        begun = _goer(number, worker._replace(at="run")) if answer == "OK" else back
        label = f"{name} appends {worker.fence}-1: {answer}"
        yield from call(label, world, lambda b: says(b, worker.fence, self.rules), begun, back)
        if world.left.slips:
            left = world.left._replace(slips=world.left.slips - 1)
            yield Step(f"{name} took half a lease to claim", back(world._replace(left=left)), fault=True)

    def _back(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        if not owns(world, worker):
            yield Step(f"{name} may not hand back any more", set_worker(world, number, IDLE))
            return
        target = "cancelled" if world.row.cancel else "queued"
        after = w.move(world, target, "1")
        at = "say ack" if target == "cancelled" else "say over"
        back = worker._replace(at=at, fence=after.row.fence)
        yield Step(f"{name} hands back: {target}, fence {after.row.fence}", set_worker(after, number, back))

    # -- run and end -------------------------------------------------------------------------------------------------
    def _run(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        yield from self._renew(world, number, worker, name)
        if self.emits and not worker.kept:
            yield from self._emit(world, number, worker, name)
        for target, how in self.endings:
            yield self._finish(world, number, worker, target, f"{name} {how}")

    def _renew(self, world: World, number: int, worker: Worker, name: str) -> Iterator[Step]:
        if owns(world, worker) and world.row.lapsed:
            renewed = world._replace(row=world.row._replace(lapsed=False))
            if "takeover's lease check" in self.rules:
                renewed = w.forget(renewed)
            yield Step(f"{name} renews its lease", renewed)

    def _emit(self, world: World, number: int, worker: Worker, name: str) -> Iterator[Step]:
        numbered = worker._replace(seq=2)
        _, answer = w.emit(world, worker.fence)
        after = {
            "OK": _goer(number, numbered._replace(kept=True)),
            "GAP": _goer(number, numbered._replace(at="mend")),
            "FENCED": _rester(number),
        }[answer]
        label = f"{name} appends its event {worker.fence}-2: {answer}"
        yield from call(label, world, lambda b: w.emit(b, worker.fence)[0], after, _goer(number, numbered))

    def _mend(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        """The log is not as it was: open it again, but only if the row is still mine (3.3)."""
        if owns(world, worker):
            after = set_worker(world, number, worker._replace(at="refill"))
            yield Step(f"{name} reads the row: still its own", after)
        else:
            yield Step(f"{name} reads the row: fenced", set_worker(world, number, IDLE))

    def _refill(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        _, answer = w.refill(world, worker.fence, self.rules)
        again = worker._replace(at="run")
        after = _goer(number, again._replace(kept=True)) if answer == "OK" else _rester(number)
        label = f"{name} opens the log again and appends {worker.fence}-2: {answer}"
        yield from call(label, world, lambda b: w.refill(b, worker.fence, self.rules)[0], after, _goer(number, again))

    def _finish(self, world: World, number: int, worker: Worker, target: str, label: str) -> Step:
        """The owner's guarded UPDATE: whoever is fenced writes nothing and acknowledges nothing (9)."""
        row = world.row
        mine = row.state == "running" and (row.fence == worker.fence or "fence check" not in self.rules)
        if not mine:
            return Step(f"{label}, but it is fenced", set_worker(world, number, IDLE))
        if row.cancel and "cancel mark" in self.rules:
            target = "cancelled"
        elif target != "succeeded" and row.attempt >= MAX_ATTEMPTS:
            target = "failed"
        oops = ""
        if row.fence != worker.fence:
            oops = "P2: a fenced attempt wrote the row of another attempt"
        elif row.cancel and target != "cancelled":
            oops = "12.1: a run went on after its cancel mark"
        letter = str(worker.seq) if "owner's prev" in self.rules else "t"
        attempt = row.attempt + (target in {"scheduled", "queued"})
        after = w.move(world, target, letter, attempt=attempt)
        after = after._replace(oops=after.oops or oops)
        at = {"scheduled": "say ack", "queued": "say over"}.get(target, "say ack close end")
        leaving = worker._replace(at=at, fence=after.row.fence, seq=0, kept=False)
        return Step(f"{label}: {target}, fence {after.row.fence}", set_worker(after, number, leaving))

    # -- announce, hand over, close ----------------------------------------------------------------------------------
    def _say(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        following = _goer(number, worker._replace(at=then))
        # A pipeline that fails is given up; the closer has its own task and goes on.
        closer = then.partition("ack ")[2]
        failed = _goer(number, worker._replace(at=closer)) if closer else _rester(number)
        label = f"{name} appends {worker.fence}-1"
        yield from call(label, world, lambda b: says(b, worker.fence, self.rules), following, failed)

    def _over(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        rest = _rester(number)
        if "hand-over script" in self.rules:
            label = f"{name} hands entry {worker.entry} over to fence {worker.fence}"
            yield from call(label, world, lambda b: w.hand_over(b, worker.fence), rest, rest)
        else:
            yield from self._ack(world, number, worker, name, "add")

    def _add(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        """What stands in for the hand-over script when it is taken out: an add that looks at nothing."""
        rest = _rester(number)
        yield from call(f"{name} adds an entry", world, lambda b: w.add(b, worker.fence), rest, rest)

    def _close(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        """Read the log, complete it, read it again (3.4). What fails here is left to the sweeper."""
        following = _goer(number, worker._replace(at=f"store {then}"))
        label = f"{name} reads the log to its end {worker.fence}-1"
        yield from call(label, world, lambda b: says(b, worker.fence, self.rules), following, _rester(number))

    def _store(self, world: World, number: int, worker: Worker, name: str, then: str) -> Iterator[Step]:
        after = worker._replace(at="ack") if then == "ack" else IDLE
        yield Step(f"{name} stores the archive", set_worker(w.close(world), number, after))


def _goer(number: int, worker: Worker):
    return lambda world: set_worker(world, number, worker)


def _rester(number: int):
    return _goer(number, IDLE)
