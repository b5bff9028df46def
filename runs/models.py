"""The rows of a run: itself, its transitions, attempts, archive, artifacts, and uploaded files.

Input and result are JSON texts, serialised once at the border: what ran is byte for byte what was stored, on
every database, and no JSON work happens under a lock.
"""

import json
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from quotas.models import Account, Priority
from runs.ids import new_run_id
from runs.states import TERMINAL, RunState


class OnLost(models.TextChoices):
    """What becomes of a run whose worker is lost."""

    INTERRUPT = "interrupt"
    RERUN = "rerun"


class Run(models.Model):
    """One requested agent execution. `state` is written by runs.transitions alone."""

    id = models.UUIDField(primary_key=True, default=new_run_id, editable=False)
    account = models.ForeignKey(Account, models.PROTECT, related_name="runs")
    agent = models.CharField(max_length=120)
    queue = models.CharField(max_length=60, default="default")
    priority = models.CharField(max_length=8, choices=Priority, default=Priority.NORMAL)
    state = models.CharField(max_length=11, choices=RunState, default=RunState.QUEUED)
    fence = models.BigIntegerField(default=1)
    attempt = models.PositiveIntegerField(default=1)

    # The owner, while running.
    claim_token = models.CharField(max_length=32, null=True, blank=True, db_index=True)  # noqa: DJ001  no owner is not ""
    worker = models.CharField(max_length=120, blank=True, default="")
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    stop_at = models.DateTimeField(null=True, blank=True)  # the first of its time limits to pass
    quiet_at = models.DateTimeField(null=True, blank=True)  # when its silence counts as no progress
    stop_requested = models.CharField(max_length=12, blank=True, default="")  # a runs.limits.Limit
    stop_requested_at = models.DateTimeField(null=True, blank=True)

    # The way to its next attempt.
    not_before = models.DateTimeField(null=True, blank=True)  # while scheduled
    blocked_by_session = models.CharField(max_length=64, null=True, blank=True)  # noqa: DJ001  the slot it waits for
    waits_until = models.DateTimeField(null=True, blank=True)  # the end of its queue wait, while it waits
    max_attempts = models.PositiveIntegerField(default=1)
    on_lost = models.CharField(max_length=9, choices=OnLost, default=OnLost.INTERRUPT)

    input_json = models.TextField()
    result_json = models.TextField(null=True, blank=True)  # noqa: DJ001  no result is not the empty text
    error = models.JSONField(null=True, blank=True)  # {class, type, message, traceback, cause}
    error_class = models.CharField(max_length=30, blank=True, default="")
    usage = models.JSONField(default=dict, blank=True)  # {model: {kind: tokens}}
    cost = models.BigIntegerField(default=0)
    budget = models.BigIntegerField(default=0)  # what is reserved for it: its hold's amount
    price_book = models.IntegerField(null=True, blank=True)  # by which its latest tokens were priced
    # Its cost is written off as it is settled. The database's default is for processes that do not know of it yet.
    waived_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    metadata = models.JSONField(default=dict, blank=True)
    tags = models.JSONField(default=list, blank=True)

    session = models.CharField(max_length=200, blank=True, default="")
    session_slot = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001  NULLs do not collide
    session_number = models.PositiveIntegerField(default=0)
    idempotency_key = models.CharField(max_length=220, null=True, blank=True)  # noqa: DJ001  NULLs do not collide
    idempotency_digest = models.CharField(max_length=64, blank=True, default="")
    fingerprint = models.CharField(max_length=64, null=True, blank=True)  # noqa: DJ001  NULLs do not collide
    dedupe_until = models.DateTimeField(null=True, blank=True)

    time_limit_seconds = models.FloatField()
    queue_wait_seconds = models.FloatField()
    wall_clock_seconds = models.FloatField(default=1800.0)  # from the first start, over all attempts
    no_progress_seconds = models.FloatField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    retry_of = models.OneToOneField("self", models.SET_NULL, null=True, blank=True, related_name="retried_by_run")
    retried_by = models.UUIDField(null=True, blank=True)
    submitted_by = models.CharField(max_length=150, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")
    traceparent = models.CharField(max_length=60, blank=True, default="")

    submitted_at = models.DateTimeField(default=timezone.now)
    queued_at = models.DateTimeField()  # when it last began to wait for a worker
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    log_closed_at = models.DateTimeField(null=True, blank=True)
    payload_pruned_at = models.DateTimeField(null=True, blank=True)  # from then on input, result and files are gone

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["account", "session_slot"], name="one_session_slot"),
            models.UniqueConstraint(fields=["account", "idempotency_key"], name="one_idempotency"),
            models.UniqueConstraint(fields=["account", "agent", "fingerprint"], name="one_fingerprint"),
        ]
        indexes = [
            models.Index(fields=["state", "queue", "queued_at"], name="run_backlog"),
            models.Index(fields=["state", "lease_expires_at"], name="run_leases"),
            models.Index(fields=["state", "not_before"], name="run_due"),
            models.Index(fields=["state", "waits_until"], name="run_waits"),
            models.Index(fields=["state", "stop_at"], name="run_limits"),
            models.Index(fields=["account", "blocked_by_session", "session_number"], name="run_blocked"),
            models.Index(fields=["log_closed_at", "finished_at"], name="run_open_logs"),
            models.Index(fields=["account", "-id"], name="run_account"),
            models.Index(fields=["account", "agent", "-id"], name="run_account_agent"),
            models.Index(fields=["account", "session", "session_number"], name="run_session"),
            models.Index(fields=["agent", "-id"], name="run_agent"),
            models.Index(fields=["finished_at"], name="run_ended"),  # the charts of the last hour
            models.Index(fields=["agent", "finished_at"], name="run_agent_ended"),  # the figures of an agent
            # For lists of a million runs. A condition leaves most runs out, which then cost nothing; MariaDB and MySQL
            # have none, and read runs one by one instead. PostgreSQL has two for JSON: migration 0008_list_indexes.
            models.Index(fields=["state", "-id"], name="run_state"),  # the commonest filter; the window of error texts
            models.Index(fields=["worker", "-id"], condition=~Q(worker=""), name="run_worker"),
            models.Index(fields=["error_class", "-id"], condition=~Q(error_class=""), name="run_error_class"),
            models.Index(fields=["priority", "-id"], condition=~Q(priority="normal"), name="run_priority"),
            models.Index(fields=["cost"], condition=Q(cost__gt=0), name="run_cost"),
            models.Index(fields=["id"], condition=Q(retried_by__isnull=False), name="run_requeued"),  # of dead letters
        ]
        permissions = [
            ("view_payload", "Can see input, output and errors of runs"),
            ("submit_run", "Can submit runs by hand"),
            ("cancel_run", "Can cancel runs"),
            ("requeue_run", "Can requeue ended runs"),
            ("reprioritise_run", "Can change the priority of waiting runs"),
        ]

    def __str__(self) -> str:
        return f"{self.agent} {self.id}"

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def payload_pruned(self) -> bool:
        """Whether retention has taken input, result and files."""
        return self.payload_pruned_at is not None

    @property
    def input(self) -> Any:
        return json.loads(self.input_json)

    @property
    def result(self) -> Any:
        return None if self.result_json is None else json.loads(self.result_json)


