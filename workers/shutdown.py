"""Signals of a worker: the first asks it to drain, the second to stop at once (protocol 12.2)."""

import asyncio
import signal


class Shutdown:
    """Two events set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.at_once = asyncio.Event()

    def listen(self) -> None:
        """Install the handlers in the running event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.signal)

    def signal(self) -> None:
        if self.draining.is_set():
            self.at_once.set()
        self.draining.set()
