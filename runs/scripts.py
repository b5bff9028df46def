"""Lua scripts, run by raw EVALSHA inside a pipeline: one round trip, and on NOSCRIPT one reload and one repeat.

Every script of ours is safe to repeat, so a pipeline that met NOSCRIPT half-way is simply sent again.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis.client import Pipeline
from redis.exceptions import NoScriptError

from runs import features


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and its SHA-1, by which the server knows it."""

    text: str
    sha: str

    def call(self, pipe: "Pipeline", keys: Sequence[str], args: Iterable[Any]) -> None:
        """Queue a call on the pipeline."""
        pipe.evalsha(self.sha, len(keys), *keys, *args)


_all: list[Script] = []
T = TypeVar("T")


def each(call: Callable[["Pipeline", T], None], items: Sequence[T]) -> Callable[["Pipeline"], None]:
    """Return a filler for `execute` that makes one call an item."""

    def fill(pipe: "Pipeline") -> None:
        for item in items:
            call(pipe, item)

    return fill


def load(path: Path, *libraries: Path) -> Script:
    """Read a script file, behind the functions of its libraries; it is known to `execute` from then on."""
    text = "".join(part.read_text(encoding="utf-8") for part in (*libraries, path))
    script = Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
    _all.append(script)
    return script


def checked(replies: Sequence[Any]) -> Sequence[Any]:
    """Return the replies; raises the first that is an error of its command."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def execute(client: "redis.Redis", fill: Callable[["Pipeline"], None]) -> list[Any]:
    """Fill a pipeline, send it in one round trip and return the replies; a reply may be an exception of one command.

    A server that does not know the scripts may be another one than before: it is asked again what it can do. Raises
    redis' ConnectionError or TimeoutError when the server cannot be reached.
    """
    for last in (False, True):
        pipe = client.pipeline(transaction=False)
        fill(pipe)
        if not len(pipe):
            return []
        asks = last or features.is_due(client)
        if asks:
            features.ask(pipe)
        replies: list[Any] = pipe.execute(raise_on_error=False)
        if asks:
            features.learn(client, replies.pop())
        if last or not any(isinstance(reply, NoScriptError) for reply in replies):
            return replies
        for script in _all:
            client.script_load(script.text)
    return []
