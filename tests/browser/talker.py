"""An agent for the browser tests: says hostile words slowly, with progress, so that a page can be watched living."""

import asyncio
from contextlib import suppress
from typing import Any

from runs.agents import agent

WORD = "<b>word</b> & <script>window.broken = 1</script> "


@agent(
    "talker",
    input_schema={
        "type": "object",
        "required": ["words"],
        "properties": {
            "words": {"type": "integer", "minimum": 1, "maximum": 1000},
            "seconds": {"type": "number", "minimum": 0},
        },
    },
    estimate=1000,
)
async def talk(ctx: Any, run_input: dict[str, Any]) -> dict[str, Any]:
    """Say the word again and again."""
    words, seconds = run_input["words"], run_input.get("seconds", 2)
    for number in range(words):
        ctx.delta(WORD)
        ctx.progress(number + 1, words, WORD)
        with suppress(TimeoutError):  # the pace of a model
            await asyncio.wait_for(asyncio.Event().wait(), seconds / words)
    await ctx.artifact("<i>out</i>.html", WORD.encode(), "text/html")
    return {"text": WORD * words}