class Transition(models.Model):
    """One change of state, inserted in its transaction: the durable life of the run (protocol 3.1)."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="transitions")
    fence = models.BigIntegerField()
    kind = models.CharField(max_length=30)
    at = models.DateTimeField()
    actor = models.CharField(max_length=150, blank=True, default="")
    data = models.JSONField(default=dict)
    prev = models.CharField(max_length=40, blank=True, default="")  # last event id the owner numbered

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "fence"], name="one_transition_a_fence")]

    def __str__(self) -> str:
        return f"{self.kind} {self.fence}"


class Attempt(models.Model):
    """One try at a run by one worker, keyed by (run, fence)."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    fence = models.BigIntegerField()
    number = models.PositiveIntegerField()
    worker = models.CharField(max_length=120)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=20, blank=True, default="")  # empty while it runs
    error = models.JSONField(null=True, blank=True)
    error_class = models.CharField(max_length=30, blank=True, default="")
    result_json = models.TextField(null=True, blank=True)  # noqa: DJ001  one that did not become the run's: see outcome
    usage = models.JSONField(default=dict, blank=True)
    cost = models.BigIntegerField(default=0)
    price_book = models.IntegerField(null=True, blank=True)
    progress = models.JSONField(default=dict, blank=True)  # {done, total, message}

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "fence"], name="one_attempt_a_fence")]

    def __str__(self) -> str:
        return f"attempt {self.number}"


