"""The JSON of runs: what a submit may say, and how a run looks to clients."""

import datetime as dt
import json
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from quotas.json_rules import digest
from quotas.models import Account, Priority
from runs.agents import ATTEMPTS_MAX
from runs.fields import Moment, Seconds, StrictSerializer, Text, Whole
from runs.limits import Limit
from runs.models import Attempt, OnLost, Run
from runs.services.overrides import DELAY_MAX, ON_BUSY
from runs.states import RunState
from runs.why import Why, WhyCode

METADATA_BYTES = 16 * 1024
TAGS_MAX, TAG_MAX = 20, 60
USAGE_HELP = "Tokens by model and kind; a kind that begins with `unpriced_` had no price, and is in no cost."


class SubmitIn(StrictSerializer):
    """A run to submit. `input` must fit the agent's schema (GET /agents)."""

    agent = Text(max_length=120)
    input = serializers.JSONField(allow_null=True)
    priority = serializers.ChoiceField(choices=Priority.choices, required=False, allow_null=True)
    session = Text(max_length=200, required=False, allow_blank=True, help_text="One run at a time a session.")
    on_busy = serializers.ChoiceField(
        choices=ON_BUSY,
        required=False,
        help_text="When the session has a run: `reject` this one (409), `enqueue` it behind, `replace` what is there.",
    )
    delay = Seconds(
        most=DELAY_MAX.total_seconds(), or_none=True, required=False, help_text="Seconds before it may begin; 0: none."
    )
    start_at = Moment(required=False, help_text="Not before this time, in place of `delay`; past: at once.")
    deadline_seconds = Seconds(
        most=DELAY_MAX.total_seconds(),
        required=False,
        help_text="Seconds from now after which the run is over, whatever it is doing.",
    )
    metadata = serializers.JSONField(required=False, help_text="An object of at most 16 KiB.")
    tags = serializers.ListField(child=Text(max_length=TAG_MAX), max_length=TAGS_MAX, required=False)
    time_limit = Seconds(required=False, help_text="Seconds an attempt may take, where the agent lets a submit say so.")
    max_attempts = Whole(
        min_value=1,
        max_value=ATTEMPTS_MAX,
        required=False,
        help_text="How often it is tried, where the agent allows it.",
    )
    on_lost = serializers.ChoiceField(
        choices=OnLost.choices,
        required=False,
        help_text="What becomes of it when its worker is lost, where the agent allows it.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "delay" in attrs and "start_at" in attrs:
            raise serializers.ValidationError({"start_at": "Give delay or start_at, not both."})
        return attrs

    def validate_metadata(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise serializers.ValidationError("Must be an object.")
        if len(json.dumps(value, ensure_ascii=False).encode()) > METADATA_BYTES:
            raise serializers.ValidationError(f"Must be at most {METADATA_BYTES} bytes.")
        return value


def body_digest(body: dict[str, Any]) -> str:
    """Return what tells one validated submit from another: the same moment in two offsets is the same."""
    return digest({name: at.isoformat() if isinstance(at, dt.datetime) else at for name, at in body.items()})


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
    usage = serializers.JSONField(help_text=USAGE_HELP)
    error = serializers.JSONField(
        allow_null=True,
        help_text="{class, type, message, traceback, cause}; cause: why there was no further attempt.",
    )
    attempt = serializers.IntegerField(help_text="The current attempt, or the next one while it waits for it.")
    submitted_at = serializers.DateTimeField(help_text="When it was accepted.")
    queued_at = serializers.DateTimeField(help_text="When it last began to wait for a worker.")
    not_before = serializers.DateTimeField(allow_null=True, help_text="While scheduled: when it may begin.")
    waits_until = serializers.DateTimeField(
        allow_null=True, help_text="While it waits: it fails as `queue_timeout` if nobody has begun it by then."
    )
    blocked_by_session = serializers.SerializerMethodField(help_text="The session whose end of a run it waits for.")
    stop_requested = serializers.ChoiceField(
        choices=["", *Limit], help_text="The limit in time that its running attempt has passed."
    )
    cost = serializers.IntegerField(help_text="Micro-units spent so far.")
    budget = serializers.IntegerField(help_text="Micro-units reserved for it: its estimate, and what was added since.")
    waived = serializers.SerializerMethodField(help_text="Whether an operator has its cost written off as it ends.")
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
            "budget",
            "waived",
            "attempt",
            "max_attempts",
            "on_lost",
            "fence",
            "metadata",
            "tags",
            "submitted_at",
            "queued_at",
            "started_at",
            "finished_at",
            "not_before",
            "blocked_by_session",
            "waits_until",
            "deadline_at",
            "time_limit_seconds",
            "wall_clock_seconds",
            "no_progress_seconds",
            "cancel_requested_at",
            "stop_requested",
            "retry_of",
            "retried_by",
        ]

    def get_waived(self, run: Run) -> bool:
        return bool(run.waived_by)

    def get_blocked_by_session(self, run: Run) -> str | None:
        return None if run.blocked_by_session is None else run.session


class Progress(serializers.Serializer[dict[str, Any]]):
    """How far the current attempt says it is."""

    done = serializers.IntegerField()
    total = serializers.IntegerField()
    message = serializers.CharField()


class AttemptOut(serializers.ModelSerializer[Attempt]):
    """One try at the run. `result` did not become the run's: a bad output, or a success that a cancel overtook."""

    result = serializers.SerializerMethodField()
    paid_by = serializers.SerializerMethodField(help_text="The account that pays for it.")
    usage = serializers.JSONField(help_text=USAGE_HELP)

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
            "paid_by",
            "progress",
            "result",
        ]

    def get_paid_by(self, _row: Attempt) -> str:
        return str(self.context["account"])

    @extend_schema_field({})
    def get_result(self, row: Attempt) -> Any:
        return None if row.result_json is None else json.loads(row.result_json)


