"""`create_api_key --name NAME`: make an API key and print it, once. Exit codes: quotas/command.py."""

import datetime as dt
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from quotas.api_keys import create_api_key
from quotas.command import DONE, InstanceCommand
from quotas.models import ApiKey

SCOPES = ApiKey.Scope.values
DAYS_MAX = 36_500


class Command(InstanceCommand):
    help = "Make an API key for an account and print it. It cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--name", default="command line", help="what the key is for")
        parser.add_argument("--scopes", default=",".join(SCOPES), help=f"comma-separated, of {', '.join(SCOPES)} (all)")
        parser.add_argument("--expires-days", type=int, help="days until the key ends (never)")

    def run(self, options: dict[str, Any]) -> int:
        scopes = [scope.strip() for scope in options["scopes"].split(",") if scope.strip()]
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not scopes:
            self.usage(f"--scopes: {', '.join(unknown) or 'none given'}; choose from {', '.join(SCOPES)}.")
        days = options["expires_days"]
        if days is not None and not 1 <= days <= DAYS_MAX:
            self.usage(f"--expires-days must be 1 to {DAYS_MAX}.")
        expires_at = None if days is None else timezone.now() + dt.timedelta(days=days)
        account = self.account
        row, raw = create_api_key(
            account=account, name=options["name"], scopes=scopes, expires_at=expires_at, actor=self.actor
        )
        if self.as_json:
            facts = {"account": account.name, "name": row.name, "scopes": row.scopes}
            self.emit({"key": raw, "prefix": row.prefix, **facts, "expires_at": expires_at})
        else:
            self.stderr.write(f"Key {row.prefix} for {account.name}. It is shown only this once:")
            self.stdout.write(raw)
        return DONE
