"""The rows of money: accounts, holds, ledger, prices, keys, and the audit trail. Amounts are integer micro-units.

`Account.spent`, `Account.held` and `Account.in_flight` are caches of the ledger and the open holds: they change
only in `quotas.services`, in the transaction that writes those rows, under the account's row lock (docs/money.md).
"""

from django.conf import settings
from django.db import models
from django.utils import timezone

MICRO = 1_000_000  # micro-units in one credit
AMOUNT_MAX = 2**53  # a border check far under 2^63, so that sums cannot overflow; also exact in JavaScript


class Priority(models.TextChoices):
    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Account(models.Model):
    """One tenant's purse."""

    class Period(models.TextChoices):
        NONE = "none"
        DAY = "day"
        MONTH = "month"

    class OverdraftRule(models.TextChoices):
        FORGIVE = "forgive"  # a new period starts at nothing spent
        CARRY = "carry"  # what was spent above the limit is the first thing spent in the next period

    name = models.CharField(max_length=100, unique=True)
    limit = models.BigIntegerField(default=100 * MICRO)
    period = models.CharField(max_length=5, choices=Period, default=Period.MONTH)
    timezone = models.CharField(max_length=64, default="UTC")
    overdraft_rule = models.CharField(max_length=7, choices=OverdraftRule, default=OverdraftRule.FORGIVE)
    spent = models.BigIntegerField(default=0, editable=False)
    spent_period = models.CharField(max_length=10, default="", editable=False)
    held = models.BigIntegerField(default=0, editable=False)
    in_flight = models.IntegerField(default=0, editable=False)
    max_in_flight = models.PositiveIntegerField(default=100)
    max_running = models.PositiveIntegerField(null=True, blank=True)  # at work at once in a queue; empty: no limit
    max_priority = models.CharField(max_length=8, choices=Priority, default=Priority.HIGH)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """A user who may act for an account."""

    class Role(models.TextChoices):
        VIEWER = "viewer"
        MEMBER = "member"
        OWNER = "owner"

    account = models.ForeignKey(Account, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=6, choices=Role, default=Role.MEMBER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["account", "user"], name="one_membership")]

    def __str__(self) -> str:
        return f"{self.user} in {self.account}"


class Hold(models.Model):
    """Units reserved on an account for one run. `run_id` is opaque here: quotas knows no run."""

    class State(models.TextChoices):
        ACTIVE = "active"
        SETTLED = "settled"
        RELEASED = "released"
        EXPIRED = "expired"

    OPEN = (State.ACTIVE, State.EXPIRED)  # not closed yet: there is still something to settle or to release

    run_id = models.UUIDField(unique=True)
    account = models.ForeignKey(Account, models.PROTECT, related_name="holds")
    amount = models.BigIntegerField()
    actual = models.BigIntegerField(null=True, blank=True)
    extensions = models.PositiveIntegerField(default=0)  # how often it was raised while its run was running
    state = models.CharField(max_length=8, choices=State, default=State.ACTIVE)
    expires_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            # Not by account first: MySQL would take it for the foreign key's index, and lock the account's row
            # whenever a claim changes `expires_at` in it.
            models.Index(fields=["state", "expires_at", "account"], name="hold_lapses"),
            models.Index(fields=["state", "created_at"], name="hold_open_by_age"),
        ]

    def __str__(self) -> str:
        return f"hold of {self.run_id}"


class PriceBook(models.Model):
    """A version of all prices. The newest book whose `valid_from` is past is in force."""

    version = models.AutoField(primary_key=True)
    valid_from = models.DateTimeField(db_index=True)
    note = models.CharField(max_length=200, blank=True)

    def __str__(self) -> str:
        return f"price book {self.version}"


class Price(models.Model):
    """Micro-units for one million tokens of a kind of one model."""

    class Kind(models.TextChoices):
        INPUT = "input"
        OUTPUT = "output"
        CACHED = "cached"
        REASONING = "reasoning"
        EMBEDDING = "embedding"

    book = models.ForeignKey(PriceBook, models.PROTECT, related_name="prices")
    model = models.CharField(max_length=120)
    kind = models.CharField(max_length=9, choices=Kind)
    per_million = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["book", "model", "kind"], name="one_price")]

    def __str__(self) -> str:
        return f"{self.model} {self.kind}"


class LedgerEntry(models.Model):
    """One append-only line; a positive amount is a cost. The database refuses to delete or to change one.

    `settle_key` is the run id of a settle line and makes a second one impossible. `period` names the account's period
    the line is booked in. `agent` is opaque here.
    """

    class Kind(models.TextChoices):
        SETTLE = "settle"
        GRANT = "grant"
        ADJUSTMENT = "adjustment"
        WRITE_OFF = "write_off"
        CARRY = "carry"

    account = models.ForeignKey(Account, models.PROTECT, related_name="ledger")
    run_id = models.UUIDField(null=True, blank=True, db_index=True)
    settle_key = models.UUIDField(null=True, blank=True, unique=True)
    kind = models.CharField(max_length=10, choices=Kind)
    amount = models.BigIntegerField()
    period = models.CharField(max_length=10, default="", blank=True)
    agent = models.CharField(max_length=120, default="", blank=True)
    overdraft = models.BooleanField(default=False)
    price_book = models.ForeignKey(PriceBook, models.PROTECT, null=True, blank=True)
    actor = models.CharField(max_length=150, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "ledger entries"
        indexes = [
            models.Index(fields=["account", "-id"], name="ledger_account"),
            models.Index(fields=["account", "period", "amount"], name="ledger_period"),  # a period's sum, index only
            models.Index(fields=["account", "at"], name="ledger_time"),  # a span's lines, however many others there are
        ]
        permissions = [
            ("grant", "Can grant an account units"),
            ("adjust", "Can adjust what an account has spent"),
            ("write_off", "Can write off what an account has spent"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount}"


class ApiKey(models.Model):
    """A key of an account. Only the SHA-256 of its 256 random bits is kept; `prefix` names it to people."""

    class Scope(models.TextChoices):
        READ = "read"
        SUBMIT = "submit"
        CANCEL = "cancel"
        ADMIN = "admin"

    account = models.ForeignKey(Account, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, unique=True)
    digest = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    lifetime = models.DurationField(null=True, blank=True)  # as it was made: a rotation ends the key before
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.prefix} ({self.name})"

    @property
    def is_live(self) -> bool:
        """Whether the key is neither revoked nor expired."""
        return self.state == "live"

    @property
    def state(self) -> str:
        """Return "live", "revoked" or "expired"."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= timezone.now() else "live"


class AuditEntry(models.Model):
    """Who did what to which target, written in the transaction of the act. Append-only, like the ledger."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(auto_now_add=True)
    actor = models.CharField(max_length=150)
    action = models.CharField(max_length=60, db_index=True)
    target_type = models.CharField(max_length=40)
    target_id = models.CharField(max_length=64, db_index=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    request_id = models.CharField(max_length=64, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"
        ordering = ["-id"]
        indexes = [  # a page of the log for each thing it is searched by, however long it is
            models.Index(fields=["actor", "-id"], name="audit_actor"),
            models.Index(fields=["request_id", "-id"], name="audit_request"),
            models.Index(fields=["at"], name="audit_time"),
        ]
        permissions = [("export_audit", "Can export the audit log")]

    def __str__(self) -> str:
        return f"{self.action} {self.target_id}"
