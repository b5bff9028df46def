"""A TCP proxy in front of a server: it can refuse and cut connections, hold bytes back, and let them through late."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

BLOCK = 65536


class Proxy:
    """Listens on a loopback port for a server on another. Runs in a thread of its own; all methods are thread-safe."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._delay = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy {port}", daemon=True)

    def start(self) -> None:
        """Listen. Raises OSError where the port is taken."""
        self._thread.start()
        self._do(self._listen())

    def cut(self) -> None:
        """Reset every connection, and every new one, until `heal`."""
        self._refusing = True
        self._do(self._abort())

    def stall(self) -> None:
        """Let nothing through in either direction until `heal`; the connections stay."""
        self._do(self._hold())

    def slow(self, seconds: float) -> None:
        """Let every block through late until `heal`."""
        self._delay = seconds

    def heal(self) -> None:
        """Be a wire again."""
        self._refusing, self._delay = False, 0.0
        self._loop.call_soon_threadsafe(self._flowing.set)

    def stop(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)

    async def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _hold(self) -> None:
        self._flowing.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            to_server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_server[1]}
        try:
            await asyncio.gather(self._pump(reader, to_server[1]), self._pump(to_server[0], writer))
        finally:
            for one in (writer, to_server[1]):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await reader.read(BLOCK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._flowing.wait()
                writer.write(block)
                await writer.drain()
        writer.transport.abort()
