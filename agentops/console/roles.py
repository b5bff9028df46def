"""The roles that ship as groups: which permissions each has, and how a migration gives them.

A migration runs once, so what an administrator takes from a group afterwards stays taken. A permission that is added
here comes with a migration that gives it alone.
"""

from collections.abc import Collection
from typing import Any

VIEWER = frozenset({
    "runs.view_run",
    "workers.view_bulkoperation",
    "workers.view_case",
    "workers.view_deadletter",
    "workers.view_workerprocess",
    "quotas.view_account",
    "quotas.view_hold",
    "quotas.view_ledgerentry",
    "quotas.view_price",
})  # fmt: skip
OPERATOR = VIEWER | {
    "runs.submit_run",
    "runs.cancel_run",
    "runs.requeue_run",
    "runs.reprioritise_run",
    "runs.pause_queue",
    "runs.set_maintenance",
    "runs.save_view",
    "runs.share_view",
    "workers.run_bulkoperation",
    "workers.triage_case",
    "workers.requeue_deadletter",
    "workers.discard_deadletter",
    "workers.drain_workerprocess",
    "workers.repair_streams",
    "quotas.view_auditentry",
}
FINANCE = VIEWER | {
    "runs.save_view",
    "quotas.grant",
    "quotas.adjust",
    "quotas.write_off",
    "quotas.change_account",
    "quotas.change_hold",
    "quotas.add_price",
    "quotas.view_auditentry",
    "quotas.export_audit",
}
ADMIN = OPERATOR | FINANCE | {
    "runs.view_payload",
    "quotas.add_account",
    "quotas.view_apikey",
    "quotas.add_apikey",
    "quotas.change_apikey",
    "quotas.view_membership",
    "quotas.add_membership",
    "quotas.change_membership",
    "quotas.delete_membership",
    "auth.view_user",
    "auth.add_user",
    "auth.change_user",
    "auth.view_group",
    "auth.add_group",
    "auth.change_group",
}  # fmt: skip
ROLES = {"viewer": VIEWER, "operator": OPERATOR, "finance": FINANCE, "admin": ADMIN}


def give(apps: Any, permissions: Collection[str] | None = None) -> None:
    """Give the roles their permissions, or of them those that are named. `apps` are a migration's, or Django's own.

    A role is made with the first migration alone; a group of that name that somebody made before is left as it is.
    """
    group_model = apps.get_model("auth", "Group")
    for role, wanted in ROLES.items():
        if permissions is not None:
            group = group_model.objects.filter(name=role).first()
        elif group_model.objects.filter(name=role).exists():
            continue
        else:
            group = group_model.objects.create(name=role)
        if group is not None:
            group.permissions.add(*_rows(apps, wanted if permissions is None else wanted & set(permissions)))


def _rows(apps: Any, codes: Collection[str]) -> list[Any]:
    """Return the permissions that are there: a later version's come with its own migration."""
    rows = apps.get_model("auth", "Permission").objects.select_related("content_type")
    found = rows.filter(codename__in=[code.split(".")[1] for code in codes])
    return [row for row in found if f"{row.content_type.app_label}.{row.codename}" in codes]
