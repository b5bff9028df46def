"""The JSON of runs: what a submit may say, and how a run, a file and an artifact look to clients."""

import json
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from quotas.json_rules import key_path
from quotas.models import Priority
from runs.models import Attempt, Run, StoredFile
from runs.services.submit import TIME_LIMIT_MAX
from runs.states import RunState

METADATA_BYTES = 16 * 1024
TAGS_MAX, TAG_MAX = 20, 60


class Text(serializers.CharField):
    """A JSON string: numbers are not turned into one, spaces stay."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("Must be a string.", code="invalid")
        return str(super().to_internal_value(data))


class Seconds(serializers.FloatField):
    """A JSON number of seconds above 0."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise serializers.ValidationError("Must be a number of seconds.", code="invalid")
        if not 0 < data <= TIME_LIMIT_MAX:
            raise serializers.ValidationError(f"Must be above 0 and at most {TIME_LIMIT_MAX:.0f}.")
        return float(data)


class StrictSerializer(serializers.Serializer[dict[str, Any]]):
    """Refuses fields it does not know, by name: a misspelt option must not be ignored."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        unknown = [name for name in data if name not in self.fields] if isinstance(data, dict) else []
        if unknown:
            raise serializers.ValidationError(
                {key_path("", name): "This field is unknown." for name in unknown[:20]}, code="unknown"
            )
        return dict(super().to_internal_value(data))


class SubmitIn(StrictSerializer):
    """A run to submit. `input` must fit the agent's schema (GET /agents)."""

    agent = Text(max_length=120)
    input = serializers.JSONField(allow_null=True)
    priority = serializers.ChoiceField(choices=Priority.choices, required=False, allow_null=True)
    session = Text(max_length=200, required=False, allow_blank=True, help_text="One run at a time a session.")
    on_busy = Text(max_length=20, required=False, help_text="What to do when the session is busy: `reject`.")
    metadata = serializers.JSONField(required=False, help_text="An object of at most 16 KiB.")
    tags = serializers.ListField(child=Text(max_length=TAG_MAX), max_length=TAGS_MAX, required=False)
    time_limit = Seconds(required=False, help_text="Seconds an attempt may take, where the agent lets a submit say so.")

    def validate_metadata(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise serializers.ValidationError("Must be an object.")
        if len(json.dumps(value, ensure_ascii=False).encode()) > METADATA_BYTES:
            raise serializers.ValidationError(f"Must be at most {METADATA_BYTES} bytes.")
        return value


class ReasonIn(StrictSerializer):
    """Why; kept with the act."""

    reason = Text(max_length=500, required=False, allow_blank=True)


class NothingIn(StrictSerializer):
    """An empty body, or {}."""


class RunBrief(serializers.ModelSerializer[Run]):
    """A run as an item of a list: without input and result."""

    account = serializers.CharField(source="account.name")
    state = serializers.ChoiceField(choices=RunState.choices)
    retry_of = serializers.UUIDField(source="retry_of_id", allow_null=True)
    usage = serializers.JSONField(help_text="Tokens by model and kind.")
    error = serializers.JSONField(allow_null=True, help_text="{class, type, message, traceback}")
    cost = serializers.IntegerField(help_text="Micro-units spent so far.")
    metadata = serializers.JSONField()
    tags = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Run
        fields = [
            "id",
            "state",
            "is_terminal",
            "agent",
            "account",
            "queue",
            "priority",
            "session",
            "error",
            "usage",
            "cost",
            "attempt",
            "fence",
            "metadata",
            "tags",
            "queued_at",
            "started_at",
            "finished_at",
            "cancel_requested_at",
            "retry_of",
            "retried_by",
        ]


class Progress(serializers.Serializer[dict[str, Any]]):
    """How far the current attempt says it is."""

    done = serializers.IntegerField()
    total = serializers.IntegerField()
    message = serializers.CharField()


class AttemptOut(serializers.ModelSerializer[Attempt]):
    """One try at the run. `result` is there when a cancel came before a success: the run is cancelled all the same."""

    result = serializers.SerializerMethodField()

    class Meta:
        model = Attempt
        fields = [
            "number",
            "fence",
            "worker",
            "started_at",
            "ended_at",
            "outcome",
            "error",
            "usage",
            "cost",
            "progress",
            "result",
        ]

    @extend_schema_field({})
    def get_result(self, row: Attempt) -> Any:
        return None if row.result_json is None else json.loads(row.result_json)


class RunOut(RunBrief):
    """A run in full. `hold` is what was set aside for it, `progress` its last attempt's word."""

    input = serializers.JSONField()
    result = serializers.JSONField(allow_null=True)
    hold = serializers.SerializerMethodField()
    progress = serializers.SerializerMethodField()
    attempts = serializers.SerializerMethodField()

    class Meta(RunBrief.Meta):
        fields = [*RunBrief.Meta.fields, "input", "result", "hold", "progress", "attempts"]

    def get_hold(self, _run: Run) -> int | None:
        hold: int | None = self.context.get("hold")
        return hold

    @extend_schema_field(Progress(allow_null=True))
    def get_progress(self, _run: Run) -> dict[str, Any] | None:
        attempts: list[Attempt] = self.context.get("attempts", [])
        return (attempts[-1].progress or None) if attempts else None

    @extend_schema_field(AttemptOut(many=True))
    def get_attempts(self, _run: Run) -> Any:
        return AttemptOut(self.context.get("attempts", []), many=True).data


class RunPage(serializers.Serializer[dict[str, Any]]):
    """One page of runs, newest first."""

    results = RunBrief(many=True)
    next = serializers.CharField(allow_null=True)


class CancelOut(serializers.Serializer[dict[str, Any]]):
    """What a cancel did: the run is cancelled, or its worker was asked to stop."""

    what = serializers.ChoiceField(choices=["cancelled", "requested"])
    run = RunOut()


class TicketOut(serializers.Serializer[dict[str, Any]]):
    """A single-use ticket for one socket of the run."""

    ticket = serializers.CharField()
    expires_in = serializers.IntegerField(help_text="Seconds.")


class ArtifactOut(serializers.Serializer[dict[str, Any]]):
    """A file the run made."""

    name = serializers.CharField()
    size = serializers.IntegerField()
    content_type = serializers.CharField()
    made_at = serializers.DateTimeField()
    url = serializers.CharField()


class ArtifactPage(serializers.Serializer[dict[str, Any]]):
    """All artifacts of a run."""

    results = ArtifactOut(many=True)
    next = serializers.CharField(allow_null=True)


class FileIn(serializers.Serializer[dict[str, Any]]):
    """A multipart form with one file."""

    file = serializers.FileField()


class FileOut(serializers.Serializer[StoredFile]):
    """An uploaded file; its `id` goes into an input field of format `file`."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    size = serializers.IntegerField()
    content_type = serializers.CharField()
    uploaded_at = serializers.DateTimeField()


class AgentOut(serializers.Serializer[dict[str, Any]]):
    """An agent: what it takes, and what a run of it gets by default."""

    name = serializers.CharField()
    version = serializers.CharField()
    description = serializers.CharField()
    input_schema = serializers.JSONField()
    sample = serializers.JSONField(allow_null=True)
    estimate = serializers.IntegerField(
        allow_null=True, help_text="Micro-units held for `sample`; null where it depends on the input."
    )
    queue = serializers.CharField()
    priority = serializers.ChoiceField(choices=Priority.choices)
    time_limit_seconds = serializers.FloatField()
    dedupe_seconds = serializers.FloatField()
    policy = serializers.CharField()
    allow = serializers.ListField(child=serializers.CharField())


class AgentPage(serializers.Serializer[dict[str, Any]]):
    """All agents of this instance."""

    results = AgentOut(many=True)
    next = serializers.CharField(allow_null=True)
