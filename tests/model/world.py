"""The world of one run: its row, its entries in Redis, its log, and who is doing what. The Redis scripts are here.

All values are small and are never changed: a step makes a new world. Names of steps and scripts are those of
docs/protocol.md. What is left out of the world, and why that loses nothing, is told in docs/model.md.
"""

from typing import NamedTuple

ENDED = frozenset(
    {"succeeded", "failed", "cancelled", "interrupted", "ended"}
)  # ended: any of them, it matters no more
UNKNOWN = -1  # the `prev` of an event before which a lost owner may have stored events that are gone


class Row(NamedTuple):
    """The run's row, and its transition rows as letters, one a fence.

    q entered a queue, c claim, 1 and 2 the owner left with this last number, t takeover, x cancel from outside.
    The claim's token needs no column here: every claim raises the fence, and this database keeps its commits (1.7).
    """

    state: str = ""
    fence: int = 0
    attempt: int = 1
    cancel: bool = False
    lapsed: bool = False
    closed: bool = False
    past: str = ""


class Worker(NamedTuple):
    """One place of a worker: where it stands, the entry it holds, the fence it works for, its events.

    `seq` is the last number it gave, `kept` whether Redis confirmed event 2; `nap`: 1 paused, 2 was paused.
    """

    at: str = "idle"
    entry: int = 0
    fence: int = 0
    seq: int = 0
    kept: bool = False
    nap: int = 0


class Sweeper(NamedTuple):
    """One sweeper: where it stands, the fence it acts for, whether it remembers this lapsed lease for half a lease."""

    at: str = "idle"
    fence: int = 0
    remembers: bool = False


class Helper(NamedTuple):
    """The API process of a submit or of a cancel."""

    at: str
    fence: int = 0


class Left(NamedTuple):
    """How many faults of each kind may still happen, and whether a cancel may still come."""

    crashes: int = 0  # a process dies and loses what it had in memory
    pauses: int = 0  # a worker stands still, for as long as it likes
    calls: int = 0  # a Redis call: not done, done without answer, or answered and then lost in a failover
    losses: int = 0  # FLUSHALL, a stream trimmed, a group whose position or pending list is gone
    slips: int = 0  # half a lease passes between claim and run.started
    outages: int = 0  # the database is away for longer than a lease: nobody can renew
    cancels: int = 0


class Entry(NamedTuple):
    """A stream entry. status: w above the group's last-delivered id, p pending, o neither (dead)."""

    id: int
    fence: int
    status: str = "w"


class World(NamedTuple):
    row: Row
    stream: tuple[Entry, ...]
    index: tuple[int, int] | None  # fence, entry id
    log: (
        int  # the last event's id as fence * 10 + seq, 0 without a log: what came before it is checked when it is added
    )
    stored: int  # bit f: event f-2 was stored at some time, so that somebody may have read it
    workers: tuple[Worker, ...]
    sweepers: tuple[Sweeper, ...]
    api: Helper
    client: Helper
    left: Left
    oops: str = ""  # the rule that a step has broken


IDLE = Worker()
RESTING = Sweeper()
OVER = Helper("done")


# -- the row ---------------------------------------------------------------------------------------------------------
def move(world: World, state: str, letter: str, **columns: object) -> World:
    """Change the run's state: fence + 1 and a transition row (3.1). What sweepers remember of the row is past."""
    row = world.row
    oops = world.oops or ("P1: an ended run was moved" if row.state in ENDED else "")
    after = row._replace(state=state, fence=row.fence + 1, lapsed=False, past=row.past + letter, **columns)
    return forget(world._replace(row=after, oops=oops))


def forget(world: World) -> World:
    """Empty what sweepers remember: the triple of fence and lease that they saw is not the row's any more (8.2)."""
    if not any(sweeper.remembers for sweeper in world.sweepers):
        return world
    return world._replace(sweepers=tuple(sweeper._replace(remembers=False) for sweeper in world.sweepers))


def lines(row: Row, last: int, fence: int, rules: frozenset[str]) -> list[tuple[int, int]]:
    """Return the lifecycle events that a log ending in `last` lacks up to `fence`, from the transition rows (3.3).

    Of a log that is made anew, the end of an attempt whose owner was lost says that it does not follow.
    """
    first, found = last // 10 + 1, []
    marks = ("mended end" if last else "unknown end") in rules
    for number in range(first, fence + 1):
        letter = row.past[number - 1]
        prev = (number - 1) * 10 + int(letter) if letter in "12" else 0
        if marks and not prev and number > first and row.past[number - 2] == "c":
            prev = UNKNOWN
        found.append((number * 10 + 1, prev))
    return found


