"""Why a queued run is not taken: what the workers lack, where its entry is, and who is before it."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Count, Q

from quotas.display import moment, span
from quotas.models import Hold
from quotas.selectors import account_now
from runs import broker, keys, running
from runs.models import Run
from runs.ready import PARKED
from runs.states import RunState
from runs.why import MANY, Why, WhyCode, count_of, iso, said_end, waiting_facts
from workers import alive
from workers.alive import Fleet
from workers.heartbeat import alive_seconds
from workers.models import WorkerProcess

RELAY_SECONDS = 5  # two passes of the sweeper: by then it has relayed what is queued for less than a minute


# -- workers -----------------------------------------------------------------------------------------------------------
def no_worker(run: Run, fleet: Fleet) -> Why:
    """Return the reason that holds where nobody is alive at all."""
    last = alive.last_heard()
    facts: dict[str, Any] = {**waiting_facts(run), "workers": 0}
    if last is None:
        return Why(WhyCode.NO_WORKER, "No worker is alive, and none ever was." + said_end(run), facts)
    facts |= {"last_worker": last.name, "last_heard_at": iso(last.heartbeat_at)}
    heard = f"{last.name} was the last to be heard of, {span(round(fleet.silence_of(last)))} ago"
    return Why(WhyCode.NO_WORKER, f"No worker is alive: {heard}.{said_end(run)}", facts)


def lacking_worker(run: Run, fleet: Fleet) -> Why | None:
    """Return what the live workers lack to take the run; None where one of them would."""
    serving, knowing = fleet.serving(run.queue), fleet.knowing(run.queue, run.agent)
    facts: dict[str, Any] = {**waiting_facts(run), "workers": len(fleet.alive)}
    if not fleet.alive:
        return no_worker(run, fleet)
    if not serving:
        queues = alive.names_of(fleet.alive, lambda worker: worker.queues)
        text = f"No live worker serves the queue {run.queue}; {count_of(len(fleet.alive), 'worker')} serve {queues}."
        return Why(WhyCode.NO_WORKER_FOR_QUEUE, text.replace("worker serve ", "worker serves ") + said_end(run), facts)
    facts |= {"serving": len(serving)}
    if not knowing:
        who = f"None of the {len(serving)} live workers" if len(serving) > 1 else "The live worker"
        verb = "knows" if len(serving) > 1 else "does not know"
        text = f"{who} of the queue {run.queue} {verb} the agent {run.agent}."
        return Why(WhyCode.UNKNOWN_AGENT, text + said_end(run), {**facts, "agent": run.agent})
    taking = [worker for worker in knowing if not alive.is_draining(worker)]
    if not taking:
        who = "The only worker that could run it is" if len(knowing) == 1 else f"All {len(knowing)} workers for it are"
        text = f"{who} draining and takes nothing more." if len(knowing) == 1 else f"{who} draining and take no more."
        return Why(WhyCode.WORKERS_DRAINING, text + said_end(run), {**facts, "draining": len(knowing)})
    return _silent(run, taking, fleet, facts)


def _silent(run: Run, taking: list[WorkerProcess], fleet: Fleet, facts: dict[str, Any]) -> Why | None:
    silence = min(map(fleet.silence_of, taking))
    if silence <= alive.heard_late():
        return None
    least = alive_seconds()
    who = f"Its only worker {taking[0].name} was" if len(taking) == 1 else f"The {len(taking)} workers for it were"
    text = f"{who} last heard of {span(round(silence))} ago; after {span(least)} they count as lost."
    facts |= {"silent_seconds": round(silence, 1), "lost_at_seconds": least}
    return Why(WhyCode.WORKERS_SILENT, text + said_end(run), facts)


def redis_away(run: Run, fleet: Fleet) -> Why:
    """Return the reason that holds while Redis does not answer."""
    workers = count_of(len(fleet.serving(run.queue)), "worker")
    text = f"Redis does not answer, so {workers} cannot take it. It is relayed by itself once Redis is back."
    return Why(WhyCode.REDIS_AWAY, text + said_end(run), waiting_facts(run))


# -- Redis -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Entry:
    """What Redis says of a queued run's entry. `consumer` is empty while nobody was given it."""

    stream: str
    id: str
    is_there: bool
    consumer: str = ""
    idle_seconds: float = 0.0
    deliveries: int = 0
    more_urgent: int = 0  # entries of higher priorities that wait
    slots_used: int = 0


