"""A worker's own places: one unit of concurrency each. Global slots are held under the name of a local place."""

import asyncio


class Places:
    """The free places of this process. Used from the event loop only."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = set(range(count))
        self._changed = asyncio.Event()
        self._changed.set()

    @property
    def in_use(self) -> int:
        return self.count - len(self._free)

    def free(self) -> list[int]:
        """Return the free places, without taking them."""
        return sorted(self._free)

    async def wait_free(self) -> None:
        """Wait until at least one place is free."""
        while not self._free:
            self._changed.clear()
            await self._changed.wait()

    def take(self, place: int) -> None:
        self._free.remove(place)

    def give_back(self, place: int) -> None:
        self._free.add(place)
        self._changed.set()