class EventArchive(models.Model):
    """The whole event log of an ended run: zlib over JSON lines, one event a line (protocol 3.4)."""

    run = models.OneToOneField(Run, models.CASCADE, primary_key=True, related_name="archive")
    body = models.BinaryField()
    event_count = models.PositiveIntegerField()
    last_id = models.CharField(max_length=40)
    archived_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"events of {self.run_id}"


class StoredFile(models.Model):
    """A file uploaded for inputs (`POST /files`); `id` is what an input field of format `file` names."""

    id = models.UUIDField(primary_key=True, default=new_run_id, editable=False)
    account = models.ForeignKey(Account, models.CASCADE, related_name="files")
    name = models.CharField(max_length=200)
    content_type = models.CharField(max_length=100)
    size = models.BigIntegerField()
    path = models.CharField(max_length=300)
    uploaded_at = models.DateTimeField(auto_now_add=True)
    unused_since = models.DateTimeField(null=True, blank=True, default=timezone.now)  # empty while a run names it
    removed_at = models.DateTimeField(null=True, blank=True)  # from then on nobody finds it; its bytes go next

    class Meta:
        indexes = [models.Index(fields=["removed_at", "unused_since"], name="file_unused")]

    def __str__(self) -> str:
        return self.name


class FileUse(models.Model):
    """A run whose input names an uploaded file: what keeps the file."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="file_uses")
    file = models.ForeignKey(StoredFile, models.PROTECT, related_name="uses")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "file"], name="one_file_use")]

    def __str__(self) -> str:
        return f"{self.file_id} in {self.run_id}"


class Artifact(models.Model):
    """A file a run made. Bytes lie in the storage alias `artifacts`, under a name that carries the fence."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="artifacts")
    name = models.CharField(max_length=200)
    content_type = models.CharField(max_length=100)
    size = models.BigIntegerField()
    path = models.CharField(max_length=300)
    fence = models.BigIntegerField()
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="one_artifact_name")]

    def __str__(self) -> str:
        return self.name


class QueuePause(models.Model):
    """A queue from which no worker takes: a row is the pause, its end deletes it (protocol 6.3.1)."""

    queue = models.CharField(max_length=60, unique=True)
    reason = models.CharField(max_length=500)
    paused_by = models.CharField(max_length=150)
    paused_at = models.DateTimeField(default=timezone.now)

    class Meta:
        default_permissions = ()
        permissions = [("pause_queue", "Can pause and resume queues")]

    def __str__(self) -> str:
        return self.queue


class Maintenance(models.Model):
    """The one row that refuses new runs while it is there."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    message = models.CharField(max_length=500)
    retry_after_seconds = models.PositiveIntegerField()
    set_by = models.CharField(max_length=150)
    set_at = models.DateTimeField(default=timezone.now)

    class Meta:
        default_permissions = ()
        permissions = [("set_maintenance", "Can switch maintenance on and off")]

    def __str__(self) -> str:
        return self.message


class SavedView(models.Model):
    """A query of the runs' list under a name, its owner's alone or everybody's."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="saved_views")
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=2000)  # as in the address
    is_shared = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="one_saved_view")]
        default_permissions = ()
        permissions = [
            ("save_view", "Can save views of the list of runs"),
            ("share_view", "Can share saved views with everybody"),
        ]

    def __str__(self) -> str:
        return self.name
