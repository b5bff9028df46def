"""The JSON of what runs make and take: artifacts, uploaded files, agents."""

from typing import Any

from rest_framework import serializers

from quotas.models import Priority
from runs.models import OnLost, StoredFile


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


class BackoffOut(serializers.Serializer[dict[str, Any]]):
    """The delay before attempt n + 1: at random between 0 and base · 2ⁿ⁻¹ seconds, at most cap."""

    base = serializers.FloatField()
    cap = serializers.FloatField()


class AgentOut(serializers.Serializer[dict[str, Any]]):
    """An agent: what it takes, and what a run of it gets by default."""

    name = serializers.CharField()
    version = serializers.CharField()
    description = serializers.CharField()
    input_schema = serializers.JSONField()
    sample = serializers.JSONField(allow_null=True)
    estimate = serializers.IntegerField(
        allow_null=True,
        help_text="Micro-units that would be held for `sample` now; null where it depends on an input and there is"
        " no sample, or on a model without a price.",
    )
    estimate_kind = serializers.ChoiceField(
        choices=["fixed", "function", "recent"],
        help_text="`function`: of the input; `recent`: the p95 of what the account's latest runs of it cost.",
    )
    queue = serializers.CharField()
    priority = serializers.ChoiceField(choices=Priority.choices)
    time_limit_seconds = serializers.FloatField(help_text="Of one attempt.")
    queue_wait_seconds = serializers.FloatField(help_text="How long a run may wait for a worker.")
    wall_clock_seconds = serializers.FloatField(help_text="Of all attempts, from the first start.")
    no_progress_seconds = serializers.FloatField(
        allow_null=True, help_text="How long a handler may be silent; null: it may."
    )
    max_attempts = serializers.IntegerField()
    max_running = serializers.IntegerField(allow_null=True, help_text="Runs of it at work at once; null: no limit.")
    backoff = BackoffOut()
    dedupe_seconds = serializers.FloatField()
    policy = serializers.ChoiceField(choices=OnLost.choices, help_text="When the worker of a run is lost.")
    on_drain = serializers.ChoiceField(
        choices=["interrupt", "hand_back"], help_text="When a worker that drains cannot wait for the run."
    )
    isolation = serializers.ChoiceField(choices=["loop", "process"])
    extend = serializers.BooleanField(help_text="Whether a run that spends more than its estimate gets more.")
    allow = serializers.ListField(child=serializers.CharField(), help_text="What a submit may say otherwise.")


class AgentPage(serializers.Serializer[dict[str, Any]]):
    """All agents of this instance."""

    results = AgentOut(many=True)
    next = serializers.CharField(allow_null=True)
