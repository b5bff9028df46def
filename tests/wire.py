"""A wire to a Redis server that can be slow, be cut, or deliver no more answers to those who ask certain things."""

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Coroutine
from typing import Any

from tests.servers import Server, short_folder

BLOCK = 65536
WAIT_SECONDS = 30.0


class Wire:
    """Listens on a Unix socket at `url` and passes every connection on to the server's, in a thread of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server.url.removeprefix("unix://")
        self._folder = short_folder("wire")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire")
        self._calls: set[_Call] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listener: asyncio.Server | None = None
        self.delay = 0.0  # seconds by which each block of an answer is late
        self.deaf_to: tuple[bytes, ...] = ()  # who has said one of these words gets no answer any more

    @property
    def url(self) -> str:
        return f"unix://{self._folder}/s.sock"

    def __enter__(self) -> "Wire":
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def cut(self) -> None:
        """End every connection there is. New ones are welcome."""
        self._do(self._cut())

    def connections(self) -> int:
        return len(self._calls)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, f"{self._folder}/s.sock", backlog=512)

    async def _cut(self) -> None:
        for call in list(self._calls):
            call.end()

    async def _end(self) -> None:
        assert self._listener is not None
        self._listener.close()
        await self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            server = await asyncio.open_unix_connection(self._server)
        except OSError:
            writer.transport.abort()
            return
        call = _Call(self, (reader, writer), server)
        self._calls.add(call)
        try:
            await asyncio.gather(call.ask(), call.answer())
        finally:
            self._calls.discard(call)


End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Call:
    """One connection, both ways."""

    def __init__(self, wire: Wire, client: End, server: End) -> None:
        self._wire = wire
        self._client = client
        self._server = server
        self._is_deaf = False

    async def ask(self) -> None:
        with contextlib.suppress(OSError):
            while block := await self._client[0].read(BLOCK):
                self._is_deaf = self._is_deaf or any(word in block for word in self._wire.deaf_to)
                self._server[1].write(block)
                await self._server[1].drain()
        self.end()

    async def answer(self) -> None:
        with contextlib.suppress(OSError):
            while block := await self._server[0].read(BLOCK):
                await self._late()
                if not self._is_deaf:
                    self._client[1].write(block)
                    await self._client[1].drain()
        self.end()

    async def _late(self) -> None:
        if self._wire.delay:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wire.delay):
                    await asyncio.Event().wait()  # which nobody sets

    def end(self) -> None:
        for _, writer in (self._client, self._server):
            writer.transport.abort()
