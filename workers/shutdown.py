"""Why a worker stops: a first signal or an operator asks it to drain, a second signal to stop at once (12.2)."""

import asyncio
import signal


class Shutdown:
    """Events of the loop. `final`: a signal asked, so nobody can recall the drain."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.final = asyncio.Event()
        self.at_once = asyncio.Event()

    def listen(self) -> None:
        """Install the handlers in the running event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.signal)

    def signal(self) -> None:
        if self.draining.is_set():
            self.at_once.set()
        self.drain_for_good()

    def drain_for_good(self) -> None:
        """Drain, however often it is asked."""
        self.final.set()
        self.draining.set()

    def recall(self) -> None:
        """Go on working, unless a signal came meanwhile."""
        if not self.final.is_set():
            self.draining.clear()
