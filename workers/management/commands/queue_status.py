"""`queue_status`: what waits and runs in each ready stream, and the workers alive. Exit codes: quotas/command.py."""

from typing import Any

from quotas.command import DONE, InstanceCommand
from quotas.display import moment
from workers.selectors import queue_status
from workers.why import why_of_oldest


class Command(InstanceCommand):
    help = "Show, for each queue and priority, how many runs wait and are in flight, and the oldest wait."

    def run(self, options: dict[str, Any]) -> int:  # noqa: ARG002
        status = queue_status() | {"why": why_of_oldest()}
        if self.as_json:
            self.emit(status)
            return DONE
        columns = ["queue", "priority", "waiting", "in flight", "oldest wait"]
        self.table(
            columns,
            [(row["queue"], row["priority"], row["waiting"], row["in_flight"], _age(row)) for row in status["queues"]],
        )
        for row in status["paused"]:
            since = moment(row["paused_at"])
            self.say(f"queue {row['queue']} is paused by {row['paused_by']} since {since}: {row['reason']}")
        if status["maintenance"]:
            self.say(f"maintenance, no new runs: {status['maintenance']['message']}")
        for row in status["parked"]:
            at_work = f"{row['running']} of {row['most']} at work"
            self.say(f"limit {row['limit']} in {row['queue']}: {row['parked']} parked, {at_work}")
        for row in status["why"]:
            self.say(f"oldest run of {row['queue']}, {row['run']}: {row['text']}")
        limit = status["slots"]["limit"]
        if limit is not None:
            for queue, used in status["slots"]["used"].items():
                self.say(f"slots of {queue}: {used} of {limit}")
        if status["redis"] != "ok":
            self.say("Redis does not answer: these figures come from the database.")
        self.say(f"workers alive: {status['workers_alive']}")
        return DONE


def _age(row: dict[str, Any]) -> str:
    seconds = row["oldest_wait_seconds"]
    return "" if seconds is None else f"{seconds:.1f} s"
