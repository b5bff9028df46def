"""What actors of the run model have in common: a call to Redis that may go wrong, and who is alive."""

from collections.abc import Callable, Iterator

from tests.model import world as w
from tests.model.explorer import Step
from tests.model.world import Sweeper, Worker, World

OWNING = frozenset({"claimed", "back", "run", "mend", "refill"})
Do = Callable[[World], World]


def call(label: str, world: World, script: Do, then: Do, failed: Do) -> Iterator[Step]:
    """Yield the ways a Redis call can end: `then` after an answer, `failed` without one.

    A call that fails may have been done or not. One that was answered may be lost afterwards: a failover forgets it.
    """
    done = script(world)
    yield Step(label, then(done))
    if world.left.calls:
        left = world.left._replace(calls=world.left.calls - 1)
        yield Step(f"{label} … the call fails", failed(world._replace(left=left)), fault=True)
        if done is not world:
            yield Step(f"{label} … done, the answer is lost", failed(done._replace(left=left)), fault=True)
            yield Step(f"{label} … answered, lost in a failover", then(world._replace(left=left)), fault=True)


def set_worker(world: World, number: int, worker: Worker) -> World:
    workers = world.workers
    return world._replace(workers=(*workers[:number], worker, *workers[number + 1 :]))


def set_sweeper(world: World, number: int, sweeper: Sweeper) -> World:
    sweepers = world.sweepers
    return world._replace(sweepers=(*sweepers[:number], sweeper, *sweepers[number + 1 :]))


def owns(world: World, worker: Worker) -> bool:
    """Whether the row says that this worker is the run's owner."""
    return world.row.state == "running" and worker.fence == world.row.fence and worker.at in OWNING


def has_healthy_owner(world: World) -> bool:
    return any(owns(world, worker) and worker.nap != 1 for worker in world.workers)


def is_kept_young(world: World, entry_id: int) -> bool:
    """Whether somebody who is awake works on the entry right now, so that it does not become stale.

    An owner's beat keeps the entry of a run that is its own; one who has lost it does not (7.3).
    """
    return any(
        worker.entry == entry_id and worker.nap != 1 and (worker.at not in OWNING or owns(world, worker))
        for worker in world.workers
    )


def says(world: World, fence: int, rules: frozenset[str]) -> World:
    return w.say(world, fence, rules)[0]
