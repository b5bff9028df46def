"""Accounts: an operator sets the limits; the counters belong to the ledger and the holds."""

import zoneinfo
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path
from django.utils import timezone

from quotas import audit
from quotas.admin import manual_lines
from quotas.admin.members import Choosing, record_member
from quotas.admin_base import PAGE, BoundedPaginator, actor_of, request_id_of
from quotas.display import credits_of
from quotas.drift import figures_of
from quotas.models import AMOUNT_MAX, MICRO, Account, Membership
from quotas.selectors import quota_of, spent_in_period

KEYS = 25
SHOWN = ["spent_shown", "held_shown", "available_shown", "in_flight_shown"]


class AccountForm(forms.ModelForm):  # type: ignore[type-arg]
    """The limit is typed in credits and stored in micro-units."""

    limit_credits = forms.DecimalField(
        label="Limit in credits",
        min_value=Decimal(0),
        max_value=Decimal(AMOUNT_MAX) / MICRO,
        max_digits=16,
        decimal_places=6,
    )

    max_in_flight = forms.IntegerField(label="Runs in flight at most", min_value=0, max_value=1_000_000)
    max_running = forms.IntegerField(
        label="Runs at work at most",
        min_value=0,
        max_value=1_000_000,
        required=False,
        help_text="At once, in each queue; the others wait. Empty: no limit.",
    )

    class Meta:
        model = Account
        fields = ["name", "period", "timezone", "overdraft_rule", "max_in_flight", "max_running", "max_priority"]
        help_texts = {
            "overdraft_rule": "Forgive: a new period starts at nothing spent. "
            "Carry: what was spent above the limit is the first thing spent in the next one."
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "limit_credits" in self.fields:
            self.fields["limit_credits"].initial = Decimal(self.instance.limit) / MICRO

    def clean_timezone(self) -> str:
        name: str = self.cleaned_data["timezone"]
        if name not in zoneinfo.available_timezones():
            raise ValidationError("No such time zone. Use a name like Europe/Berlin or UTC.")
        return name

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if "limit_credits" in cleaned:
            self.instance.limit = int(cleaned["limit_credits"] * MICRO)
        return cleaned

    @property
    def changed_columns(self) -> list[str]:
        """The model's columns this form changes."""
        return ["limit" if name == "limit_credits" else name for name in self.changed_data]


class MembershipInline(Choosing, admin.StackedInline):  # type: ignore[type-arg]
    model = Membership
    verbose_name = "member"
    extra = 0
    autocomplete_fields = ["user"]


@admin.register(Account)
class AccountAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = AccountForm
    change_form_template = "admin/quotas/account/change_form.html"
    inlines = [MembershipInline]
    search_fields = ["name"]
    list_display = ["name", "limit_shown", *SHOWN, "period"]
    list_filter = ["period", "overdraft_rule"]
    list_per_page = PAGE
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = None
    fieldsets = [
        (None, {"fields": ["name", "limit_credits", "period", "timezone", "overdraft_rule"]}),
        ("Limits on runs", {"fields": ["max_in_flight", "max_running", "max_priority"]}),
    ]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.line_view)
        return [path("<int:pk>/line/<slug:kind>/", view, name="quotas_account_line"), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what the account has now above the form that changes it."""
        account = self.get_object(request, object_id)
        context = {} if account is None else self._now(request, account)
        return super().change_view(request, object_id, form_url, context | (extra_context or {}))

    def _now(self, request: HttpRequest, account: Account) -> dict[str, Any]:
        figures = figures_of(Account.objects.filter(pk=account.pk))
        keys = account.api_keys.order_by("-id")[:KEYS] if request.user.has_perm("quotas.view_apikey") else []
        return {
            "quota": quota_of(account),
            "drift": [(kind, _shown(kind, amount)) for kind, amount in figures[0].drift.items()] if figures else [],
            "keys": keys,
            "lines": manual_lines.allowed(request),
        }

    def line_view(self, request: HttpRequest, pk: int, kind: str) -> HttpResponse:
        """Ask for a grant, an adjustment or a write-off, and write it."""
        return manual_lines.line_view(self, request, get_object_or_404(Account, pk=pk), kind)

    def has_delete_permission(
        self,
        request: HttpRequest,  # noqa: ARG002
        obj: Model | None = None,  # noqa: ARG002
    ) -> bool:
        return False  # its ledger stays

    @admin.display(description="Limit", ordering="limit")
    def limit_shown(self, obj: Account) -> str:
        return credits_of(obj.limit)

    @admin.display(description="Spent in this period")
    def spent_shown(self, obj: Account) -> str:
        return credits_of(_spent(obj))

    @admin.display(description="Held", ordering="held")
    def held_shown(self, obj: Account) -> str:
        return credits_of(obj.held)

    @admin.display(description="Available")
    def available_shown(self, obj: Account) -> str:
        return credits_of(obj.limit - _spent(obj) - obj.held)

    @admin.display(description="Runs in flight", ordering="in_flight")
    def in_flight_shown(self, obj: Account) -> str:
        return f"{obj.in_flight:,} of {obj.max_in_flight:,}"

    def save_model(
        self,
        request: HttpRequest,
        obj: Account,
        form: AccountForm,
        change: bool,  # noqa: FBT001  Django's signature
    ) -> None:
        """Write the changed columns only: the row's counters move while the form is open."""
        columns = form.changed_columns
        if change and not columns:
            return
        before = None
        if not change:
            obj.save()
        else:
            before = Account.objects.filter(pk=obj.pk).values(*columns).get()
            obj.save(update_fields=columns)
        audit.record(
            actor=actor_of(request),
            action="account.changed" if change else "account.created",
            target_type="account",
            target_id=obj.pk,
            before=before,
            after={column: getattr(obj, column) for column in columns},
            request_id=request_id_of(request),
        )

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:  # noqa: FBT001
        """Memberships decide who may spend: their changes are audited too."""
        before = {member.pk: member for member in form.instance.memberships.select_related("user")}
        super().save_formset(request, form, formset, change)
        kept = set(form.instance.memberships.values_list("pk", flat=True))
        for pk, member in before.items():
            if pk not in kept:
                record_member(request, member, None)
        for saved in (*formset.new_objects, *(changed for changed, _ in formset.changed_objects)):
            record_member(request, before.get(saved.pk), saved)


def _shown(kind: str, amount: int) -> str:
    return f"{amount:+,} runs" if kind == "in_flight" else f"{amount:+,} micro-units"


def _spent(account: Account) -> int:
    return spent_in_period(account, timezone.now())
