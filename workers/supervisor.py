"""Child processes of one machine: started in order, watched, restarted with back-off, stopped in order.

One thread on purpose: the kernel ties a child's life to the thread that forked it (see tether.py).
"""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from workers.child_logs import ChildLog, OwnStderr, write_to_stderr

TETHER = Path(__file__).with_name("tether.py")
PASS_SECONDS = 0.2
BACKOFF_MAX_SECONDS = 30.0
DOUBLINGS_MAX = 10  # by then the back-off is at its most, and a float has its limits too
SETTLED_SECONDS = 60.0  # a child that lived this long starts its back-off anew
RELOAD_GRACE_SECONDS = 3.0
DRAIN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
FIRST_WORD_SECONDS, WORD_SECONDS = 2.0, 15.0  # when the operator is told what a stop waits for


class ChildFailed(Exception):
    """A child ended, or did not become ready in time. The message says which, and the end of its log."""


class Interrupted(Exception):
    """A signal asked for the end while something was being waited for."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start and how to treat it. `ready(pid)` is polled; `stop_rank` orders the stop, lowest first."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    stop_rank: int
    ready: Callable[[int], bool] = lambda _pid: True
    ready_seconds: float = 60.0
    stop_seconds: float = 10.0
    death_signal: signal.Signals = signal.SIGKILL  # what the child gets when the supervisor is killed
    pass_fds: tuple[int, ...] = ()
    is_vital: bool = False  # dying twice in a minute ends the supervisor
    may_end: bool = False  # exit code 0 is an end that somebody asked it for: it is not started again


@dataclass
class Child:
    """One supervised process through its restarts."""

    spec: ChildSpec
    log: ChildLog | OwnStderr
    process: subprocess.Popen[bytes]
    started_at: float
    failures: int = 0
    died_at: list[float] = field(default_factory=list)
    restart_at: float | None = None  # inf: never
    ended: bool = False  # its end was noted
    kill_at: float | None = None  # set while it is being reloaded

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def describe_end(self) -> str:
        code = self.process.returncode
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"{self.spec.name} (pid {self.process.pid}) ended with {how}"


@dataclass
class Errand:
    """A program that is run when it is wanted, one at a time."""

    spec: ChildSpec
    is_wanted: bool = False
    child: Child | None = None

    def kill(self) -> None:
        self.is_wanted = False
        if self.child is not None and self.child.alive:
            self.child.process.kill()
            self.child.process.wait()


class Signals:
    """SIGTERM, SIGINT and SIGHUP as a count; SIGCHLD only ends a wait early. A pipe, because a handler may not lock."""

    def __init__(self) -> None:
        self.count = 0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        os.set_blocking(self._reader, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, self._wake)

    def wait(self, seconds: float) -> None:
        select.select([self._reader], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._wake(number, frame)

    def _wake(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"!")


class Supervisor:
    """Owns the children. Without a folder for logs they write to the supervisor's own stdout and stderr.

    `say` takes one sentence for the operator; `changed` is called after a restart; `reaped` after each end of a child,
    with it.
    """

    def __init__(
        self,
        logs: Path | None,
        *,
        cwd: Path,
        say: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
        reaped: Callable[[Child], None] = lambda _child: None,
    ) -> None:
        self.children: dict[str, Child] = {}
        self.signals = Signals()
        self._errands: dict[str, Errand] = {}
        self._logs = logs
        self._cwd = cwd
        self._say = say
        self._changed = changed
        self._reaped = reaped

    def pids(self) -> dict[str, int]:
        return {name: child.process.pid for name, child in self.children.items() if child.alive}

    def names_in_stop_order(self) -> list[str]:
        """Return the children that are alive, as `stop` goes through them."""
        alive = [child for child in self.children.values() if child.alive]
        return [child.spec.name for child in sorted(alive, key=lambda child: child.spec.stop_rank)]

    # -- start -------------------------------------------------------------------------------------
    def spawn(self, spec: ChildSpec) -> Child:
        """Start a child without waiting for it."""
        log = self._log(spec)
        child = Child(spec, log, self._popen(spec, log), time.monotonic())
        self.children[spec.name] = child
        return child

    def await_ready(self, *names: str) -> None:
        """Wait until the children are ready. Raises ChildFailed, Interrupted."""
        for name in names:
            child = self.children[name]
            deadline = child.started_at + child.spec.ready_seconds
            for _ in self._passes():
                self._require([name])
                if child.spec.ready(child.process.pid):
                    break
                if time.monotonic() > deadline:
                    raise ChildFailed(
                        f"{name} was not ready after {child.spec.ready_seconds:.0f} s:\n{child.log.tail()}"
                    )

    def begin(self, spec: ChildSpec) -> Child:
        """Start a helper program that is spoken to by lines and not kept alive: see `ask`."""
        log = self._log(spec)
        process = self._popen(spec, log, is_dialogue=True)
        return Child(spec, log, process, time.monotonic())

    def ask(self, program: Child, question: str, *, needs: Iterable[str] = ()) -> str:
        """Send a line to the program and return the line it answers.

        Raises ChildFailed if the program, or a child it `needs`, ends before that; Interrupted.
        """
        stdin, stdout = program.process.stdin, program.process.stdout
        assert stdin is not None  # noqa: S101  begun as a dialogue
        assert stdout is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):
            os.write(stdin.fileno(), f"{question}\n".encode())
        answer = b""
        for _ in self._passes():
            program.log.pump(write_to_stderr)
            while select.select([stdout], [], [], 0)[0] and (block := os.read(stdout.fileno(), 4096)):
                answer += block
            if answer.endswith(b"\n"):
                return answer.decode()
            if not program.alive:
                raise ChildFailed(f"{program.describe_end()}:\n{program.log.tail()}")
            self._require(needs)
        raise Interrupted

    def _require(self, names: Iterable[str]) -> None:
        for child in map(self.children.__getitem__, names):
            if not child.alive:
                raise ChildFailed(f"{child.describe_end()} before it was ready:\n{child.log.tail()}")

    def _passes(self) -> Iterator[None]:
        while True:
            yield
            self.signals.wait(PASS_SECONDS / 4)
            self._pump()
            if self.signals.count:
                raise Interrupted

    def _log(self, spec: ChildSpec) -> ChildLog | OwnStderr:
        return OwnStderr() if self._logs is None else ChildLog(self._logs / f"{spec.name}.log", spec.name)

    def _popen(
        self, spec: ChildSpec, log: ChildLog | OwnStderr, *, is_dialogue: bool = False
    ) -> subprocess.Popen[bytes]:
        tether = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), str(int(spec.death_signal))]
        with log.open() as file:
            return subprocess.Popen(  # noqa: S603  our own commands
                [*tether, *spec.command],
                cwd=self._cwd,
                env=dict(spec.env),
                stdin=subprocess.PIPE if is_dialogue else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_dialogue else file,
                stderr=file,
                pass_fds=spec.pass_fds,
                process_group=0,  # Ctrl+C reaches the supervisor alone, which stops them in order
            )

    # -- watch -------------------------------------------------------------------------------------
    def watch(self, on_pass: Callable[[], None] = lambda: None) -> None:
        """Keep the children alive until a signal asks for the end, or none is left that is to live.

        Raises ChildFailed for a vital child.
        """
        while not self.signals.count and any(child.restart_at != math.inf for child in self.children.values()):
            self.signals.wait(PASS_SECONDS)
            self._pump()
            for child in self.children.values():
                self._tend(child)
            for errand in self._errands.values():
                self._go(errand)
            on_pass()

    def send(self, spec: ChildSpec) -> None:
        """Have a program run once, soon, beside the children; one that is under way is run again after its end."""
        self._errands.setdefault(spec.name, Errand(spec)).is_wanted = True

    def reload(self, names: Iterable[str]) -> None:
        """Ask the children to end; `watch` starts them again at once, and kills the slow after a grace time."""
        for name in names:
            child = self.children[name]
            if child.alive and child.kill_at is None:
                child.kill_at = time.monotonic() + RELOAD_GRACE_SECONDS
                child.process.terminate()

    def _tend(self, child: Child) -> None:
        now = time.monotonic()
        if child.alive:
            if child.kill_at is not None and now > child.kill_at:
                child.process.kill()
            return
        if child.restart_at is None:
            child.restart_at = now if child.kill_at is not None else self._bury(child, now)
            self._note_end(child)
        if now >= child.restart_at:
            child.process = self._popen(child.spec, child.log)
            child.started_at, child.restart_at, child.kill_at, child.ended = now, None, None, False
            self._say(f"{child.spec.name} started again (pid {child.process.pid}).")
            self._changed()

    def _bury(self, child: Child, now: float) -> float:
        """Note an end we did not ask for and return the time of the restart. Raises ChildFailed."""
        if child.spec.may_end and child.process.returncode == 0:
            self._say(f"{child.describe_end()}: it was asked to, and stays away.")
            return math.inf
        child.failures = 1 if now - child.started_at > SETTLED_SECONDS else child.failures + 1
        child.died_at = [at for at in child.died_at if now - at < SETTLED_SECONDS] + [now]
        if child.spec.is_vital and len(child.died_at) > 1:
            raise ChildFailed(f"{child.describe_end()}, the second time in a minute:\n{child.log.tail()}")
        wait = min(BACKOFF_MAX_SECONDS, 2.0 ** min(child.failures - 1, DOUBLINGS_MAX))
        self._say(f"{child.describe_end()}; it starts again in {wait:.0f} s.{child.log.where}")
        return now + wait

    def _note_end(self, child: Child) -> None:
        if not child.ended and not child.alive:
            child.ended = True
            self._reaped(child)

    def _go(self, errand: Errand) -> None:
        if errand.is_wanted and (errand.child is None or not errand.child.alive):
            errand.is_wanted = False
            log = errand.child.log if errand.child is not None else self._log(errand.spec)
            errand.child = Child(errand.spec, log, self._popen(errand.spec, log), time.monotonic())

    # -- stop --------------------------------------------------------------------------------------
    def stop(self, *, at_most: float | None = None) -> None:
        """Stop by rank with SIGTERM, waiting for each rank. A further signal kills everything at once."""
        asked = min(1, self.signals.count)
        for errand in self._errands.values():
            errand.kill()
        for rank in sorted({child.spec.stop_rank for child in self.children.values()}):
            members = [child for child in self.children.values() if child.spec.stop_rank == rank and child.alive]
            for child in members:
                child.process.terminate()
                child.process.send_signal(signal.SIGCONT)
            for child in members:
                grace = child.spec.stop_seconds if at_most is None else min(at_most, child.spec.stop_seconds)
                self._await_end(child, time.monotonic() + grace, asked)
        self._pump()

    def drain(self) -> bool:
        """Pass each signal on and wait for the children, however long they take. Returns whether all ended well.

        The first asks them to drain, the second (SIGINT, see `--supervised`) to stop at once, the third kills.
        """
        passed, asked = 0, [child for child in self.children.values() if child.alive]
        while alive := [child for child in asked if child.alive]:
            if self.signals.count > passed:
                for child in alive:
                    child.process.send_signal(DRAIN_SIGNALS[min(passed, len(DRAIN_SIGNALS) - 1)])
                    child.process.send_signal(signal.SIGCONT)
                passed += 1
            else:
                self.signals.wait(PASS_SECONDS)
            for child in asked:
                self._note_end(child)
        for child in asked:
            self._note_end(child)
        # One that was starting had no handler yet, and nothing to drain.
        return all(-child.process.returncode in {0, signal.SIGTERM, signal.SIGINT} for child in asked)

    def _await_end(self, child: Child, deadline: float, asked: int) -> None:
        next_word = time.monotonic() + FIRST_WORD_SECONDS
        while child.alive and (now := time.monotonic()) < deadline:
            if self.signals.count > asked:
                break
            if now > next_word:
                self._say(f"Waiting for {child.spec.name}, at most {deadline - now:.0f} s more.")
                next_word = now + WORD_SECONDS
            self.signals.wait(PASS_SECONDS / 4)
            self._pump()
        if child.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
            self._say(f"{child.spec.name} did not end in time and was killed.")

    def _pump(self) -> None:
        sent = (errand.child for errand in self._errands.values() if errand.child is not None)
        for child in (*self.children.values(), *sent):
            child.log.rotate()
            child.log.pump(write_to_stderr)
