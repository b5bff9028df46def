"""`prune`: delete old payloads and runs now, or with `--account NAME --all` everything of one account but its money.

Exit codes: 0 done, 1 something could not be deleted (or new runs came meanwhile), 2 wrong usage, refused or not
confirmed, 4 no instance. With `--json`: {dry_run, keys, payloads, runs, uploads, workers}, or for an account
{account, api_keys, members, runs, uploads, ledger_texts, published_letters, runs_left}.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from redis.exceptions import RedisError
from rich.console import Console
from rich.status import Status

from quotas.command import DONE, FAILED
from quotas.models import Account
from runs import broker
from runs.command import RunCommand
from runs.services import pruning
from workers.departed import forget_rows
from workers.forgetting import Forgotten, forget_account, open_runs
from workers.retention import DAY, Walk, rules

PAGE = 100
SHOWN = {
    "keys": "runs whose idempotency key or fingerprint was emptied",
    "payloads": "runs without their payload",
    "runs": "runs deleted",
    "uploads": "uploaded files nobody names, deleted",
    "workers": "rows of stopped workers deleted",
    "api_keys": "API keys revoked",
    "members": "members removed",
    "ledger_texts": "ledger lines without who and why",
    "published_letters": "dead letters taken from the stream",
}


class Command(RunCommand):
    help = (
        "Delete payloads and runs that are older than the retention settings say, now instead of bit by bit; or with "
        "--account NAME --all everything of one account but its ledger's amounts."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
        parser.add_argument("--account", default="", help="of this account only (all accounts)")
        parser.add_argument("--dry-run", action="store_true", help="count, and delete nothing")
        parser.add_argument("--older-than", type=float, metavar="DAYS", help="runs that ended before (as set, 90)")
        parser.add_argument("--payloads-older-than", type=float, metavar="DAYS", help="their payloads (as set, 30)")
        parser.add_argument("--all", action="store_true", help="everything of the account; needs --account")
        parser.add_argument("--yes", action="store_true", help="with --all: do not ask")
        parser.add_argument("--reason", default="", help="with --all: kept in the audit trail")

    def find_instance(self) -> None:
        """Redis is needed where an account is forgotten, and only there."""
        super(RunCommand, self).find_instance()

    def run(self, options: dict[str, Any]) -> int:
        ages = (options["older_than"], options["payloads_older_than"])
        if any(days is not None and not 0 < days < 36_500 for days in ages):
            self.usage("DAYS must be above 0 and below 36500.")
        account = self.account if self.account_name else None
        if not options["all"]:
            return self._prune(options, account)
        if account is None:
            self.usage("--all needs --account NAME: it deletes everything of one account.")
        if options["dry_run"] or any(days is not None for days in ages):
            self.usage("--all takes everything: it goes with neither --dry-run nor an age.")
        return self._forget(account, options)

    # -- by age ----------------------------------------------------------------------------------------------------
    def _prune(self, options: dict[str, Any], account: Account | None) -> int:
        asked_runs, asked_payloads = options["older_than"], options["payloads_older_than"]
        ages = {
            "runs_days": settings.RETAIN_RUNS_DAYS if asked_runs is None else asked_runs,
            "payloads_days": settings.RETAIN_PAYLOADS_DAYS if asked_payloads is None else asked_payloads,
        }
        only = None if account is None else account.pk
        walks = [Walk(rule, only, lag=-DAY, dry_run=options["dry_run"]) for rule in rules(**ages)]
        counts = {walk.rule.name: 0 for walk in walks}
        with self._progress() as status:
            for walk in walks:
                walk.work(told=lambda name, count: status.update(f"{count} {SHOWN[name]}"))
                counts[walk.rule.name] = walk.found
            if account is None:
                counts["uploads"] = _uploads(dry_run=options["dry_run"])
                counts["workers"] = _workers(dry_run=options["dry_run"])
        if self.as_json:
            self.emit({"dry_run": options["dry_run"], **counts})
        else:
            self.table(["what", "count"], [(SHOWN[name], count) for name, count in counts.items()])
            if options["dry_run"]:
                self.say("Nothing was deleted: --dry-run.")
        return DONE

    # -- an account ------------------------------------------------------------------------------------------------
    def _forget(self, account: Account, options: dict[str, Any]) -> int:
        super().find_instance()
        waiting = open_runs(account)
        if waiting:
            shown = ", ".join(f"{count} {state}" for state, count in sorted(waiting.items()))
            calls = "; ".join(
                f"./run cancel_runs --account {account.name} --state {state} --yes" for state in sorted(waiting)
            )
            self.usage(f"Runs of {account.name} have not ended ({shown}). Cancel them first: {calls}")
        self._confirm(account, is_sure=options["yes"])
        with self._progress() as status:
            try:
                gone = forget_account(
                    broker.client(),
                    account,
                    actor=self.actor,
                    reason=options["reason"],
                    told=lambda so_far: status.update(f"{so_far.runs} runs, {so_far.uploads} files deleted"),
                )
            except RedisError as error:
                raise CommandError(f"Stopped in between: {error}. Call it again.", returncode=FAILED) from error
        return self._tell(account, gone)

    def _tell(self, account: Account, gone: Forgotten) -> int:
        left = account.runs.count()
        if self.as_json:
            self.emit({"account": account.name, **asdict(gone), "runs_left": left})
        else:
            self.table(["what", "count"], [(SHOWN[name], count) for name, count in asdict(gone).items()])
            self.say(f"{account.name} keeps its name, its limits and the amounts of its ledger.")
            if left:
                self.say(f"{left} runs are left: they came meanwhile, or their files cannot be deleted. Call it again.")
        return FAILED if left else DONE

    def _confirm(self, account: Account, *, is_sure: bool) -> None:
        if is_sure:
            return
        what = f"{account.runs.count()} runs and {account.files.count()} files of {account.name}, for good"
        if self.as_json or not sys.stdin.isatty():
            self.usage(f"This deletes {what}. Add --yes.")
        if input(f"Delete {what}? [y/N] ").strip().lower() not in {"y", "yes"}:
            self.usage("Nothing was deleted.")

    @contextmanager
    def _progress(self) -> Iterator[Status]:
        console = Console(file=sys.stderr, quiet=not sys.stderr.isatty())
        with console.status("pruning") as status:
            yield status


def _uploads(*, dry_run: bool) -> int:
    if dry_run:
        return len(pruning.unused_uploads(1_000_000))
    total = 0
    while file_ids := pruning.unused_uploads(PAGE):
        removed = pruning.remove_uploads(file_ids)
        total += removed
        if not removed:  # what cannot be deleted now is tried again by the sweeper
            break
    return total


def _workers(*, dry_run: bool) -> int:
    if dry_run:
        return forget_rows(dry_run=True)
    total = 0
    while deleted := forget_rows():
        total += deleted
    return total
