"""Results as JSON text."""

import json
from typing import Any

from runs.text import clean_text


def dumps(value: Any) -> str:
    """Return a value as JSON text that every database stores and every client reads.

    Half a surrogate pair becomes U+FFFD: no answer could carry it. Raises TypeError, ValueError (NaN), RecursionError.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return clean_text(text)
