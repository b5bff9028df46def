"""The audit trail: one function, called inside the transaction of the act: there is no act without its line."""

from collections.abc import Iterable
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


def forget_texts(*, target_type: str, target_ids: Iterable[object]) -> int:
    """Empty the free texts of what was done to targets that are no more. Who did what, to which and when stays."""
    ids = [str(target_id) for target_id in target_ids]
    rows = AuditEntry.objects.filter(target_type=target_type, target_id__in=ids)
    return rows.update(reason="", before=None, after=None)
