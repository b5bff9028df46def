"""`doctor`: looks at settings, servers and processes and says what to do."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from rich.console import Console
from rich.table import Table

from agentops.diagnosis import database, model, processes, redis_server
from agentops.diagnosis.finding import Finding

PARTS = (processes, database, redis_server, model)
COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class Command(BaseCommand):
    help = "Examine the installation. Exit codes: 0 nothing failed, 1 something did."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")

    def handle(self, *_args: Any, **options: Any) -> None:
        findings = [finding for part in PARTS for finding in part.examine()]
        failed = any(finding.level == "fail" for finding in findings)
        if options["json"]:
            lines = [dataclasses.asdict(finding) for finding in findings]
            self.stdout.write(json.dumps({"ok": not failed, "findings": lines}))
        else:
            self._print(findings)
        if failed:
            sys.exit(1)

    def _print(self, findings: Iterable[Finding]) -> None:
        table = Table(box=None, show_header=False, pad_edge=False)
        for finding in findings:
            advice = f"\n→ {finding.advice}" if finding.advice else ""
            mark = f"[{COLOURS[finding.level]}]{finding.level}[/]"
            table.add_row(mark, finding.part, _plain(finding.fact + advice))
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
        with console.capture() as captured:
            console.print(table)
        self.stdout.write(captured.get())


def _plain(text: str) -> str:
    return text.replace("[", r"\[")  # rich's markup; facts are texts
