"""Text at the border: what no database or JSON reader takes is replaced, never refused half-way through a run."""

import math
from typing import Any


def clean_text(value: str) -> str:
    """Return the text without NUL and lone surrogates (each becomes U+FFFD)."""
    return value.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def clean_json(value: Any, depth: int = 0) -> Any:
    """Return a JSON-like value with clean texts, no NaN, integers within 64 bits, at most 64 levels deep."""
    if depth > 64:
        return "…"
    match value:
        case str():
            return clean_text(value)
        case bool() | None:
            return value
        case int():
            return value if -(2**63) <= value < 2**63 else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {clean_text(str(key)): clean_json(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [clean_json(item, depth + 1) for item in value]
        case _:
            return clean_text(str(value))
