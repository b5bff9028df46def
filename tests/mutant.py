"""What a mutant is: edits that take one rule out, and the tests that must fail then."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """A text that is in the file exactly once, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule taken out. `tests` are pytest's ids; of one with parameters without any, one case has to fail."""

    name: str
    rule: str
    what: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    database: str = "sqlite"


def mutant(
    name: str, rule: str, what: str, file: str, old: str, new: str, *tests: str, database: str = "sqlite"
) -> Mutant:
    """Return a mutant of one edit."""
    return Mutant(name, rule, what, (Edit(file, old, new),), tests, database)
