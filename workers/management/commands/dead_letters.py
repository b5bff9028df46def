"""`dead_letters list|cases|show|requeue|discard|restore`: look after what was set aside for a person.

Exit codes: 0 done, 1 at least one of several ids was refused (the others were done), 2 wrong usage or refused,
4 no instance. With `--json`: list and cases {results}, show the letter, requeue, discard and restore {results:
[{dead_letter, …}]}.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from quotas.command import DONE, FAILED, InstanceCommand
from quotas.errors import Refusal
from workers import cases, dead_letters
from workers.models import Case, DeadLetter
from workers.serializers import CaseOut, DeadLetterBrief, DeadLetterOut

LIMIT_MAX = 10_000


class Command(InstanceCommand):
    help = "List, show, requeue, discard or restore the account's dead letters."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        acts = parser.add_subparsers(dest="act", required=True, metavar="list|cases|show|requeue|discard|restore")
        listing = acts.add_parser("list", help="newest first")
        listing.add_argument("--state", choices=[*DeadLetter.State.values, "all"], default="open")
        listing.add_argument("--case", type=int, help="of this case only")
        of_cases = acts.add_parser("cases", help="what failed alike, newest first, as far as it is the account's")
        of_cases.add_argument("--state", choices=[*Case.State.values, "all"], default="all")
        for act in (listing, of_cases):
            act.add_argument("--limit", type=int, default=50)
        show = acts.add_parser("show", help="one dead letter with its stream entry")
        show.add_argument("id", type=int)
        requeue = acts.add_parser("requeue", help="make a new run of each")
        requeue.add_argument("ids", type=int, nargs="*", metavar="ID")
        requeue.add_argument("--reason", default="")
        discard = acts.add_parser("discard", help="put each aside; `restore` opens it again")
        discard.add_argument("ids", type=int, nargs="*", metavar="ID")
        discard.add_argument("--reason", required=True)
        restore = acts.add_parser("restore", help="open again what was discarded in the last 7 days")
        restore.add_argument("ids", type=int, nargs="+", metavar="ID")
        restore.add_argument("--reason", required=True)
        for act in (requeue, discard):
            act.add_argument("--case", type=int, help="instead of ids: all open ones of this case")
        for act in (listing, of_cases, show, requeue, discard, restore):  # also after the act, where people write them
            act.add_argument("--json", action="store_true", dest="json_after")
            act.add_argument("--account", dest="account_after")

    def handle(self, *args: Any, **options: Any) -> None:
        options["json"] = options["json"] or options["json_after"]
        options["account"] = options["account_after"] or options["account"]
        super().handle(*args, **options)

    def run(self, options: dict[str, Any]) -> int:
        if options["act"] == "list":
            return self._list(options["state"], options["limit"], options["case"])
        if options["act"] == "cases":
            return self._cases(options["state"], options["limit"])
        if options["act"] == "show":
            return self._show(options["id"])
        reason = options["reason"].strip()
        ids = self._chosen(options["ids"], options.get("case"))
        if not ids:
            self.say(f"There are no open dead letters in case {options['case']}.")
        if options["act"] == "requeue":
            return self._each(ids, lambda letter_id: self._requeue(letter_id, reason))
        if not reason:
            self.usage("--reason: say why.")
        does = self._restore if options["act"] == "restore" else self._discard
        return self._each(ids, lambda letter_id: does(letter_id, reason))

    def _chosen(self, ids: list[int], case_id: int | None) -> list[int]:
        """Return the ids that were named, or those of the open letters of a case, the oldest first."""
        if bool(ids) == (case_id is not None):
            self.usage("Name dead letters by their ids, or with --case all open ones of a case.")
        return ids or list(self._open_in(case_id or 0).values_list("pk", flat=True)[:LIMIT_MAX])

    def _open_in(self, case_id: int) -> QuerySet[DeadLetter]:
        share = cases.share_of(self.account, case_id)
        letters = dead_letters.visible(self.account).filter(case=share.case_id)
        return dead_letters.in_state(letters, DeadLetter.State.OPEN).order_by("pk")

    def _cases(self, state: str, limit: int) -> int:
        self._check(limit)
        rows = cases.shares_of(self.account)
        rows = rows if state == "all" else rows.filter(case__state=state)
        columns = [
            "id",
            "state",
            "agent",
            "error_class",
            "error_type",
            "count",
            "open_count",
            "last_seen_at",
            "pattern",
        ]
        self._show_rows([dict(CaseOut(row).data) for row in rows[:limit]], columns, "There are no cases.")
        return DONE

    def _check(self, limit: int) -> None:
        if not 1 <= limit <= LIMIT_MAX:
            self.usage(f"--limit must be 1 to {LIMIT_MAX}.")

    def _show_rows(self, found: list[dict[str, Any]], columns: list[str], none: str) -> None:
        if self.as_json:
            self.emit({"results": found})
        elif not found:
            self.say(none)
        else:
            self.table(columns, [[_cell(row[name]) for name in columns] for row in found])

    def _list(self, state: str, limit: int, case_id: int | None) -> int:
        self._check(limit)
        rows = dead_letters.visible(self.account)
        if case_id is not None:
            rows = rows.filter(case=cases.share_of(self.account, case_id).case_id)
        rows = rows if state == "all" else dead_letters.in_state(rows, state)
        columns = ["id", "state", "reason", "error_class", "agent", "run", "case", "buried_at", "message"]
        none = "There are no dead letters." if state == "all" else f"There are no dead letters in state {state}."
        self._show_rows([dict(DeadLetterBrief(row).data) for row in rows[:limit]], columns, none)
        return DONE

    def _show(self, letter_id: int) -> int:
        letter = dict(DeadLetterOut(dead_letters.get_dead_letter(letter_id, self.account)).data)
        if self.as_json:
            self.emit(letter)
        else:
            self.table(["field", "value"], letter.items())
        return DONE

    def _each(self, ids: list[int], act: Callable[[int], dict[str, Any]]) -> int:
        """Do one act for each id; with several, one that is refused does not stop the others."""
        does = act if len(ids) == 1 else partial(self._tried, act)
        results = [does(letter_id) for letter_id in ids]
        if self.as_json:
            self.emit({"results": results})
        else:
            for row in results:
                self.say(f"{row['dead_letter']}: {_became(row)}")
        return FAILED if any("code" in row for row in results) else DONE

    @staticmethod
    def _tried(act: Callable[[int], dict[str, Any]], letter_id: int) -> dict[str, Any]:
        try:
            return act(letter_id)
        except Refusal as refusal:
            return {"dead_letter": letter_id, "code": refusal.code, "detail": refusal.message}

    def _requeue(self, letter_id: int, reason: str) -> dict[str, Any]:
        letter = dead_letters.get_dead_letter(letter_id, self.account)
        run = dead_letters.requeue(dead_letter_id=letter.pk, actor=self.actor, reason=reason, account=self.account)
        return {"dead_letter": letter_id, "run": str(run.pk)}

    def _discard(self, letter_id: int, reason: str) -> dict[str, Any]:
        letter = dead_letters.get_dead_letter(letter_id, self.account)
        row = dead_letters.discard(dead_letter_id=letter.pk, actor=self.actor, reason=reason, account=self.account)
        return {"dead_letter": letter_id, "state": row.state}

    def _restore(self, letter_id: int, reason: str) -> dict[str, Any]:
        row = dead_letters.restore(dead_letter_id=letter_id, actor=self.actor, reason=reason, account=self.account)
        return {"dead_letter": letter_id, "state": row.state}


def _became(row: dict[str, Any]) -> str:
    """Return in words what an act made of one dead letter, or why it was refused."""
    if "code" in row:
        return str(row["detail"])
    if "run" in row:
        return f"requeued as run {row['run']}"
    return "open again" if row["state"] == DeadLetter.State.OPEN else str(row["state"])


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
