"""Running a handler in a process of its own: the worker's side of `isolation="process"` (docs/protocol.md 11).

One process an attempt, under a warden (warden.py) that ends it and all it started when it is told to, or when the
worker dies. A thread of ours forks the warden, does to the attempt's context what the handler says, and stays until
all of it is gone: the kernel ties the warden's life to it. It reads no further while a batch of events waits to be
stored, so that a handler which emits without end is blocked by its pipe and fills no memory here.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
from django.db import connections

from runs.agents import AgentSpec
from workers.context import Context
from workers.dialogue import Dialogue, HandlerFailed, Stopped
from workers.frames import READ_BYTES, Body, BrokenFrame, Reader, encode
from workers.output import Output

log = structlog.get_logger(__name__)
WARDEN = Path(__file__).with_name("warden.py")
ROOT = Path(__file__).resolve().parent.parent
EXIT_SECONDS = 2.0  # for a process to end by itself once its handler has
KILL_SECONDS = 5.0  # for a warden to have killed everything; then it is killed itself
LOST_GRACE_SECONDS = 1.0  # for a run whose lease could not be renewed
END_SECONDS = KILL_SECONDS + 2.0  # what a stop may take on top of the handler's grace


class ProcessDied(RuntimeError):
    """The handler's process ended before its handler did. The message says how, and the end of its output."""


async def run_isolated(spec: AgentSpec, ctx: Context, run_input: Any, grace: Callable[[], float]) -> Any:
    """Run the handler in a process of its own and return its result, a JSON value.

    When cancelled, the handler is asked to stop, and after `grace()` seconds its process is killed with all it
    started; then CancelledError is raised, at most END_SECONDS later. Raises HandlerFailed, ProcessDied.
    """
    process = HandlerProcess(spec, ctx, run_input)
    try:
        return await asyncio.shield(process.ended)
    except asyncio.CancelledError:
        process.ask_to_stop()
        seconds = grace()
        await asyncio.wait({process.ended}, timeout=seconds)
        if not process.ended.done():
            log.warning("handler.killed", run_id=ctx.run_id, agent=spec.name, grace_seconds=seconds)
            process.kill()
            await asyncio.wait({process.ended}, timeout=END_SECONDS)
        if process.ended.done() and isinstance(process.ended.exception(), HandlerFailed | None):
            return process.ended.result()
        raise
    except Stopped:
        raise asyncio.CancelledError from None
    finally:
        process.kill()


