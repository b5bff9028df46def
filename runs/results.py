"""Results as JSON text."""

import json
from typing import Any


def dumps(value: Any) -> str:
    """Return a value as JSON text that every database stores. Raises TypeError, ValueError (NaN), RecursionError.

    Lone surrogates stay escaped: they are valid JSON, and not valid UTF-8.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text
