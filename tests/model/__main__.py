"""Explore the models by hand: `python -m tests.model` (docs/model.md)."""

import argparse
import sys
import time
from typing import Any

from tests.model.explorer import Model, Report, explore, render
from tests.model.models import KINDS, Kind


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when all that was explored holds, 1 when a counterexample was printed, 2 for wrong usage."""
    asked = _parser().parse_args(arguments)
    if asked.list:
        _list()
        return 0
    chosen = _chosen(asked)
    if not chosen:
        print("There is no such model, scenario or rule; --list shows them.", file=sys.stderr)
        return 2
    return max(_explored(model, most=asked.most) for model in chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description="Every interleaving of the protocol.")
    parser.add_argument("model", nargs="?", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--scenario", help="only scenarios whose name contains this text")
    parser.add_argument("--without", metavar="RULE", help="take a rule out, and print what goes wrong")
    parser.add_argument("--large", action="store_true", help="the large scenarios, which take minutes")
    parser.add_argument("--most", type=int, default=5_000_000, help="states at which to give up")
    parser.add_argument("--list", action="store_true", help="the models, their scenarios and rules")
    return parser


def _chosen(asked: argparse.Namespace) -> list[Model]:
    models = []
    for name, kind in KINDS.items():
        if asked.model in (name, "all"):
            models += _of_kind(kind, asked)
    return models


def _of_kind(kind: Kind, asked: argparse.Namespace) -> list[Model]:
    scenarios: list[Any] = [*(kind.large if asked.large else kind.scenarios)]
    missing = kind.not_built
    if asked.without is not None:
        if asked.without not in kind.rules:
            return []
        shown_by, missing = kind.without(asked.without)
        if asked.scenario is None and not asked.large:
            scenarios = [shown_by]
    if asked.scenario is not None:
        scenarios = [made for made in (*kind.scenarios, *kind.large) if asked.scenario in made.name]
    return [kind.make(made, missing) for made in scenarios]


def _explored(model: Model, *, most: int) -> int:
    """Explore one model with a line that tells how far it is, then its verdict. Returns the exit code."""
    began = time.monotonic()
    shown = sys.stderr.isatty()

    def on_level(report: Report) -> None:
        if shown:
            print(f"\r  depth {report.depth}, {report.states:,} states", end="", file=sys.stderr, flush=True)

    report = explore(model, most=most, on_level=on_level)
    if shown:
        print("\r\033[K", end="", file=sys.stderr)
    size = f"{report.states:,} states, {report.steps:,} steps, depth {report.depth}, {time.monotonic() - began:.1f} s"
    if report.violation is None:
        print(f"holds   {model.name}: {size}")
        return 0
    print(f"BROKEN  {size}\n\n{render(model, report.violation)}")
    return 1


def _list() -> None:
    for name, kind in KINDS.items():
        print(f"{name}\n  scenarios")
        for made in (*kind.scenarios, *kind.large):
            print(f"    {made.name}")
        print("  rules")
        for rule, what in kind.rules.items():
            mark = " [not built]" if rule in kind.not_built else ""
            print(f"    {rule}: {what}{mark}")


if __name__ == "__main__":
    raise SystemExit(main())
