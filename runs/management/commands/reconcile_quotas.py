"""`reconcile_quotas [--account NAME] [--fix]`: compare counters with ledger and holds, and look for leaked holds.

Exit codes: 0 no difference, or all repaired by --fix; 1 something is left; 2 wrong usage; 4 no instance. With
`--json`: {accounts, differences: [{account, kind, stored, counted}], leaks: [{account, run, state, cost}],
unprotected: [trigger], fixed}.
"""

from typing import Any

from django.core.management.base import CommandParser

from quotas import append_only
from quotas.command import DONE, FAILED, InstanceCommand
from quotas.drift import Figures
from quotas.models import Account
from runs.services import leaks


class Command(InstanceCommand):
    help = "Recompute what accounts have spent and held from ledger and holds, and find holds whose run is over."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
        parser.add_argument("--account", default="", help="look at this account only (default: at all accounts)")
        parser.add_argument("--fix", action="store_true", help="repair what differs; audited")

    def run(self, options: dict[str, Any]) -> int:
        fix = options["fix"]
        accounts = Account.objects.order_by("pk").values_list("pk", flat=True)
        ids = [self.account.pk] if self.account_name else list(accounts)
        unprotected = sorted(append_only.missing())
        is_protected = not unprotected or (fix and append_only.install())
        found = [leaks.reconcile(account_id, fix=fix, actor=self.actor) for account_id in ids]
        differences = [row for one in found for row in _differences(one.figures)]
        leaked = [_shown(one.figures.account, leak) for one in found for leak in one.leaks]
        if self.as_json:
            told = {"accounts": len(ids), "differences": differences, "leaks": leaked, "unprotected": unprotected}
            self.emit({**told, "fixed": fix})
        else:
            self._table("Counters that differ from their rows (micro-units, and runs in flight):", differences)
            self._table("Open holds whose run is over:", leaked)
            if unprotected:
                self.say(f"Triggers are not there: {', '.join(unprotected)}.")
            left = "" if not (differences or leaked or unprotected) else "; repaired" if fix else "; repair with --fix"
            self.say(f"{len(ids)} accounts: {len(differences)} differences, {len(leaked)} leaked holds{left}.")
        if not is_protected and fix:
            stays = "ledger and audit log stay unprotected"
            self.stderr.write(f"This database user may make no triggers (docs/deploy.md): {stays}.")
        return DONE if is_protected and (fix or not (differences or leaked)) else FAILED

    def _table(self, title: str, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.say(title)
            self.table(list(rows[0]), [list(row.values()) for row in rows])


def _differences(figures: Figures) -> list[dict[str, Any]]:
    return [
        {"account": figures.account, "kind": kind, "stored": figures.stored[kind], "counted": figures.counted[kind]}
        for kind in figures.drift
    ]


def _shown(account: str, leak: leaks.Leak) -> dict[str, Any]:
    return {"account": account, "run": leak.run_id, "state": leak.state or "gone", "cost": leak.bill.cost}