# -- the log ---------------------------------------------------------------------------------------------------------
def say(world: World, fence: int, rules: frozenset[str]) -> tuple[World, str]:
    """Append `<fence>-1`; repair the log by the transition rows where it does not reach so far (3.3)."""
    row, log = world.row, world.log
    if row.closed:
        return world, "FENCED" if fence < row.fence else "OK"  # readers have the archive; nobody looks here again
    if log // 10 > fence:
        return world, "FENCED"
    if log // 10 == fence:
        return world, "OK"
    return extend(world, lines(row, log, fence, rules)), "OK"


def emit(world: World, fence: int) -> tuple[World, str]:
    """Append the owner's event `<fence>-2`. NOKEY and GAP are one answer here: look at the row (3.3)."""
    if world.row.closed or world.log // 10 > fence:
        return world, "FENCED"
    if world.log != fence * 10 + 1:
        return world, "GAP"
    return keep(world, fence, []), "OK"


def refill(world: World, fence: int, rules: frozenset[str]) -> tuple[World, str]:
    """Append the rows' events and then the owner's own, opening the log if it is gone (event_writer._mend)."""
    if world.row.closed or world.log // 10 > fence:
        return world, "FENCED"
    return keep(world, fence, lines(world.row, world.log, fence, rules)), "OK"


def keep(world: World, fence: int, before: list[tuple[int, int]]) -> World:
    after = extend(world, [*before, (fence * 10 + 2, 0)])
    return after._replace(stored=after.stored | 1 << fence)


def extend(world: World, more: list[tuple[int, int]]) -> World:
    """Append as the script does: an event without `prev` of its own gets the last id found.

    A reader accepts an event as the next one only if it follows; everything else it is told as a gap. So where an
    event follows, nothing that was ever stored may be missing before it (P4).
    """
    last, oops = world.log, world.oops
    for event, prev in more:
        if event <= last:
            continue
        if event // 10 == last // 10:
            follows = event == last + 1
        else:
            follows = event // 10 == last // 10 + 1 and event % 10 == 1 and prev in (0, last)
        missing = [fence for fence in range(1, 20) if world.stored >> fence & 1 and last < fence * 10 + 2 < event]
        if follows and missing and not oops:
            oops = f"P4: event {missing[0]}-2 is gone, and a reader is not told of the gap"
        last = event
    return world._replace(log=last, oops=oops)


def close(world: World) -> World:
    """Store the archive and set the mark; from now on readers read nothing else, so the stream is forgotten here."""
    return world._replace(row=world.row._replace(closed=True), log=0, stored=0)


# -- the ready stream ------------------------------------------------------------------------------------------------
def find(world: World, entry_id: int) -> Entry | None:
    return next((entry for entry in world.stream if entry.id == entry_id), None)


def add(world: World, fence: int) -> World:
    """XADD and HSET: a new entry, and the index names it."""
    used = {entry.id for entry in world.stream} | {worker.entry for worker in world.workers}
    if world.index:
        used.add(world.index[1])
    new = next(number for number in range(1, 99) if number not in used)
    return world._replace(stream=(*world.stream, Entry(new, fence)), index=(fence, new))


def dispatch(world: World, fence: int, rules: frozenset[str]) -> World:
    """The dispatch script (4.6): nothing if the index names this fence or a higher one and that can be delivered."""
    after = world if _is_there(world, fence, rules) else add(world, fence)
    waits = world.row.state == "queued" and world.row.fence == fence
    if waits and not any(entry.fence == fence and entry.status != "o" for entry in after.stream):
        return after._replace(oops="4.6: a queued run was dispatched and has no entry that can be delivered")
    return after


def _is_there(world: World, fence: int, rules: frozenset[str]) -> bool:
    if world.index is None or "dispatch looks first" not in rules:
        return False
    named_fence, entry_id = world.index
    entry = find(world, entry_id)
    deliverable = entry is not None and entry.status != "o"
    right_fence = named_fence >= fence or "dispatch's fence check" not in rules
    return right_fence and (deliverable or "deliverable check" not in rules)


def ack(world: World, entry_id: int, *, with_run: bool = True) -> World:
    """The ack script (6.7): XACK, XDEL, and HDEL if the index still names this entry."""
    stream = tuple(entry for entry in world.stream if entry.id != entry_id)
    index = None if with_run and world.index and world.index[1] == entry_id else world.index
    return world._replace(stream=stream, index=index)


def ack_named(world: World, fence: int, rules: frozenset[str]) -> World:
    """Acknowledge what the index names for the run: whatever it is, or (ack's fence) nothing dispatched since."""
    if world.index is None or ("ack's fence" in rules and world.index[0] > fence):
        return world
    return ack(world, world.index[1])


def hand_over(world: World, fence: int) -> World:
    """The hand-over script (6.7): out with the entry the index names, in with the new one, at once."""
    if world.index and world.index[0] >= fence:
        return world
    if world.index:
        world = ack(world, world.index[1])
    return add(world, fence)
