"""The agent of `manage.py bench`: says when its first line ran, and does nothing else."""

import time
from typing import Any

from runs.agents import agent
from workers.context import Context


@agent(
    "bench.noop",
    description="Does nothing, and says when it began. Used by `manage.py bench`.",
    input_schema={"type": "object", "properties": {}, "additionalProperties": False},
    sample={},
)
async def noop(ctx: Context, _: Any) -> dict[str, float]:
    return {"began": time.time(), "attempt": ctx.attempt}
