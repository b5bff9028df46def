"""What JSON is accepted from outside, in one place: parsing, checking and the canonical digest.

Every refusal names the first field that breaks a rule as a path such as `input.messages[0].text`; the empty path is
the whole text. Nothing here can reach the interpreter's recursion limit: depth is counted on the raw text first.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from quotas.errors import Refusal

DEPTH_MAX = 64
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
INT_DIGITS = 20  # a sign and the 19 digits of 2^63: longer texts are refused without being converted

# A whole string (also one that never ends, so that no text is scanned twice), or one bracket.
_STRUCTURE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_BAD_TEXT = re.compile("[\x00\ud800-\udfff]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,60}")


class InvalidJson(Refusal):
    """The text is not valid JSON: {problem}."""

    code = "invalid_json"
    status = 400


class TooDeep(Refusal):
    """The JSON is nested deeper than {limit} levels."""

    code = "too_deep"
    status = 400


class InvalidText(Refusal):
    """The text at {path} holds {problem}, which cannot be stored."""

    code = "invalid_text"
    status = 400


class InvalidNumber(Refusal):
    """The number at {path} is {problem}."""

    code = "invalid_number"
    status = 400


class DuplicateKey(Refusal):
    """The object at {path} has the key {key} twice."""

    code = "duplicate_key"
    status = 400


@dataclass(frozen=True, slots=True)
class _Broken:
    """Stands in the parsed value where a rule was broken, so that the check can name its path."""

    refusal: type[Refusal]
    facts: dict[str, Any]


def parse(body: bytes) -> Any:
    """Return the value of a JSON text; raises one of this module's refusals."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJson(problem=f"byte {error.start} is not UTF-8", path="") from None
    check_depth(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise InvalidJson(
            problem=f"{error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}",
            path="",
            line=error.lineno,
            column=error.colno,
        ) from None
    check_json(value)
    return value


def check_depth(text: str) -> None:
    """Raise TooDeep where brackets nest deeper than DEPTH_MAX; strings do not count."""
    depth = 0
    for match in _STRUCTURE.finditer(text):
        mark = match[0]
        if mark in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise TooDeep(limit=DEPTH_MAX)
        elif mark in "]}":
            depth -= 1


def check_json(value: Any) -> None:
    """Check a value that came from elsewhere than `parse`: text, numbers, depth. Raises as `parse` does."""
    _check(value, "", 0)


def check_text(text: str, path: str) -> None:
    """Raise InvalidText where the text holds a NUL or half of a surrogate pair."""
    found = _BAD_TEXT.search(text)
    if found is not None:
        problem = "a NUL character" if found[0] == "\0" else "half of a surrogate pair"
        raise InvalidText(path=path, problem=problem)


def digest(value: Any) -> str:
    """Return the SHA-256 (hex) of the value's canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _check(value: Any, path: str, depth: int) -> None:
    if isinstance(value, str):
        check_text(value, path)
    elif isinstance(value, dict | list | tuple):
        if depth >= DEPTH_MAX:
            raise TooDeep(limit=DEPTH_MAX)
        _check_members(value, path, depth + 1)
    elif isinstance(value, _Broken):
        raise value.refusal(path=path or "the top", **value.facts)
    elif value is not None and not isinstance(value, bool):
        _check_number(value, path)


def _check_members(value: Any, path: str, depth: int) -> None:
    if isinstance(value, dict):
        for key, member in value.items():
            below = key_path(path, key)
            if not isinstance(key, str):
                raise InvalidJson(problem=f"the key {below} is not a string", path=below)
            check_text(key, below)
            _check(member, below, depth)
    else:
        for index, member in enumerate(value):
            _check(member, f"{path}[{index}]", depth)


def _check_number(value: Any, path: str) -> None:
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise InvalidNumber(path=path, problem="outside the 64-bit range")
    elif not isinstance(value, float):
        raise InvalidJson(problem=f"{path} is a {type(value).__name__}", path=path)
    elif not math.isfinite(value):
        raise InvalidNumber(path=path, problem="not finite")


def key_path(path: str, key: Any) -> str:
    """Return the path of a member; odd keys are written as ASCII JSON, cut to 80 characters."""
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(str(key)[:80])}]"


def _object(pairs: list[tuple[str, Any]]) -> Any:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _Broken(DuplicateKey, {"key": json.dumps(key[:80])})
        seen.add(key)
    return value


def _constant(name: str) -> _Broken:
    return _Broken(InvalidNumber, {"problem": f"{name}, which is not a JSON number"})


def _float(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else _Broken(InvalidNumber, {"problem": "too large"})


def _integer(text: str) -> Any:
    if len(text) <= INT_DIGITS and INT_MIN <= (value := int(text)) <= INT_MAX:
        return value
    return _Broken(InvalidNumber, {"problem": "outside the 64-bit range"})
