"""The forms for lines that people write into the ledger: grant, adjustment, write-off. Sent twice, a form acts once."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from quotas import services as money
from quotas.admin_base import REASON_MAX, actor_of, request_id_of
from quotas.database import in_transaction
from quotas.display import credits_of
from quotas.errors import Refusal
from quotas.models import AMOUNT_MAX, MICRO, Account, AuditEntry, LedgerEntry

UNIT = Decimal(1) / MICRO
MOST = Decimal(AMOUNT_MAX) / MICRO


@dataclass(frozen=True, slots=True)
class Line:
    """A kind of line: who may write it, by which service, and what is said about it."""

    permission: str
    write: Callable[..., LedgerEntry]
    title: str
    verb: str
    lead: str
    lowest: Decimal = UNIT


LINES = {
    "grant": Line(
        "quotas.grant",
        money.grant,
        "Grant",
        "Grant",
        "Gives the account credits in its current period: what it has spent falls by the amount, also below nothing.",
    ),
    "adjustment": Line(
        "quotas.adjust",
        money.adjust,
        "Adjustment",
        "Adjust",
        "Corrects what is spent: above 0 a cost that is not booked yet, below 0 one that is booked and was none.",
        lowest=-MOST,
    ),
    "write-off": Line(
        "quotas.write_off",
        money.write_off,
        "Write-off",
        "Write off",
        "Forgives a part of what is spent: of a run at most what is booked for it, else at most what is overdrawn.",
    ),
}


class LineForm(forms.Form):
    """An amount in credits, which run it is about, and why."""

    amount = forms.DecimalField(label="Credits", max_value=MOST, max_digits=16, decimal_places=6)
    run_id = forms.UUIDField(label="Run", required=False, help_text="Its id, where the line is about one run.")
    reason = forms.CharField(max_length=REASON_MAX, help_text="Kept with the line and in the audit log.")
    form_id = forms.UUIDField(widget=forms.HiddenInput, initial=uuid.uuid4)

    def __init__(self, line: Line, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lowest = line.lowest

    def clean_amount(self) -> int:
        """Return micro-units."""
        amount: Decimal = self.cleaned_data["amount"]
        if amount == 0 or amount < self._lowest:
            above = "above 0" if self._lowest > 0 else "above or below 0"
            raise forms.ValidationError(f"Give an amount {above}.")
        return int(amount * MICRO)


def allowed(request: HttpRequest) -> list[tuple[str, str]]:
    """Return the lines the user may write, as (kind, title)."""
    return [(kind, line.title) for kind, line in LINES.items() if request.user.has_perm(line.permission)]


def line_view(model_admin: Any, request: HttpRequest, account: Account, kind: str) -> HttpResponse:
    """Show the form of a kind of line for an account; on POST write the line and go back to the account."""
    line = LINES.get(kind)
    if line is None:
        raise Http404
    if not (request.user.has_perm(line.permission) and request.user.has_perm("quotas.view_account")):
        raise PermissionDenied
    form = LineForm(line, request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            written = _once(request, account, line, form.cleaned_data)
        except Refusal as refusal:
            form.add_error(None, refusal.message)
        else:
            _tell(model_admin, request, line, written)
            return HttpResponseRedirect(reverse("admin:quotas_account_change", args=[account.pk]))
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "object": account,
        "title": f"{line.title} for {account.name}",
        "crumb": line.title,
        "line": line,
        "form": form,
    }
    status = 400 if form.errors else 200
    return TemplateResponse(request, "admin/quotas/account/line.html", context, status=status)


def _once(request: HttpRequest, account: Account, line: Line, wanted: dict[str, Any]) -> LedgerEntry | None:
    """Write the line, unless this form wrote one before: its id is in the audit entry, looked for under the lock."""
    by = {"actor": actor_of(request), "request_id": request_id_of(request)}
    form_id = str(wanted["form_id"])

    def write() -> LedgerEntry | None:
        money.lock_account(account.pk)
        entries = AuditEntry.objects.filter(target_type="account", target_id=str(account.pk))
        if entries.filter(after__form=form_id).exists():
            return None
        facts = {name: wanted[name] for name in ("amount", "reason", "run_id")}
        return line.write(account, **by, **facts, form_id=form_id)

    return in_transaction(write)


def _tell(model_admin: Any, request: HttpRequest, line: Line, written: LedgerEntry | None) -> None:
    if written is None:
        model_admin.message_user(request, "This form was sent before; nothing was written again.", messages.WARNING)
        return
    said = f"{line.title} booked: line {written.pk}, {credits_of(written.amount)} credits."
    model_admin.message_user(request, said, messages.SUCCESS)
