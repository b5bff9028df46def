"""`runworker_streams --processes N`: one parent that keeps N workers alive and repairs what a dead one left.

The parent does no work: no event loop and, but for the repairs' thread, no store that it could wait for.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog
from django.conf import settings

from workers.config import WorkerConfig
from workers.repair import Repairs
from workers.supervisor import ChildSpec, Supervisor

log = structlog.get_logger(__name__)
LAST_REPAIR_SECONDS = 10.0


def run_fleet(configs: Sequence[WorkerConfig], arguments: Sequence[str]) -> int:
    """Run a worker for each configuration until a signal; `arguments` go to all of them. Returns the exit code."""
    repairs = Repairs(actor="supervisor")
    supervisor = Supervisor(None, cwd=Path.cwd(), say=_say, reaped=lambda _child: repairs.want())
    repairs.start()
    for config in configs:
        supervisor.spawn(_spec(config, arguments))
    log.info("supervisor.started", workers=supervisor.pids())
    supervisor.watch()
    log.info("supervisor.draining", workers=supervisor.pids())
    clean = supervisor.drain()
    repairs.finish(LAST_REPAIR_SECONDS)
    log.info("supervisor.stopped", clean=clean)
    return 0 if clean else 1


def _spec(config: WorkerConfig, arguments: Sequence[str]) -> ChildSpec:
    manage = str(settings.BASE_DIR / "manage.py")
    own = ["--supervised", f"--name={config.name}", f"--port={config.port}"]
    return ChildSpec(
        name=config.name,
        command=[sys.executable, manage, "runworker_streams", *own, *arguments],
        env=os.environ,
        stop_rank=0,
        death_signal=signal.SIGTERM,  # without a parent they drain
        may_end=True,
    )


def _say(sentence: str) -> None:
    log.warning("supervisor.says", sentence=sentence)
