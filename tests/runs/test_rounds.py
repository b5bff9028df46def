"""The rounds of an event loop end with it."""

import asyncio
import gc
import weakref

from quotas.standing import READING, Standing
from runs import rounds


def test_a_loop_leaves_no_rounds_to_the_next_one():
    async def kept():
        rounds.current().open(Standing(), READING).close()
        assert rounds.current() is rounds.current()
        return weakref.ref(rounds.current())

    left = asyncio.run(kept())
    gc.collect()

    assert left() is None