class HandlerProcess:
    """One process and the thread that keeps it. `ended` becomes the handler's result, or what it raised."""

    def __init__(self, spec: AgentSpec, ctx: Context, run_input: Any) -> None:
        self._spec, self._ctx, self._input = spec, ctx, run_input
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Any] = self._loop.create_future()
        self.ended.add_done_callback(_look_at)
        self._dialogue = Dialogue(ctx, self._wait)
        self._output = Output(ctx.run_id)
        self._leash, self._lifeline = os.pipe()  # the warden's end of it, and ours
        self._bell, self._ring = os.pipe()
        self._lock = threading.Lock()  # of the ends that the loop uses
        self._closed = False
        self._stopping = False
        self._deadline: float | None = None  # when the thread waits no longer for the end that is due
        self._broken = ""  # what the process did that no process of a handler does
        self._killed: concurrent.futures.Future[None] = concurrent.futures.Future()
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(self._work,), name=f"isolated {ctx.run_id}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._close()
            raise

    # -- for the event loop: nothing here blocks -------------------------------------------------------------------
    def ask_to_stop(self) -> None:
        """Tell the handler: an async one is cancelled, a sync one sees `ctx.cancelled`."""
        with self._lock:
            if not self._closed:
                self._stopping = True
                os.write(self._ring, b"!")

    def kill(self) -> None:
        """Have the warden kill everything. Repeating it changes nothing."""
        with self._lock:
            if not (self._closed or self._killed.done()):
                self._killed.set_result(None)
                os.close(self._lifeline)
                os.write(self._ring, b"!")

    # -- the thread ------------------------------------------------------------------------------------------------
    def _work(self) -> None:
        value: Any = None
        problem: Exception | None = None
        try:
            value = self._keep()
        except (HandlerFailed, ProcessDied, Stopped) as error:
            problem = error
        except Exception as error:
            log.exception("isolation.broke", run_id=self._ctx.run_id)
            problem = ProcessDied(f"The process of the handler could not be kept: {error}")
        finally:
            self._close()
            connections.close_all()  # looking up prices may have opened one
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(_settle, self.ended, value, problem)

    def _keep(self) -> Any:
        """Start the process, listen until all is gone, and return the handler's result."""
        link, theirs = socket.socketpair()
        output, written = os.pipe()
        with link, theirs, open(output, "rb", buffering=0) as printed:
            try:
                warden = self._launch(theirs.fileno(), written)
            finally:
                os.close(written)
                theirs.close()
            self._listen(link, printed.fileno())
            try:
                code = warden.wait(KILL_SECONDS)
            except subprocess.TimeoutExpired:
                log.warning("warden.killed", run_id=self._ctx.run_id)
                warden.kill()
                code = warden.wait()
        if self._dialogue.ended and not self._broken:
            return self._dialogue.result()
        if self._stopping or (self._killed.done() and not self._broken):
            raise Stopped
        raise ProcessDied(_describe(self._broken, code, self._output.tail()))

    def _launch(self, link: int, written: int) -> "subprocess.Popen[bytes]":
        warden = [sys.executable, "-I", "-S", str(WARDEN), str(os.getpid()), str(self._leash), str(link)]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(  # noqa: S603  our own command
            [*warden, sys.executable, "-m", "workers.isolated", str(link)],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            pass_fds=(self._leash, link),
            process_group=0,  # Ctrl+C reaches the worker alone
        )

    def _listen(self, link: socket.socket, printed: int) -> None:
        """Hear and answer until the output ends: whatever could write it is gone then."""
        reader = Reader()
        with selectors.DefaultSelector() as selector:
            for end in (link.fileno(), printed, self._bell):
                selector.register(end, selectors.EVENT_READ)
            self._say(link, encode(self._first_words()))
            while True:
                patience = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
                ready = {key.fd for key, _ in selector.select(patience)}
                if not ready and self._give_up():
                    return
                if printed in ready and not self._hear_output(printed):
                    return
                if self._bell in ready:
                    self._heed_the_loop(link)
                if link.fileno() in ready and not self._hear(link, reader):
                    selector.unregister(link)
                    self._deadline = time.monotonic() + EXIT_SECONDS

    def _first_words(self) -> Body:
        identity = asdict(self._ctx.identity) | {"run_id": self._ctx.run_id}
        return {
            "identity": identity,
            "module": str(getattr(self._spec.handler, "__module__", "")),
            "input": self._input,
            "path": sys.path,
            "python_path": os.environ.get("PYTHONPATH"),
        }

    def _hear(self, link: socket.socket, reader: Reader) -> bool:
        """Do what the handler says. Returns whether it may say more."""
        try:
            block = link.recv(READ_BYTES)
            for body, data in reader.feed(block):
                answer = self._dialogue.take(body, data)
                if answer is not None:
                    link.sendall(answer)
                if self._dialogue.ended:
                    return False
        except (Stopped, OSError):  # killed while it waited for something, or gone
            return False
        except BrokenFrame as error:
            self._broken = f"sent {error}"
            self.kill()
            return False
        return bool(block)

    def _hear_output(self, printed: int) -> bool:
        block = os.read(printed, READ_BYTES)
        self._output.feed(block)
        return bool(block)

    def _heed_the_loop(self, link: socket.socket) -> None:
        os.read(self._bell, READ_BYTES)
        if self._killed.done():
            self._deadline = time.monotonic() + KILL_SECONDS
        else:
            self._say(link, encode({"do": "stop"}))

    def _give_up(self) -> bool:
        """The time is over in which all should have ended. Returns whether there is nothing left to try here."""
        if self._killed.done():
            return True
        if not self._dialogue.ended:
            self._broken = "closed its connection to the worker"
        self.kill()
        return False

    def _say(self, link: socket.socket, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone: its end is heard next
            link.sendall(message)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in the event loop and return its result. Raises Stopped when the process is killed meanwhile.

        It goes on by itself then: half a write of the events must not be followed by another.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise Stopped from None
        concurrent.futures.wait({future, self._killed}, return_when=concurrent.futures.FIRST_COMPLETED)
        if not future.done():
            raise Stopped
        return future.result()

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            for end in (self._leash, self._bell, self._ring):
                os.close(end)
            if not self._killed.done():
                os.close(self._lifeline)


def _settle(ended: "asyncio.Future[Any]", value: Any, problem: Exception | None) -> None:
    if problem is None:
        ended.set_result(value)
    else:
        ended.set_exception(problem)


def _look_at(ended: "asyncio.Future[Any]") -> None:
    """Take the exception, so that the loop does not complain when nobody waits for it any more."""
    if not ended.cancelled():
        ended.exception()


def _describe(broken: str, code: int, tail: str) -> str:
    if broken:
        what = broken
    elif code < 0:
        name = signal.Signals(-code).name
        what = f"was killed by {name}" + (" (the system does so when memory runs out)" if name == "SIGKILL" else "")
    else:
        what = f"ended with exit code {code} before the handler did"
    return f"The handler's process {what}." + (f" Its last output:\n{tail}" if tail else "")
