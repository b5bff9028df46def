"""Child processes of one machine: started in order, watched, restarted with back-off, stopped in order.

One thread on purpose: the kernel ties a child's life to the thread that forked it (see tether.py).
"""

import contextlib
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

from workers.child_logs import ChildLog, write_to_stderr

TETHER = Path(__file__).with_name("tether.py")
PASS_SECONDS = 0.2
BACKOFF_MAX_SECONDS = 30.0
SETTLED_SECONDS = 60.0  # a child that lived this long starts its back-off anew
RELOAD_GRACE_SECONDS = 3.0
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


@dataclass
class Child:
    """One supervised process through its restarts."""

    spec: ChildSpec
    log: ChildLog
    process: subprocess.Popen[bytes]
    started_at: float
    failures: int = 0
    died_at: list[float] = field(default_factory=list)
    restart_at: float | None = None
    kill_at: float | None = None  # set while it is being reloaded

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def describe_end(self) -> str:
        code = self.process.returncode
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"{self.spec.name} (pid {self.process.pid}) ended with {how}"


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
    """Owns the children. `say` takes one sentence for the operator; `changed` is called after a restart."""

    def __init__(
        self, logs: Path, *, cwd: Path, say: Callable[[str], None], changed: Callable[[], None] = lambda: None
    ) -> None:
        self.children: dict[str, Child] = {}
        self.signals = Signals()
        self._logs = logs
        self._cwd = cwd
        self._say = say
        self._changed = changed

    def pids(self) -> dict[str, int]:
        return {name: child.process.pid for name, child in self.children.items() if child.alive}

    def names_in_stop_order(self) -> list[str]:
        """Return the children that are alive, as `stop` goes through them."""
        alive = [child for child in self.children.values() if child.alive]
        return [child.spec.name for child in sorted(alive, key=lambda child: child.spec.stop_rank)]

    # -- start -------------------------------------------------------------------------------------
    def spawn(self, spec: ChildSpec) -> Child:
        """Start a child without waiting for it."""
        log = ChildLog(self._logs / f"{spec.name}.log", spec.name)
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
        log = ChildLog(self._logs / f"{spec.name}.log", spec.name)
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

    def _popen(self, spec: ChildSpec, log: ChildLog, *, is_dialogue: bool = False) -> subprocess.Popen[bytes]:
        tether = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), str(int(spec.death_signal))]
        log.path.parent.mkdir(parents=True, exist_ok=True)
        with log.path.open("ab") as file:
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
        """Keep the children alive until a signal asks for the end. Raises ChildFailed for a vital child."""
        while not self.signals.count:
            self.signals.wait(PASS_SECONDS)
            self._pump()
            for child in self.children.values():
                self._tend(child)
            on_pass()

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
        if now >= child.restart_at:
            child.process = self._popen(child.spec, child.log)
            child.started_at, child.restart_at, child.kill_at = now, None, None
            self._say(f"{child.spec.name} started again (pid {child.process.pid}).")
            self._changed()

    def _bury(self, child: Child, now: float) -> float:
        """Note a death nobody asked for and return the time of the restart. Raises ChildFailed."""
        child.failures = 1 if now - child.started_at > SETTLED_SECONDS else child.failures + 1
        child.died_at = [at for at in child.died_at if now - at < SETTLED_SECONDS] + [now]
        if child.spec.is_vital and len(child.died_at) > 1:
            raise ChildFailed(f"{child.describe_end()}, the second time in a minute:\n{child.log.tail()}")
        wait = min(BACKOFF_MAX_SECONDS, 2.0 ** (child.failures - 1))
        self._say(f"{child.describe_end()}; it starts again in {wait:.0f} s. Its log: {child.log.path}")
        return now + wait

    # -- stop --------------------------------------------------------------------------------------
    def stop(self, *, at_most: float | None = None) -> None:
        """Stop by rank with SIGTERM, waiting for each rank. A further signal kills everything at once."""
        asked = min(1, self.signals.count)
        for rank in sorted({child.spec.stop_rank for child in self.children.values()}):
            members = [child for child in self.children.values() if child.spec.stop_rank == rank and child.alive]
            for child in members:
                child.process.terminate()
                child.process.send_signal(signal.SIGCONT)
            for child in members:
                grace = child.spec.stop_seconds if at_most is None else min(at_most, child.spec.stop_seconds)
                self._await_end(child, time.monotonic() + grace, asked)
        self._pump()

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
        for child in self.children.values():
            child.log.rotate()
            child.log.pump(write_to_stderr)
