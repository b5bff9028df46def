"""The web's `/metrics`: what this process counted, and gauges of the whole queue, read while Prometheus asks.

The gauges come from the database and from Redis, so every web process shows the same: take `max`, not `sum`. A store
that does not answer costs its own series and never the scrape; `agentops_scrape_errors` counts it.
"""

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from django.conf import settings
from django.db import connection
from django.db.models import Aggregate, Count, Min, Q
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django_prometheus.exports import ExportToDjangoView
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from runs import broker, keys
from runs.controls import queue_names
from runs.models import Maintenance, QueuePause, Run
from runs.states import RunState
from workers.bulk.operations import LIVE
from workers.cases import live_cases
from workers.dead_letters import in_state
from workers.models import BulkOperation, DeadLetter
from workers.selectors import list_workers

log = structlog.get_logger(__name__)
FRESH_SECONDS = 5.0
PATIENCE_SECONDS = 4.0  # below Prometheus's own time-out of 10 s
BACKLOG_CAP = 100_000  # rows of a queue; more are not counted
LETTERS_CAP = 10_000

scrape_errors = Counter("agentops_scrape_errors", "Scrapes that lack the series of a store", ["source"])
# Threads of its own: the one thread that sync code of all requests shares may be the one that hangs.
_threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="scrape")

Families = Sequence[GaugeMetricFamily]


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"agentops_{name}", text, labels=labels)


def read_redis() -> Families:
    """Return entries that wait and that are delivered, and slots: one round trip. Raises RedisError."""
    waiting = _family("ready", "Entries on the ready stream that no worker has", "queue", "priority")
    taken = _family("in_flight", "Entries that workers have and did not acknowledge yet", "queue", "priority")
    used = _family("slots_used", "Global slots in use", "queue")
    most = _family("slots_limit", "Global slots a queue has, where their number is limited", "queue")
    pipe = broker.client().pipeline(transaction=False)
    queues = queue_names()
    for queue in queues:
        pipe.zcard(keys.slots(queue))
        for stream in keys.ready_streams(queue):
            pipe.xlen(stream)
            pipe.xpending(stream, keys.GROUP)
    replies = iter(pipe.execute(raise_on_error=False))
    for queue in queues:
        used.add_metric([queue], _sound(next(replies)))
        if settings.GLOBAL_SLOTS:
            most.add_metric([queue], settings.GLOBAL_SLOTS)
        for priority in keys.PRIORITIES:
            length, pending = _sound(next(replies)), next(replies)
            # A stream without a group is one that no worker has read yet.
            owned = 0 if isinstance(pending, Exception) else pending["pending"]
            waiting.add_metric([queue, priority], max(0, length - owned))
            taken.add_metric([queue, priority], owned)
    return waiting, taken, used, most


def _sound(reply: int | Exception) -> int:
    if isinstance(reply, Exception):
        raise reply
    return int(reply)


def read_database() -> Families:
    """Return backlog, oldest waits, live workers and open dead letters: a statement each, bounded, and one a queue."""
    backlog = _family("backlog", "Queued runs", "queue", "priority")
    oldest = _family("oldest_wait_seconds", "Wait of who waits longest; 0 where none does", "queue", "priority")
    letters = _family("dead_letters_open", "Dead letters that wait for a person", "reason")
    alive = _family("workers_alive", "Workers whose heart beats")
    cases = _family("cases_open", "Cases that nobody has resolved or chosen to ignore")
    paused = _family("queue_paused", "1 while no worker takes from the queue", "queue")
    bulk = _family("bulk_operations", "Bulk operations that are not over", "state")
    closed = _family("maintenance", "1 while no new runs are accepted")
    now = timezone.now()
    of_each: dict[str, Aggregate] = {f"count_{name}": Count("pk", filter=Q(priority=name)) for name in keys.PRIORITIES}
    of_each |= {f"since_{name}": Min("queued_at", filter=Q(priority=name)) for name in keys.PRIORITIES}
    for queue in queue_names():
        waiting = Run.objects.filter(state=RunState.QUEUED, queue=queue).order_by("queued_at")
        found = waiting[:BACKLOG_CAP].aggregate(**of_each)
        for name in keys.PRIORITIES:
            since = found[f"since_{name}"]
            backlog.add_metric([queue, name], found[f"count_{name}"])
            oldest.add_metric([queue, name], 0.0 if since is None else max(0.0, (now - since).total_seconds()))
    alive.add_metric([], list_workers(alive=True).count())
    rows = in_state(DeadLetter.objects.all(), DeadLetter.State.OPEN).order_by("-pk")
    numbers = Tally(rows.values_list("reason", flat=True)[:LETTERS_CAP])
    for reason in DeadLetter.Reason.values:
        letters.add_metric([reason], numbers[reason])
    pauses = list(QueuePause.objects.order_by("queue").values_list("queue", flat=True))
    for queue in dict.fromkeys([*queue_names(), *pauses]):
        paused.add_metric([queue], queue in pauses)
    cases.add_metric([], live_cases().order_by()[:LETTERS_CAP].count())
    live = BulkOperation.objects.filter(state__in=[str(one) for one in LIVE]).order_by()
    states = Tally(live.values_list("state", flat=True)[:LETTERS_CAP])
    for one in LIVE:
        bulk.add_metric([str(one)], states[str(one)])
    closed.add_metric([], Maintenance.objects.exists())
    return backlog, oldest, alive, letters, cases, paused, bulk, closed


class Source:
    """A store's gauges: read by one thread at a time however many scrapes ask, and kept for a moment."""

    def __init__(self, name: str, read: Callable[[], Families]) -> None:
        self.name = name
        self._read = read
        self._reading: Future[Families] | None = None
        self._read_at = float("-inf")
        scrape_errors.labels(name)

    def forget(self) -> None:
        self._reading = None

    async def families(self) -> Families:
        """Return the gauges; none where the store does not answer in time."""
        reading = self._reading
        if reading is None or (reading.done() and time.monotonic() - self._read_at > FRESH_SECONDS):
            reading = self._reading = _threads.submit(self._look)
        try:
            # Shielded: a reading that hangs is not sent twice, the next scrape waits for the same one.
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(reading)), PATIENCE_SECONDS)
        except Exception as error:  # noqa: BLE001  whatever a driver raises costs these series, not the scrape
            if reading.done():
                self._reading = None
            scrape_errors.labels(self.name).inc()
            log.warning("metrics.left_out", source=self.name, error=str(error) or type(error).__name__)
            return ()

    def _look(self) -> Families:
        try:
            return self._read()
        finally:
            self._read_at = time.monotonic()
            connection.close()  # the thread's own: it must not outlive a server that restarted


SOURCES = (Source("redis", read_redis), Source("database", read_database))


class _Now(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._families


async def metrics(request: HttpRequest) -> HttpResponse:
    """`GET /metrics`: 200 whatever is away."""
    found = await asyncio.gather(*(source.families() for source in SOURCES))
    registry = CollectorRegistry()
    registry.register(_Now([family for families in found for family in families]))
    loop = asyncio.get_running_loop()
    counted = await loop.run_in_executor(_threads, ExportToDjangoView, request)
    return HttpResponse(counted.content + generate_latest(registry), content_type=counted["Content-Type"])
