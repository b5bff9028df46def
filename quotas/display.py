"""How values are shown to people: credits, ages, pills, short ids. Pure functions; odd values never raise."""

import datetime as dt
import json
from typing import Any

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

MICRO_IN_CREDIT = 1_000_000
TEXT_SHOWN = 30_000  # characters of one text of a run on its page; the raw JSON and the API have all
NOTHING = "–"  # noqa: RUF001  an en dash reads as "no value"; a hyphen reads as minus

# Every word that gets a colour of its own. Anything else is shown neutral.
TONES = {
    "succeeded": "good",
    "alive": "good",
    "settled": "good",
    "live": "good",
    "requeued": "good",
    "resolved": "good",
    "running": "busy",
    "assigned": "busy",
    "active": "busy",
    "queued": "wait",
    "scheduled": "wait",
    "waiting": "wait",
    "draining": "warn",
    "paused": "warn",
    "refused": "warn",
    "accepted": "good",
    "interrupted": "warn",
    "expired": "warn",
    "overdraft": "warn",
    "open": "bad",
    "failed": "bad",
    "lost": "bad",
    "leaked": "bad",
    "drift": "bad",
    "revoked": "bad",
}


def credits_of(amount: int | None) -> str:
    """Return micro-units as credits, without needless zeros: 1500000 -> "1.5"."""
    if amount is None:
        return NOTHING
    whole, rest = divmod(abs(amount), MICRO_IN_CREDIT)
    text = f"{whole:,}" + (f".{rest:06d}".rstrip("0") if rest else "")
    return f"-{text}" if amount < 0 else text


def about(amount: int) -> str:
    """Return micro-units as credits with two decimals, for places where the size counts, not the last digit.

    Less than one credit is shown in full: a sum of small amounts is not nothing.
    """
    if 0 < abs(amount) < MICRO_IN_CREDIT:
        return credits_of(amount)
    return f"{amount / MICRO_IN_CREDIT:,.2f}"


def moment(at: dt.datetime | None) -> str:
    """Return a time in UTC, to the second, as it sorts: "2026-11-29 19:32:52 UTC"."""
    return NOTHING if at is None else at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(seconds: float | None) -> str:
    """Return a duration for people: "0.42 s", "12 s", "3 m 20 s", "2 h 5 m", "4 d 3 h"."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"
    whole = int(seconds)
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {small_unit}"
    return f"{whole} s"


def between(start: dt.datetime | None, end: dt.datetime | None) -> str:
    """Return the time from start to end, or a dash where one is missing."""
    return NOTHING if start is None or end is None else span((end - start).total_seconds())


def pill(word: str) -> SafeString:
    """Return a state as a coloured label. The word itself carries the meaning; the colour only helps."""
    return format_html('<span class="pill pill-{}">{}</span>', TONES.get(word, "plain"), word or NOTHING)


def short(identifier: object) -> str:
    """Return the end of an id: of a UUIDv7 the beginning is its time, the same for neighbours."""
    text = "" if identifier is None else str(identifier)
    return text[-12:] or NOTHING


def pretty(value: Any) -> str:
    """Return a JSON value as indented text; what is no JSON is shown as it is."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False, default=str)
    except (TypeError, ValueError):
        return str(value)


def pretty_text(text: str | None) -> str:
    """Return a JSON text indented, its middle left out where it is very long; no JSON is shown as it is."""
    if text is None:
        return ""
    try:
        return excerpt(pretty(json.loads(text)))
    except ValueError:
        return excerpt(text)


def excerpt(text: str) -> str:
    """Return the beginning and the end of a text that no browser lays out in time: a megabyte takes half a minute."""
    if len(text) <= TEXT_SHOWN:
        return text
    half = TEXT_SHOWN // 2
    left = f"{len(text) - TEXT_SHOWN:,}"
    return f"{text[:half]}\n\n[… {left} characters left out here …]\n\n{text[-half:]}"


def usage_rows(usage: Any) -> list[list[str]]:
    """Return `{model: {kind: tokens}}` as rows of model, kind, tokens. Odd parts are shown, not dropped."""
    if not isinstance(usage, dict):
        return [[str(usage), "", ""]] if usage else []
    rows = []
    for model, kinds in usage.items():
        if not isinstance(kinds, dict):
            rows.append([str(model), "", str(kinds)])
            continue
        rows += [[str(model), str(kind), f"{n:,}" if isinstance(n, int) else str(n)] for kind, n in kinds.items()]
    return rows


def age_of(moment: dt.datetime | None) -> str:
    """Return how long ago a moment was."""
    return NOTHING if moment is None else span((timezone.now() - moment).total_seconds())
