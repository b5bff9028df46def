"""What pages are called, in the menu, the heading, the browser's title and the breadcrumbs alike."""

from collections.abc import Mapping
from typing import Any

from django.db.models import Model
from django.urls import reverse
from django.utils.text import capfirst

from quotas.display import short
from quotas.models import Hold

PLURAL = {
    "quotas.ApiKey": "API keys",
    "quotas.LedgerEntry": "Ledger",
    "quotas.AuditEntry": "Audit log",
    "quotas.Membership": "Members",
}
SINGULAR = {"quotas.ApiKey": "API key", "quotas.Membership": "Member"}
# Rows that people know by a name; every other one is known by its number.
NAMED = frozenset({"auth.Group", "auth.User", "quotas.Account", "quotas.Price", "workers.WorkerProcess"})

Crumb = tuple[str, str]  # text and address; the last one, the page itself, has no address


def list_name(opts: Any) -> str:
    """Return the name of a model's list, as in the menu."""
    return PLURAL.get(opts.label) or capfirst(str(opts.verbose_name_plural))


def one_name(opts: Any) -> str:
    """Return what one row of a model is called."""
    return SINGULAR.get(opts.label) or capfirst(str(opts.verbose_name))


def row_name(row: Model) -> str:
    """Return the name of one row: "Account default", "Dead letter 12"."""
    opts = row._meta  # noqa: SLF001  the public way to a model's options, Django says
    if isinstance(row, Hold):
        return f"Hold of run {short(row.run_id)}"
    return f"{one_name(opts)} {row if opts.label in NAMED else row.pk}"


def heading(context: Mapping[str, Any]) -> str:
    """Return the heading of an admin page from its template context."""
    opts = context.get("opts")
    if opts is not None and "cl" in context:
        return list_name(opts)
    if context.get("change") and isinstance(context.get("original"), Model):
        return row_name(context["original"])
    if opts is not None and context.get("add"):
        return f"New {opts.verbose_name}"
    return str(context.get("title") or "")


def crumbs(context: Mapping[str, Any]) -> list[Crumb]:
    """Return the way to an admin page from the overview, the page itself last."""
    way = [("Overview", reverse("admin:index"))]
    opts = None if "cl" in context else context.get("opts")
    if opts is not None:
        place = f"admin:{opts.app_label}_{opts.model_name}_"
        way.append((list_name(opts), reverse(f"{place}changelist")))
        row = context.get("original") or context.get("object")
        if isinstance(row, Model) and row.pk is not None and not context.get("change"):
            way.append((row_name(row), reverse(f"{place}change", args=[row.pk])))
    return [*way, (str(context.get("crumb") or heading(context)), "")]
