"""The rows of the working side: worker processes, dead letters, and the cases that group them."""

from django.conf import settings
from django.db import models

from quotas.models import Account
from runs.models import Run


class WorkerProcess(models.Model):
    """One process of `runworker_streams`, from start to end. `name` is unique per process start (protocol 6.3)."""

    name = models.CharField(max_length=120, unique=True)
    host = models.CharField(max_length=200)
    pid = models.IntegerField()
    # With the pid, what tells this process from every other one (workers/processes.py). Empty: nothing can be proved.
    boot_id = models.CharField(max_length=40, blank=True, default="")
    pid_namespace = models.CharField(max_length=80, blank=True, default="")
    pid_started = models.BigIntegerField(default=0)  # clock ticks after the boot
    version = models.CharField(max_length=40)
    queues = models.JSONField(default=list)
    agents = models.JSONField(default=list)
    concurrency = models.PositiveIntegerField()
    running_count = models.PositiveIntegerField(default=0)
    port = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(auto_now_add=True)
    heartbeat_at = models.DateTimeField()
    drain_requested_at = models.DateTimeField(null=True, blank=True)  # by an operator; the beat brings it
    drain_requested_by = models.CharField(max_length=150, blank=True, default="")
    draining_since = models.DateTimeField(null=True, blank=True)
    leaving_at = models.DateTimeField(null=True, blank=True)  # from then on its drain cannot be recalled
    memory_bytes = models.BigIntegerField(null=True, blank=True)  # resident, at the last beat
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "workers"
        verbose_name = "worker"
        indexes = [models.Index(fields=["stopped_at", "heartbeat_at"], name="worker_alive")]
        permissions = [
            ("drain_workerprocess", "Can drain, undrain and take over workers"),
            ("repair_streams", "Can repair streams"),
        ]

    def __str__(self) -> str:
        return self.name


class Case(models.Model):
    """Dead letters that failed for one cause, as far as `workers.fingerprints` can tell.

    Written by `workers.case_filing`; what people decide, by `workers.cases`. Its numbers are kept as letters come and
    go, so that no page counts letters.
    """

    class State(models.TextChoices):
        OPEN = "open"
        ASSIGNED = "assigned"
        IGNORED = "ignored"
        RESOLVED = "resolved"

    fingerprint = models.CharField(max_length=64, unique=True)
    agent = models.CharField(max_length=120, blank=True, default="")  # empty: entries that name no run
    error_class = models.CharField(max_length=30, blank=True, default="")
    reason = models.CharField(max_length=20)
    error_type = models.CharField(max_length=120, blank=True, default="")
    pattern = models.CharField(max_length=300, blank=True, default="")  # the message without what differs
    state = models.CharField(max_length=10, choices=State, default=State.OPEN)
    count = models.PositiveIntegerField(default=0)  # letters ever, also those that retention took
    open_count = models.PositiveIntegerField(default=0)
    account_count = models.PositiveIntegerField(default=0)
    cost = models.BigIntegerField(default=0)  # of the failed runs, in micro-units
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    last_version = models.CharField(max_length=40, blank=True, default="")  # of the worker that buried the newest
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    ignored_until = models.DateTimeField(null=True, blank=True)
    ignored_until_count = models.PositiveIntegerField(null=True, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    resolved_in_version = models.CharField(max_length=40, blank=True, default="")

    class Meta:
        indexes = [
            models.Index(fields=["-last_seen_at"], name="case_last_seen"),
            models.Index(fields=["state", "-last_seen_at"], name="case_state"),
            models.Index(fields=["state", "-open_count"], name="case_open"),
            models.Index(fields=["agent", "-last_seen_at"], name="case_agent"),
        ]
        permissions = [("triage_case", "Can assign, ignore, resolve and reopen cases, and write notes")]

    def __str__(self) -> str:
        return f"case {self.pk}"


class CaseHour(models.Model):
    """How many letters of a case were buried in one hour: what its sparkline is drawn from. Kept for two days."""

    case = models.ForeignKey(Case, models.CASCADE, related_name="hours")
    hour = models.DateTimeField(db_index=True)  # its beginning
    count = models.PositiveIntegerField(default=0)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["case", "hour"], name="one_case_hour")]

    def __str__(self) -> str:
        return f"{self.case_id} {self.hour}"


class CaseAccount(models.Model):
    """What one account has of a case: all that its own API keys may know of it."""

    case = models.ForeignKey(Case, models.CASCADE, related_name="accounts")
    # Without a constraint: its check would wait for the account's lock while the case is locked, and deadlock with
    # whoever takes them in order.
    account = models.ForeignKey(Account, models.CASCADE, related_name="+", db_constraint=False)
    count = models.PositiveIntegerField(default=0)
    open_count = models.PositiveIntegerField(default=0)
    cost = models.BigIntegerField(default=0)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["case", "account"], name="one_case_account")]
        indexes = [
            models.Index(fields=["case", "-count"], name="case_accounts"),
            models.Index(fields=["account", "-case"], name="account_cases"),
        ]

    def __str__(self) -> str:
        return f"{self.case_id} {self.account_id}"


