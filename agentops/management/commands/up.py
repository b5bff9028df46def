"""`up`: the web, workers, broker, database and a model on this machine, from one command."""

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = (
        "Start everything on this machine and stop it on Ctrl+C. "
        "Exit codes: 0 stopped, 1 a part failed, 2 the port cannot be had, 3 the data folder is in use."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000; 0 = a free one)")
        parser.add_argument("--data-dir", default=str(settings.DATA_DIR), help="folder for all data (./data)")
        parser.add_argument("--workers", type=int, default=1, metavar="N", help="worker processes (1)")
        parser.add_argument("--no-model", action="store_true", help="start no local model")
        parser.add_argument("--json", action="store_true", help="print one JSON line on stdout when ready")
        parser.add_argument("--reload", action="store_true", help="start web and workers again when code changes")

    def handle(self, *_args: Any, **options: Any) -> None:
        if sys.platform == "win32":
            self.stderr.write("`up` does not run on Windows (there is no Valkey for it): use WSL 2.")
            sys.exit(1)
        # Needs fcntl, which Windows has not.
        from agentops import up  # noqa: PLC0415

        chosen = up.Options(
            host=options["host"],
            port=options["port"],
            data_dir=options["data_dir"],
            workers=max(0, options["workers"]),
            use_model=not options["no_model"],
            as_json=options["json"],
            reload=options["reload"],
        )
        sys.exit(up.start(chosen))
