"""`dead_letters list|show|requeue|discard`: look after what was set aside for a person.

Exit codes: 0 done, 1 at least one of several ids was refused (the others were done), 2 wrong usage or refused,
4 no instance. With `--json`: list {results}, show the letter, requeue and discard {results: [{dead_letter, …}]}.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from quotas.command import DONE, FAILED, InstanceCommand
from quotas.errors import Refusal
from workers import dead_letters
from workers.models import DeadLetter
from workers.serializers import DeadLetterBrief, DeadLetterOut

LIMIT_MAX = 10_000


class Command(InstanceCommand):
    help = "List, show, requeue or discard the account's dead letters."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        acts = parser.add_subparsers(dest="act", required=True, metavar="list|show|requeue|discard")
        listing = acts.add_parser("list", help="newest first")
        listing.add_argument("--state", choices=[*DeadLetter.State.values, "all"], default="open")
        listing.add_argument("--limit", type=int, default=50)
        show = acts.add_parser("show", help="one dead letter with its stream entry")
        show.add_argument("id", type=int)
        requeue = acts.add_parser("requeue", help="make a new run of each")
        requeue.add_argument("ids", type=int, nargs="+", metavar="ID")
        requeue.add_argument("--reason", default="")
        discard = acts.add_parser("discard", help="put each aside for good")
        discard.add_argument("ids", type=int, nargs="+", metavar="ID")
        discard.add_argument("--reason", required=True)
        for act in (listing, show, requeue, discard):  # also after the act, where people write them
            act.add_argument("--json", action="store_true", dest="json_after")
            act.add_argument("--account", dest="account_after")

    def handle(self, *args: Any, **options: Any) -> None:
        options["json"] = options["json"] or options["json_after"]
        options["account"] = options["account_after"] or options["account"]
        super().handle(*args, **options)

    def run(self, options: dict[str, Any]) -> int:
        if options["act"] == "list":
            return self._list(options["state"], options["limit"])
        if options["act"] == "show":
            return self._show(options["id"])
        reason = options["reason"].strip()
        if options["act"] == "requeue":
            return self._each(options["ids"], lambda letter_id: self._requeue(letter_id, reason))
        if not reason:
            self.usage("--reason: say why.")
        return self._each(options["ids"], lambda letter_id: self._discard(letter_id, reason))

    def _list(self, state: str, limit: int) -> int:
        if not 1 <= limit <= LIMIT_MAX:
            self.usage(f"--limit must be 1 to {LIMIT_MAX}.")
        rows = dead_letters.visible(self.account)
        rows = rows if state == "all" else dead_letters.in_state(rows, state)
        found = [dict(DeadLetterBrief(row).data) for row in rows[:limit]]
        if self.as_json:
            self.emit({"results": found})
        elif not found:
            self.say("There are no dead letters." if state == "all" else f"There are no dead letters in state {state}.")
        else:
            columns = ["id", "state", "reason", "error_class", "agent", "run", "buried_at", "message"]
            self.table(columns, [[_cell(row[name]) for name in columns] for row in found])
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
                facts = {name: value for name, value in row.items() if name != "dead_letter"}
                self.say(f"{row['dead_letter']}: {json.dumps(facts, default=str)}")
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


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
