"""The audit trail: one function, called inside the transaction of the act: there is no act without its line."""

from typing import Any

from quotas.models import AuditEntry


def record(
    *,
    actor: str,
    action: str,
    target_type: str,
    target_id: object,
    before: Any = None,
    after: Any = None,
    reason: str = "",
    request_id: str = "",
) -> AuditEntry:
    """Write who did what to which target. Texts are cut to their columns."""
    return AuditEntry.objects.create(
        actor=actor[:150],
        action=action,
        target_type=target_type,
        target_id=str(target_id)[:64],
        before=before,
        after=after,
        reason=reason[:500],
        request_id=request_id[:64],
    )