class WhyOut(serializers.Serializer[dict[str, Any]]):
    """Why a run is not moving."""

    code = serializers.ChoiceField(choices=[*WhyCode], help_text="Stable; the table is in docs/api.md.")
    text = serializers.CharField(help_text="For people, in plain English; it may change.")
    facts = serializers.DictField(child=serializers.JSONField(allow_null=True), help_text="What the text is made of.")


class RunOut(RunBrief):
    """A run in full. `hold` is what was set aside for it, `progress` its last attempt's word."""

    estimate = serializers.SerializerMethodField(help_text="Micro-units it would probably cost, when it was submitted.")
    input = serializers.JSONField()
    result = serializers.JSONField(allow_null=True)
    payload_pruned = serializers.BooleanField(help_text="Input, result and files are gone, by retention.")
    hold = serializers.SerializerMethodField()
    ledger_line = serializers.SerializerMethodField(help_text="The ledger's line that settled it: see `GET /ledger`.")
    progress = serializers.SerializerMethodField()
    why = serializers.SerializerMethodField(
        help_text="Why it is not moving; null while it moves, when it is over, and in every answer but `get_run`'s."
    )
    attempts = serializers.SerializerMethodField()

    class Meta(RunBrief.Meta):
        fields = [
            *RunBrief.Meta.fields,
            "estimate",
            "input",
            "result",
            "payload_pruned",
            "hold",
            "ledger_line",
            "progress",
            "why",
            "attempts",
        ]

    @extend_schema_field(WhyOut(allow_null=True))
    def get_why(self, _run: Run) -> dict[str, Any] | None:
        why: Why | None = self.context.get("why")
        return None if why is None else why.as_json()

    def get_ledger_line(self, _run: Run) -> int | None:
        line: int | None = self.context.get("ledger_line")
        return line

    def get_estimate(self, _run: Run) -> int | None:
        estimate: int | None = self.context.get("estimate")
        return estimate

    def get_hold(self, _run: Run) -> int | None:
        hold: int | None = self.context.get("hold")
        return hold

    @extend_schema_field(Progress(allow_null=True))
    def get_progress(self, _run: Run) -> dict[str, Any] | None:
        attempts: list[Attempt] = self.context.get("attempts", [])
        return (attempts[-1].progress or None) if attempts else None

    @extend_schema_field(AttemptOut(many=True))
    def get_attempts(self, run: Run) -> Any:
        account = run.account.name
        return AttemptOut(self.context.get("attempts", []), many=True, context={"account": account}).data


class LimitHit(serializers.Serializer[dict[str, Any]]):
    """A refusal that the submit would get now, with the facts of its code as further members."""

    code = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()


class DryRunOut(serializers.Serializer[dict[str, Any]]):
    """What a submit would be answered now. Nothing was stored; amounts are micro-units."""

    dry_run = serializers.BooleanField()
    agent = serializers.CharField()
    queue = serializers.CharField()
    priority = serializers.ChoiceField(choices=Priority.choices)
    estimate = serializers.IntegerField(help_text="What would be held for the run.")
    allowed = serializers.BooleanField()
    limits_hit = LimitHit(many=True, help_text="Empty where it is allowed.")
    state = serializers.ChoiceField(
        choices=RunState.choices, allow_null=True, help_text="In which it would begin; null where it is not allowed."
    )
    queue_position = serializers.IntegerField(
        allow_null=True, help_text="1: the next one; null where it would not be queued at once."
    )
    account = serializers.CharField()
    limit = serializers.IntegerField()
    spent = serializers.IntegerField()
    held = serializers.IntegerField()
    available = serializers.IntegerField()
    in_flight = serializers.IntegerField()
    max_in_flight = serializers.IntegerField()
    max_running = serializers.IntegerField(allow_null=True, help_text="More than that wait; none is refused.")
    period = serializers.ChoiceField(choices=Account.Period.choices)
    period_ends_at = serializers.DateTimeField(allow_null=True)


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