def of_entry(run: Run, fleet: Fleet, now: dt.datetime) -> Why:
    """Return what is in the way of a queued run for which there is a worker. Raises RedisError."""
    client = broker.brief_client()
    named: Any = client.hget(keys.index(run.queue), str(run.pk))
    fence, _, place = (named or b"").decode().partition("|")
    is_known = fence.isdigit() and int(fence) >= run.fence
    if is_known and place.startswith(PARKED):
        return _parked(run, place.removeprefix(PARKED))
    stream, _, entry_id = place.rpartition("|")
    entry = _read_entry(run, stream, entry_id) if is_known and stream else None
    if entry is None or not entry.is_there:
        return _not_dispatched(run, now)
    if entry.consumer:
        return _delivered(run, entry, fleet)
    return _no_money(run) or _in_line(run, entry, fleet)


def _read_entry(run: Run, stream: str, entry_id: str) -> _Entry:
    urgent = [keys.ready(run.queue, p) for p in keys.PRIORITIES[: keys.PRIORITIES.index(run.priority)]]
    pipe = broker.brief_client().pipeline(transaction=False)
    pipe.xrange(stream, entry_id, entry_id)
    pipe.xpending_range(stream, keys.GROUP, entry_id, entry_id, 1)
    pipe.zcard(keys.slots(run.queue))
    for name in urgent:
        pipe.xlen(name)
        pipe.xpending(name, keys.GROUP)
    replies = pipe.execute(raise_on_error=False)
    there, pending, slots = replies[:3]
    if isinstance(there, Exception):
        raise there
    waiting = 0
    for length, given in zip(replies[3::2], replies[4::2], strict=True):
        # No group, no entry that was given to anybody.
        waiting += int(length) - (0 if isinstance(given, Exception) else int(given["pending"]))
    entry = _Entry(stream, entry_id, bool(there), more_urgent=max(0, waiting), slots_used=int(slots))
    if isinstance(pending, Exception) or not pending:
        return entry
    row = pending[0]
    return _Entry(
        stream,
        entry_id,
        bool(there),
        consumer=row["consumer"].decode(),
        idle_seconds=row["time_since_delivered"] / 1000,
        deliveries=int(row["times_delivered"]),
    )


def _parked(run: Run, limit: str) -> Why:
    """Return which limit on runs at work it waits for, and its turn."""
    pipe = broker.brief_client().pipeline(transaction=False)
    pipe.zcard(keys.limit_places(run.queue, limit))
    pipe.hget(keys.limits(run.queue), limit)
    pipe.zrank(keys.parked(run.queue, limit), str(run.pk))
    used, most, rank = pipe.execute()
    limit_of = "account" if limit.startswith(running.ACCOUNT) else "agent"
    name = run.account.name if limit_of == "account" else limit.removeprefix(running.AGENT)
    before = int(rank or 0)
    facts = {
        **waiting_facts(run),
        "limit": limit_of,
        "name": name,
        "most": None if most is None else int(most),
        "running": int(used),
        "waiting_before": before,
    }
    allowed = "" if most is None else f"{int(most):,} "
    runs = "run" if allowed == "1 " else "runs"
    line = f"{count_of(before, 'run')} before it" if before else "it is the next"
    text = f"The {limit_of} {name} is at its limit of {allowed}{runs} at work at once; of those that wait, {line}."
    return Why(WhyCode.LIMIT_REACHED, text + said_end(run), facts)


def _not_dispatched(run: Run, now: dt.datetime) -> Why:
    waited = max(0.0, (now - run.queued_at).total_seconds())
    text = (
        f"It is queued for {span(waited)} and not in its stream yet: Redis was away, or lost it. "
        f"A sweeper puts it there within about {RELAY_SECONDS} s."
    )
    return Why(WhyCode.NOT_DISPATCHED, text, {**waiting_facts(run), "queued_seconds": round(waited, 1)})


