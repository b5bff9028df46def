"""`maintenance on|off|show`: refuse new runs for a while, with a message for clients.

Exit codes: 0 done (also where it was so already), 2 wrong usage, 4 no instance. With `--json`:
{on, message, retry_after_seconds, set_by, set_at}, the last four null while it is off.
"""

from typing import Any

from django.core.management.base import CommandParser

from quotas.command import DONE, InstanceCommand
from quotas.display import moment
from runs.controls import RETRY_AFTER_SECONDS, begin_maintenance, end_maintenance, maintenance_facts
from runs.models import Maintenance

NOTHING = dict.fromkeys(("message", "retry_after_seconds", "set_by", "set_at"))


class Command(InstanceCommand):
    help = "Refuse new runs (503 with the message and Retry-After) until it is switched off; what is there goes on."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        acts = parser.add_subparsers(dest="act", required=True, metavar="on|off|show")
        on = acts.add_parser("on", help="refuse new runs; again: change message and seconds")
        on.add_argument("--message", required=True, help="what clients and the console are told")
        seconds = "when clients shall come again (default: %(default)s)"
        on.add_argument("--retry-after", type=int, default=RETRY_AFTER_SECONDS, metavar="SECONDS", help=seconds)
        off = acts.add_parser("off", help="accept new runs again")
        off.add_argument("--reason", default="", help="kept in the audit log")
        show = acts.add_parser("show", help="whether it is on, and since when")
        for act in (on, off, show):  # also after the act, where people write them
            act.add_argument("--json", action="store_true", dest="json_after")

    def handle(self, *args: Any, **options: Any) -> None:
        options["json"] = options["json"] or options["json_after"]
        super().handle(*args, **options)

    def run(self, options: dict[str, Any]) -> int:
        if options["act"] == "on":
            begin_maintenance(message=options["message"], retry_after_seconds=options["retry_after"], actor=self.actor)
        elif options["act"] == "off":
            end_maintenance(actor=self.actor, reason=options["reason"].strip())
        row = Maintenance.objects.first()
        if self.as_json:
            self.emit({"on": row is not None, **(NOTHING if row is None else maintenance_facts(row))})
        elif row is None:
            self.say("Maintenance is off: new runs are accepted.")
        else:
            self.say(f"Maintenance is on, by {row.set_by} since {moment(row.set_at)}: {row.message}")
            self.say(f"New runs are refused; clients are told to come again in {row.retry_after_seconds} s.")
        return DONE
