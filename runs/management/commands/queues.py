"""`queues list|pause|resume`: which queues are paused, and pausing them.

Exit codes: 0 done (also where it was so already), 2 wrong usage or no such queue, 4 no instance. With `--json`: list
{results: [{queue, paused, reason, paused_by, paused_at}]}, pause and resume one such row with `changed`.
"""

from typing import Any

from django.core.management.base import CommandParser

from quotas.command import DONE, InstanceCommand
from quotas.display import moment
from runs.controls import pause_facts, pause_queue, queue_names, resume_queue
from runs.models import QueuePause


class Command(InstanceCommand):
    help = "List the queues, pause one (workers take nothing from it, what runs goes on), or resume it."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        acts = parser.add_subparsers(dest="act", required=True, metavar="list|pause|resume")
        listing = acts.add_parser("list", help="all queues, and which of them are paused")
        pause = acts.add_parser("pause", help="until it is resumed, whatever is restarted meanwhile")
        pause.add_argument("queue", metavar="QUEUE")
        pause.add_argument("--reason", required=True, help="shown to everybody who looks, kept in the audit log")
        resume = acts.add_parser("resume", help="let workers take from it again")
        resume.add_argument("queue", metavar="QUEUE")
        resume.add_argument("--reason", default="", help="kept in the audit log")
        for act in (listing, pause, resume):  # also after the act, where people write them
            act.add_argument("--json", action="store_true", dest="json_after")

    def handle(self, *args: Any, **options: Any) -> None:
        options["json"] = options["json"] or options["json_after"]
        super().handle(*args, **options)

    def run(self, options: dict[str, Any]) -> int:
        if options["act"] == "list":
            return self._list()
        queue, reason = options["queue"], options["reason"].strip()
        if options["act"] == "pause":
            row, changed = pause_queue(queue=queue, actor=self.actor, reason=reason)
            self._tell({"paused": True, **pause_facts(row), "changed": changed}, _sentence(row, changed=changed))
            return DONE
        ended = resume_queue(queue=queue, actor=self.actor, reason=reason)
        said = f"The queue {queue} was not paused." if ended is None else f"The queue {queue} is resumed."
        self._tell({"queue": queue, "paused": False, "changed": ended is not None}, said)
        return DONE

    def _list(self) -> int:
        pauses = {row.queue: row for row in QueuePause.objects.order_by("queue")}
        rows = [_row(queue, pauses.get(queue)) for queue in dict.fromkeys([*queue_names(), *pauses])]
        if self.as_json:
            self.emit({"results": rows})
            return DONE
        shown = []
        for row in rows:
            state = "paused" if row["paused"] else "open"
            shown.append((row["queue"], state, row["paused_by"], moment(row["paused_at"]), row["reason"]))
        self.table(["queue", "state", "by", "since", "reason"], shown)
        return DONE

    def _tell(self, facts: dict[str, Any], sentence: str) -> None:
        if self.as_json:
            self.emit(facts)
        self.say(sentence)


def _row(queue: str, pause: QueuePause | None) -> dict[str, Any]:
    nobody = {"queue": queue, "reason": None, "paused_by": None, "paused_at": None}
    return {"paused": pause is not None, **(nobody if pause is None else pause_facts(pause))}


def _sentence(row: QueuePause, *, changed: bool) -> str:
    if changed:
        return f"The queue {row.queue} is paused. Workers know within about a second; what runs goes on."
    return (
        f"The queue {row.queue} was paused before, by {row.paused_by} since {moment(row.paused_at)}: {row.reason}\n"
        f"That reason is kept; for another one: `queues resume {row.queue}` first, then pause it again."
    )
