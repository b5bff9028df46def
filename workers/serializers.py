"""How dead letters, queues and workers look to operators."""

from typing import Any

from rest_framework import serializers

from runs.fields import StrictSerializer, Text
from runs.serializers import RunOut
from workers.dead_letters import state_of
from workers.models import Case, CaseAccount, DeadLetter, WorkerProcess


class DeadLetterBrief(serializers.ModelSerializer[DeadLetter]):
    """A dead letter as an item of a list. `state` is `requeued` too when its run was requeued elsewhere."""

    case = serializers.IntegerField(
        source="case_id", allow_null=True, help_text="The case of all that failed alike; null until it is filed."
    )
    run = serializers.UUIDField(source="run_id", allow_null=True)
    agent = serializers.CharField(source="run.agent", default=None, allow_null=True)
    retried_by = serializers.UUIDField(source="run.retried_by", default=None, allow_null=True)
    state = serializers.SerializerMethodField()

    class Meta:
        model = DeadLetter
        fields = [
            "id",
            "state",
            "reason",
            "error_class",
            "case",
            "message",
            "run",
            "agent",
            "retried_by",
            "buried_at",
            "resolved_at",
            "resolved_by",
            "resolved_reason",
        ]

    def get_state(self, row: DeadLetter) -> str:
        return state_of(row)


class DeadLetterOut(DeadLetterBrief):
    """A dead letter in full: the entry of the stream it came from, the run's attempts, its last answer."""

    attempt = serializers.IntegerField(source="run.attempt", default=None, allow_null=True)
    max_attempts = serializers.IntegerField(source="run.max_attempts", default=None, allow_null=True)
    answer = serializers.JSONField(
        source="run.result", default=None, allow_null=True, help_text="What a run of class bad_output answered last."
    )

    class Meta(DeadLetterBrief.Meta):
        fields = [*DeadLetterBrief.Meta.fields, "attempt", "max_attempts", "answer", "stream", "entry_id", "payload"]


class DeadLetterPage(serializers.Serializer[dict[str, Any]]):
    """One page, newest first."""

    results = DeadLetterBrief(many=True)
    next = serializers.CharField(allow_null=True)


class CaseOut(serializers.ModelSerializer[CaseAccount]):
    """What the account has of a case: dead letters that failed for one cause. The numbers count its own alone."""

    id = serializers.IntegerField(source="case_id")
    state = serializers.ChoiceField(source="case.state", choices=Case.State.choices)
    agent = serializers.CharField(source="case.agent")
    error_class = serializers.CharField(source="case.error_class")
    error_type = serializers.CharField(source="case.error_type")
    reason = serializers.CharField(source="case.reason")
    pattern = serializers.CharField(source="case.pattern", help_text="The message without what differs.")
    cost = serializers.IntegerField(help_text="What its failed runs cost, in micro-units.")

    class Meta:
        model = CaseAccount
        fields = [
            "id", "state", "agent", "error_class", "error_type", "reason", "pattern", "count", "open_count", "cost",
            "first_seen_at", "last_seen_at",
        ]  # fmt: skip


class CasePage(serializers.Serializer[dict[str, Any]]):
    """One page, the newest case first."""

    results = CaseOut(many=True)
    next = serializers.CharField(allow_null=True)


class RequeueIn(StrictSerializer):
    """Why the run is tried again."""

    reason = Text(max_length=500, required=False, allow_blank=True)


class DiscardIn(StrictSerializer):
    """Why nothing more is done about it."""

    reason = Text(max_length=500)

    def validate_reason(self, value: str) -> str:
        if not value.strip():
            raise serializers.ValidationError("Say why.")
        return value


class RequeueOut(serializers.Serializer[dict[str, Any]]):
    """The new run made of the dead one."""

    run = RunOut()


class QueueOut(serializers.Serializer[dict[str, Any]]):
    """One priority of one queue."""

    queue = serializers.CharField()
    priority = serializers.CharField()
    waiting = serializers.IntegerField()
    in_flight = serializers.IntegerField()
    oldest_wait_seconds = serializers.FloatField(allow_null=True)


class ParkedOut(serializers.Serializer[dict[str, Any]]):
    """A limit on runs at work at once for which runs of a queue wait."""

    queue = serializers.CharField()
    limit = serializers.CharField(help_text="`agent:<name>` or `account:<id>`")
    most = serializers.IntegerField(help_text="How many it lets be at work.")
    running = serializers.IntegerField(help_text="Places in use, and those promised to runs that are on their way.")
    parked = serializers.IntegerField(help_text="Runs that wait for a place; no stream has them.")


class SlotsOut(serializers.Serializer[dict[str, Any]]):
    """Global slots: the limit of each queue, and how many each has given out."""

    limit = serializers.IntegerField(allow_null=True)
    used = serializers.DictField(child=serializers.IntegerField())


class PausedOut(serializers.Serializer[dict[str, Any]]):
    """A paused queue: no worker takes from it, what is submitted waits."""

    queue = serializers.CharField()
    reason = serializers.CharField()
    paused_by = serializers.CharField()
    paused_at = serializers.DateTimeField()


class MaintenanceOut(serializers.Serializer[dict[str, Any]]):
    """Why new runs are refused now."""

    message = serializers.CharField()
    retry_after_seconds = serializers.IntegerField()
    set_by = serializers.CharField()
    set_at = serializers.DateTimeField()


class QueueStatusOut(serializers.Serializer[dict[str, Any]]):
    """The queues, what operators hold back, the limits that runs wait for, global slots, and how many workers live."""

    queues = QueueOut(many=True)
    parked = ParkedOut(many=True)
    paused = PausedOut(many=True)
    maintenance = MaintenanceOut(allow_null=True)
    slots = SlotsOut()
    workers_alive = serializers.IntegerField()
    redis = serializers.ChoiceField(
        choices=["ok", "away"], help_text="`away`: the figures come from the database alone."
    )


class WorkerOut(serializers.ModelSerializer[WorkerProcess]):
    """A worker process."""

    queues = serializers.ListField(child=serializers.CharField())
    agents = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = WorkerProcess
        fields = [
            "name",
            "host",
            "pid",
            "version",
            "queues",
            "agents",
            "concurrency",
            "running_count",
            "memory_bytes",
            "port",
            "started_at",
            "heartbeat_at",
            "drain_requested_at",
            "draining_since",
            "stopped_at",
        ]


class WorkerPage(serializers.Serializer[dict[str, Any]]):
    """All workers that are alive."""

    results = WorkerOut(many=True)
    next = serializers.CharField(allow_null=True)
