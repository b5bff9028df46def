"""One line of the doctor's report."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it stands, and what to do where it is not well."""

    part: str
    level: Level
    fact: str
    advice: str = ""


def judged(part: str, fact: str, *, well: bool, advice: str, otherwise: Level = "fail") -> Finding:
    """Return an ok finding, or the other level with the advice."""
    return Finding(part, "ok", fact) if well else Finding(part, otherwise, fact, advice)
