"""Which failures are one: a fingerprint of what stays the same when the same thing goes wrong again. Pure functions.

Numbers, ids, quoted texts, addresses, paths and times differ from run to run and are left out of the message; of the
traceback the frames count, without their lines. Only the beginning of long texts is read, so all of it is cheap.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RULES = "1"  # in every fingerprint: other rules make other cases
READ_MAX = 4000  # characters of a message
PATTERN_MAX = 300
TRACEBACK_READ_MAX = 8000  # less than half of what is kept of one: before the place where it is cut
FRAMES = 5
TYPE_MAX = 120

# One alternative after the other at each place; none has a repetition within a repetition.
QUOTED = re.compile(
    r"""
      "(?:[^"\\]|\\(?:.|\Z))*(?:"|\Z)
    | `[^`]*(?:`|\Z)
    | “[^”]*(?:”|\Z)
    | «[^»]*(?:»|\Z)
    | (?<!\w)'(?:[^'\\]|\\(?:.|\Z)|'(?=\w))*(?:'|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
ADDRESS = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://\S*", re.IGNORECASE)
UUID = re.compile(r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b", re.IGNORECASE)
HEX = re.compile(r"\b[0-9a-f]{8,}\b", re.IGNORECASE)
HEX_GROUPS = re.compile(r"(?<![\w:])(?:[0-9a-f]{0,4}:){2,8}[0-9a-f.]{0,15}(?![\w:])", re.IGNORECASE)
WORD = re.compile(r"\w+")
NUMBERS = re.compile(r"(?<!\w)[-+]?#(?:[-+.,:/_]{1,3}#)*")
FRAME = re.compile(r'^[ |]{2,40}File "([^"\n]*)", line \d+(?:, in (.*))?$')
FOREIGN = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a case is known by (`value`, 64 characters), and what people read of it."""

    value: str
    error_type: str
    pattern: str


def fingerprint_of(
    *, agent: str, reason: str, error_class: str, message: str, error: Mapping[str, Any] | None = None
) -> Fingerprint:
    """Return the fingerprint of a dead letter; `error` is its run's, where it has one. Odd values never raise."""
    facts = error if isinstance(error, Mapping) else {}
    error_type = str(facts.get("type") or "")[:TYPE_MAX]
    pattern = pattern_of(str(facts.get("message") or message or ""))
    frames = frames_of(str(facts.get("traceback") or ""))
    parts = [RULES, agent, error_class, reason, error_type, pattern, frames]
    return Fingerprint(hashlib.sha256(json.dumps(parts).encode()).hexdigest(), error_type, pattern)


def pattern_of(message: str) -> str:
    """Return the beginning of a message with `#`, `"…"`, `<url>`, `<address>` and `<path>` for what differs."""
    text = QUOTED.sub('"…"', message[:READ_MAX])
    text = ADDRESS.sub("<url>", text)
    text = HEX.sub("#", UUID.sub("#", text))
    text = " ".join(_token(token) for token in text.split())
    text = NUMBERS.sub("#", WORD.sub(lambda word: "#" if _has_digit(word[0]) else word[0], text))
    return text[:PATTERN_MAX].rstrip()


def _token(token: str) -> str:
    """Return a word with what an address or a path is replaced by; punctuation around it stays."""
    core = token.strip("()[]{}<>,;:.!?=")
    if "@" in core[1:-1]:
        return token.replace(core, "<address>")
    if core.startswith(("/", "./", "../", "~/")) or core.count("/") > 1 or core[1:3] == ":\\" or core[:2] == "\\\\":
        return token.replace(core, "<path>")
    return HEX_GROUPS.sub("#", token) if token.count(":") > 1 else token


def _has_digit(word: str) -> bool:
    return any(letter.isdigit() for letter in word)


def frames_of(traceback: str) -> list[str]:
    """Return the innermost frames of the agent's own code, as `folder/file.py function`; of any code if none is its."""
    frames: list[tuple[str, str]] = []
    inside = False
    for line in traceback[:TRACEBACK_READ_MAX].split("\n"):
        if not inside:
            inside = "Traceback (most recent call last):" in line
            continue
        if not line.startswith(" "):
            break
        found = FRAME.match(line)
        if found is not None and (not frames or frames[-1] != found.groups("")):  # a recursion is one frame
            frames.append((found[1], found[2] or ""))
    own = [frame for frame in frames if not any(part in frame[0] for part in FOREIGN)]
    return [f"{_tail(path)} {name}" for path, name in (own or frames)[-FRAMES:]]


def _tail(path: str) -> str:
    """Return a file with its folder: the same wherever it is installed."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])