def _delivered(run: Run, entry: _Entry, fleet: Fleet) -> Why:
    """Return to whom it was given that has not claimed it."""
    worker = fleet.by_name.get(entry.consumer)
    stale = 2 * settings.LEASE_SECONDS
    left = max(0, round(stale - entry.idle_seconds))
    facts = {
        **waiting_facts(run),
        "worker": entry.consumer,
        "worker_alive": worker is not None,
        "idle_seconds": round(entry.idle_seconds, 1),
        "deliveries": entry.deliveries,
        "reclaimed_in_seconds": left,
    }
    given = f"It was given to {entry.consumer} {span(round(entry.idle_seconds))} ago"
    if worker is not None and run.agent not in worker.agents:
        return Why(WhyCode.DELIVERED, f"{given}, which does not know its agent and puts it back in seconds.", facts)
    what = "which has not claimed it" if worker is not None else "which is not alive"
    return Why(WhyCode.DELIVERED, f"{given}, {what}: another worker takes it over in {span(left)}.", facts)


# -- money, places -----------------------------------------------------------------------------------------------------
def _no_money(run: Run) -> Why | None:
    """Return that its hold lapsed and its account has no room for a new one: what a claim would find (money 4)."""
    hold = Hold.objects.filter(run_id=run.pk, state=Hold.State.EXPIRED).only("amount", "expires_at").first()
    if hold is None:
        return None
    account = account_now(run.account_id)
    available = account.limit - account.spent - account.held
    if hold.amount <= available:
        return None
    text = (
        f"Its hold lapsed at {moment(hold.expires_at)}, and its account has no room for a new one: "
        "the worker that takes it fails it with quota_exceeded, unless money comes before."
    )
    facts = {**waiting_facts(run), "needed": hold.amount, "available": available, "lapsed_at": iso(hold.expires_at)}
    return Why(WhyCode.HOLD_LAPSED, text, facts)


def _in_line(run: Run, entry: _Entry, fleet: Fleet) -> Why:
    """Return its place in line, and whether a place to run on is free."""
    before, is_more = _before(run, entry)
    taking = [worker for worker in fleet.knowing(run.queue, run.agent) if not alive.is_draining(worker)]
    places = sum(worker.concurrency for worker in taking)
    names = [worker.name for worker in taking]
    at_work = Run.objects.filter(state=RunState.RUNNING, worker__in=names).order_by()[: places + 1].count()
    most = settings.GLOBAL_SLOTS
    facts = {
        **waiting_facts(run),
        "position": None if is_more else before + 1,
        "waiting_before": before,
        "workers": len(taking),
        "places": places,
        "places_used": min(places, at_work),
        "slots_limit": most or None,
        "slots_used": entry.slots_used if most else None,
    }
    line = _line(before, is_more=is_more)
    if most and entry.slots_used >= most:
        text = f"All {most:,} slots of the queue {run.queue} are in use; {line}."
        return Why(WhyCode.SLOTS_BUSY, text + said_end(run), facts)
    if at_work >= places:
        whose = "the worker" if len(taking) == 1 else f"the {len(taking)} workers"
        held = "The one place" if places == 1 else f"All {places:,} places"
        text = f"{held} of {whose} for it {'is' if places == 1 else 'are'} in use; {line}."
        return Why(WhyCode.SLOTS_BUSY, text + said_end(run), facts)
    text = f"{places - at_work:,} of {places:,} places are free and {line}: it begins in a moment."
    return Why(WhyCode.IN_LINE, text, facts)


def _line(before: int, *, is_more: bool) -> str:
    """Return how many are before it, as the end of a sentence."""
    if is_more:
        return f"{'more than' if before >= MANY else 'at least'} {before:,} runs are before it"
    if not before:
        return "it is the next"
    return f"{count_of(before, 'run')} {'is' if before == 1 else 'are'} before it"


def _before(run: Run, entry: _Entry) -> tuple[int, bool]:
    """Return how many runs are before it, and whether it may be more.

    Those of its own priority are counted among its nearest predecessors in the index by age, so that a queue of a
    million costs as much as one of ten thousand.
    """
    nearest = Run.objects.filter(state=RunState.QUEUED, queue=run.queue, queued_at__lt=run.queued_at)
    counts = nearest.order_by("-queued_at")[: MANY + 1].aggregate(
        seen=Count("pk"), like=Count("pk", filter=Q(priority=run.priority))
    )
    before = counts["like"] + entry.more_urgent
    is_more = counts["seen"] > MANY or before > MANY
    return min(before, MANY), is_more
