"""The rows of the working side: worker processes and dead letters."""

from django.db import models

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
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "workers"
        verbose_name = "worker"
        indexes = [models.Index(fields=["stopped_at", "heartbeat_at"], name="worker_alive")]

    def __str__(self) -> str:
        return self.name


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
        ]
        permissions = [
            ("requeue_deadletter", "Can requeue dead letters"),
            ("discard_deadletter", "Can discard dead letters"),
        ]

    def __str__(self) -> str:
        return f"{self.reason} {self.run_id or self.entry_id}"
