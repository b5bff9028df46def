"""`api_keys list|rotate|revoke`: look after the account's API keys. `create_api_key` makes them.

Exit codes: quotas/command.py; revoke of a key that had ended already is 1. With `--json`: list {results}, rotate
{key, prefix, old_prefix, old_expires_at, …}, revoke {prefix, revoked}.
"""

import datetime as dt
from typing import Any

from django.core.management.base import CommandParser

from quotas.api_keys import OVERLAP, OVERLAP_MAX, get_key, list_keys, revoke, rotate
from quotas.command import DONE, FAILED, InstanceCommand
from quotas.display import moment
from quotas.models import ApiKey

HOUR = dt.timedelta(hours=1)
TIMES = ("created_at", "expires_at", "last_used_at")


class Command(InstanceCommand):
    help = "List, rotate or revoke the account's API keys. A key is named by its prefix: ao_<prefix>_…"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        acts = parser.add_subparsers(dest="act", required=True, metavar="list|rotate|revoke")
        listing = acts.add_parser("list", help="live keys, newest first")
        listing.add_argument("--all", action="store_true", dest="ended_too", help="revoked and expired ones too")
        rotation = acts.add_parser("rotate", help="a second key of the name; the first lives on for a while")
        rotation.add_argument("prefix")
        default = OVERLAP // HOUR
        rotation.add_argument(
            "--overlap-hours", type=int, default=default, help=f"hours the old key lives on ({default})"
        )
        rotation.add_argument("--reason", default="")
        ending = acts.add_parser("revoke", help="end a key now")
        ending.add_argument("prefix")
        ending.add_argument("--reason", required=True)
        for act in (listing, rotation, ending):  # also after the act, where people write them
            act.add_argument("--json", action="store_true", dest="json_after")
            act.add_argument("--account", dest="account_after")

    def handle(self, *args: Any, **options: Any) -> None:
        options["json"] = options["json"] or options["json_after"]
        options["account"] = options["account_after"] or options["account"]
        super().handle(*args, **options)

    def run(self, options: dict[str, Any]) -> int:
        match options["act"]:
            case "list":
                return self._list(ended_too=options["ended_too"])
            case "rotate":
                return self._rotate(options["prefix"], options["overlap_hours"] * HOUR, options["reason"])
            case _:
                return self._revoke(options["prefix"], options["reason"].strip())

    def _list(self, *, ended_too: bool) -> int:
        rows = [row for row in list_keys(self.account) if ended_too or row.is_live]
        if self.as_json:
            self.emit({"results": [_facts(row) for row in rows]})
        elif not rows:
            self.say("There are no keys." if ended_too else "There are no live keys.")
        else:
            self.table(list(_facts(rows[0])), [_cells(_facts(row)) for row in rows])
        return DONE

    def _rotate(self, prefix: str, overlap: dt.timedelta, reason: str) -> int:
        if not dt.timedelta() <= overlap <= OVERLAP_MAX:
            self.usage(f"--overlap-hours must be 0 to {OVERLAP_MAX // HOUR}.")
        old = get_key(self.account, prefix)
        row, raw = rotate(old, overlap=overlap, actor=self.actor, reason=reason)
        old.refresh_from_db()
        if self.as_json:
            self.emit({"key": raw, **_facts(row), "old_prefix": old.prefix, "old_expires_at": old.expires_at})
        else:
            until = f"{old.prefix} lives on until {moment(old.expires_at)}."
            self.stderr.write(f"Key {row.prefix} for {self.account_name}. It is shown only this once. {until}")
            self.stdout.write(raw)
        return DONE

    def _revoke(self, prefix: str, reason: str) -> int:
        if not reason:
            self.usage("--reason: say why.")
        row = get_key(self.account, prefix)
        ended = revoke(row, actor=self.actor, reason=reason)
        if self.as_json:
            self.emit({"prefix": row.prefix, "revoked": ended})
        else:
            self.say(f"Revoked {row.prefix}." if ended else f"{row.prefix} had ended already.")
        return DONE if ended else FAILED


def _facts(row: ApiKey) -> dict[str, Any]:
    facts = {"prefix": row.prefix, "name": row.name, "state": row.state, "scopes": row.scopes}
    return facts | {name: getattr(row, name) for name in TIMES}


def _cells(facts: dict[str, Any]) -> list[str]:
    shown = facts | {"scopes": ",".join(facts["scopes"])} | {name: moment(facts[name]) for name in TIMES}
    return [str(value) for value in shown.values()]