class DeadLetter(models.Model):
    """A delivery or a failed run set aside for a person."""

    class State(models.TextChoices):
        OPEN = "open"
        REQUEUED = "requeued"
        DISCARDED = "discarded"

    class Reason(models.TextChoices):
        UNDECODABLE = "undecodable"
        UNKNOWN_RUN = "unknown_run"
        UNKNOWN_AGENT = "unknown_agent"
        POISON = "poison"
        EXHAUSTED = "exhausted"
        FATAL = "fatal"
        CRASH_LOOP = "crash_loop"
        QUEUE_TIMEOUT = "queue_timeout"
        QUOTA = "quota_exceeded"
        BUDGET = "budget_exceeded"

    run = models.OneToOneField(Run, models.CASCADE, null=True, blank=True, related_name="dead_letter")
    reason = models.CharField(max_length=20, choices=Reason)
    error_class = models.CharField(max_length=30, blank=True, default="")
    # Empty for a moment: what a worker before cases buried is put into its case by the sweeper.
    case = models.ForeignKey(Case, models.PROTECT, null=True, blank=True, related_name="letters", db_index=False)
    version = models.CharField(max_length=40, blank=True, default="", db_default="")  # of the worker that buried it
    message = models.CharField(max_length=2000, blank=True, default="")
    stream = models.CharField(max_length=200, blank=True, default="")
    entry_id = models.CharField(max_length=40, blank=True, default="")
    entry_key = models.CharField(max_length=241, null=True, blank=True, unique=True)
    payload = models.TextField(blank=True, default="")  # the entry's fields, undecodable bytes escaped
    state = models.CharField(max_length=10, choices=State, default=State.OPEN)
    buried_at = models.DateTimeField()
    published_at = models.DateTimeField(null=True, blank=True)  # when it went out on the stream for outside consumers
    resolved_at = models.DateTimeField(null=True, blank=True)
    resolved_by = models.CharField(max_length=150, blank=True, default="")
    resolved_reason = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        indexes = [
            models.Index(fields=["state", "-id"], name="dead_letter_state"),
            models.Index(fields=["published_at", "id"], name="dead_letter_unpublished"),
            models.Index(fields=["case", "-id"], name="dead_letter_case"),
        ]
        permissions = [
            ("requeue_deadletter", "Can requeue dead letters"),
            ("discard_deadletter", "Can discard dead letters"),
        ]

    def __str__(self) -> str:
        return f"{self.reason} {self.run_id or self.entry_id}"


class BulkOperation(models.Model):
    """One act on everything that a filter matched when it was asked for. Written by `workers.bulk`.

    The targets are frozen into items first, then acted on one by one, each in a transaction of its own.
    """

    class Kind(models.TextChoices):
        REQUEUE = "requeue"
        CANCEL = "cancel"
        DISCARD = "discard"
        REPRIORITISE = "reprioritise"

    class Source(models.TextChoices):
        RUNS = "runs"
        LETTERS = "letters"

    class State(models.TextChoices):
        PLANNED = "planned"  # its targets are being written down
        RUNNING = "running"
        WAITING_FOR_CANARY = "waiting_for_canary"
        ABORTED = "aborted"
        DONE = "done"
        FAILED = "failed"

    form_id = models.UUIDField(unique=True)  # of the form it was asked for with: sent twice, it is one operation
    kind = models.CharField(max_length=12, choices=Kind)
    source = models.CharField(max_length=7, choices=Source)
    query = models.JSONField(default=dict, blank=True)  # the list's filter
    options = models.JSONField(default=dict, blank=True)  # as workers.bulk.options.Options
    state = models.CharField(max_length=20, choices=State, default=State.PLANNED)
    problem = models.CharField(max_length=500, blank=True, default="")  # why it stopped
    canary = models.BooleanField(default=False)  # still to be waited for, before the rest
    canary_run = models.UUIDField(null=True, blank=True)
    pace = models.PositiveIntegerField(null=True, blank=True)  # items a minute at most
    total = models.PositiveIntegerField(default=0)
    done_count = models.PositiveIntegerField(default=0)
    refused_count = models.PositiveIntegerField(default=0)
    failed_count = models.PositiveIntegerField(default=0)
    is_cut = models.BooleanField(default=False)  # more matched than one operation takes
    reserved = models.BigIntegerField(default=0)  # by the holds of its new runs, in micro-units
    read_to = models.CharField(max_length=40, blank=True, default="")  # the last target written down; "" when all are
    actor = models.CharField(max_length=150)
    reason = models.CharField(max_length=500)
    request_id = models.CharField(max_length=64, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    next_at = models.DateTimeField(null=True, blank=True)  # not before: its pace
    held_up = models.JSONField(default=dict, blank=True)  # {account without a place in flight: asked again then}
    holder = models.CharField(max_length=120, blank=True, default="")  # the process that works on it
    held_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "bulk operation"
        indexes = [models.Index(fields=["state", "id"], name="bulk_state")]
        permissions = [("run_bulkoperation", "Can run and abort bulk operations")]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class BulkItem(models.Model):
    """One target of a bulk operation, and what became of it."""

    class State(models.TextChoices):
        WAITING = "waiting"
        DONE = "done"
        REFUSED = "refused"
        FAILED = "failed"

    operation = models.ForeignKey(BulkOperation, models.CASCADE, related_name="items")
    position = models.PositiveIntegerField()
    # Not keys: what retention deletes stays written down here.
    run_id = models.UUIDField(null=True, blank=True, db_index=True)
    letter_id = models.BigIntegerField(null=True, blank=True)
    account_id = models.BigIntegerField(null=True, blank=True)
    state = models.CharField(max_length=8, choices=State, default=State.WAITING)
    code = models.CharField(max_length=60, blank=True, default="")  # of the refusal, or what a cancel did
    message = models.CharField(max_length=500, blank=True, default="")
    new_run = models.UUIDField(null=True, blank=True, db_index=True)
    changes = models.JSONField(null=True, blank=True)  # of an edited input: {field: {before, after}}
    acted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["operation", "position"], name="one_bulk_position")]
        indexes = [models.Index(fields=["operation", "state", "position"], name="bulk_items")]

    def __str__(self) -> str:
        return f"{self.operation_id} {self.position}"
