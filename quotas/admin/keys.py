"""API keys: made and rotated here, shown once, revoked here with a reason."""

import datetime as dt
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from quotas.admin_base import AT_ONCE, ReadOnlyAdmin, actor_of, reason_of, request_id_of, tell_left
from quotas.api_keys import OVERLAP, OVERLAP_MAX, Made, create_api_key, live_of, revoke, rotate
from quotas.display import moment, pill
from quotas.errors import Refusal
from quotas.models import Account, ApiKey

HOUR = dt.timedelta(hours=1)


class ApiKeyForm(forms.Form):
    """What a new key needs."""

    account = forms.ModelChoiceField(queryset=Account.objects.order_by("name"))
    name = forms.CharField(max_length=100, help_text="Who or what will use it.")
    scopes = forms.MultipleChoiceField(
        choices=ApiKey.Scope.choices,
        widget=forms.CheckboxSelectMultiple,
        initial=[ApiKey.Scope.READ, ApiKey.Scope.SUBMIT, ApiKey.Scope.CANCEL],
    )
    expires_at = forms.DateTimeField(
        required=False,
        label="Expires at (UTC)",
        help_text="Empty: never.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )

    def clean_expires_at(self) -> Any:
        moment = self.cleaned_data["expires_at"]
        if moment is not None and moment <= timezone.now():
            raise forms.ValidationError("This moment is past.")
        return moment


class RotateForm(forms.Form):
    """How long both keys live."""

    overlap_hours = forms.IntegerField(
        label="Hours the old key lives on",
        min_value=0,
        max_value=OVERLAP_MAX // HOUR,
        initial=OVERLAP // HOUR,
    )
    reason = forms.CharField(max_length=500, required=False)


class StateFilter(admin.SimpleListFilter):
    """Whether the key is let in."""

    title = "state"
    parameter_name = "state_is"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("live", "live"), ("ended", "revoked or expired")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> QuerySet[ApiKey]:  # noqa: ARG002
        match self.value():
            case "live":
                return live_of(queryset)
            case "ended":
                return queryset.exclude(pk__in=live_of(ApiKey.objects.all()).values("pk"))
            case _:
                return queryset


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    change_form_template = "admin/quotas/apikey/change_form.html"
    list_display = [
        "prefix",
        "name",
        "account",
        "scopes_shown",
        "state_shown",
        "created_at",
        "expires_at",
        "last_used_at",
    ]
    list_filter = [StateFilter, "account"]
    list_select_related = ["account"]
    search_fields = ["prefix", "name", "account__name__exact"]
    search_help_text = "Prefix, name, or account name"
    ordering = ["-id"]
    actions = ["revoke_selected"]
    fields = [
        "prefix",
        "name",
        "account",
        "scopes_shown",
        "state_shown",
        "created_at",
        "expires_at",
        "revoked_at",
        "last_used_at",
    ]
    readonly_fields = ["scopes_shown", "state_shown"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("quotas.add_apikey")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("quotas.change_apikey")

    def add_view(
        self,
        request: HttpRequest,
        form_url: str = "",  # noqa: ARG002  Django's signature
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Ask for what the key needs; answer the POST with the page that shows it, the only time."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = ApiKeyForm(request.POST or None)
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "opts": self.opts,
            "form": form,
            "title": "New API key",
        }
        if request.method == "POST" and form.is_valid():
            wanted = form.cleaned_data | {"actor": actor_of(request), "request_id": request_id_of(request)}
            try:
                return self._show_once(request, create_api_key(**wanted))
            except Refusal as refusal:
                form.add_error("name", refusal.message)
        return TemplateResponse(request, "admin/quotas/apikey/add.html", context)

    def _show_once(self, request: HttpRequest, made: Made, note: str = "") -> HttpResponse:
        """Answer with the page that shows the key."""
        context = self.admin_site.each_context(request)
        context |= {"opts": self.opts, "title": "API key made", "key": made[0], "raw": made[1], "note": note}
        return TemplateResponse(request, "admin/quotas/apikey/add.html", context)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:pk>/rotate/", view(self._rotate_view), name="quotas_apikey_rotate"),
            path("<int:pk>/revoke/", view(self._revoke_view), name="quotas_apikey_revoke"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        key = self.get_object(request, object_id)
        is_live = key is not None and key.is_live
        context = {
            "rotate_form": RotateForm() if is_live and self.has_add_permission(request) else None,
            "may_revoke": is_live and self.has_revoke_permission(request),
            **(extra_context or {}),
        }
        return super().change_view(request, object_id, form_url, context)

    def _rotate_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Make the second key and show it, the only time."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        key, form = _key(pk), RotateForm(request.POST)
        if not form.is_valid():
            said = f"Hours the old key lives on: a whole number from 0 to {OVERLAP_MAX // HOUR}."
            self.message_user(request, said, messages.ERROR)
            return _page_of(pk)
        by = {"actor": actor_of(request), "reason": reason_of(request), "request_id": request_id_of(request)}
        try:
            made = rotate(key, overlap=form.cleaned_data["overlap_hours"] * HOUR, **by)
        except Refusal as refusal:
            self.message_user(request, refusal.message, messages.ERROR)
            return _page_of(pk)
        return self._show_once(request, made, f"The key {key.prefix} lives on until {moment(_key(pk).expires_at)}.")

    def _revoke_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not self.has_revoke_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        key, reason = _key(pk), reason_of(request)
        if reason:
            self._revoke(request, [key], reason)
        else:
            self.message_user(request, "Say why it is revoked.", messages.ERROR)
        return _page_of(pk)

    @admin.action(description="Revoke selected keys", permissions=["revoke"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> HttpResponse | None:
        """Ask for a reason on a page of its own; revoke when that page comes back."""
        reason, live = reason_of(request), live_of(queryset)
        if reason:
            self._revoke(request, list(live[:AT_ONCE]), reason)
            tell_left(self, request, live.count())
            return None
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "Revoke API keys",
            "keys": live[:AT_ONCE],
            "count": min(live.count(), AT_ONCE),
            "left": max(live.count() - AT_ONCE, 0),
            "reason_missing": "confirmed" in request.POST,
            "checkbox": ACTION_CHECKBOX_NAME,
            "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
            "select_across": request.POST.get("select_across", "0"),
        }
        return TemplateResponse(request, "admin/quotas/apikey/revoke.html", context)

    def _revoke(self, request: HttpRequest, keys: list[ApiKey], reason: str) -> None:
        by = {"actor": actor_of(request), "reason": reason, "request_id": request_id_of(request)}
        ended = sum(revoke(key, **by) for key in keys)
        self.message_user(request, f"Revoked: {ended}.", messages.SUCCESS if ended else messages.WARNING)

    @admin.display(description="Scopes")
    def scopes_shown(self, obj: ApiKey) -> str:
        return ", ".join(map(str, obj.scopes)) if isinstance(obj.scopes, list) else str(obj.scopes)

    @admin.display(description="State")
    def state_shown(self, obj: ApiKey) -> SafeString:
        return pill(obj.state)


def _key(pk: int) -> ApiKey:
    row = ApiKey.objects.filter(pk=pk).first()
    if row is None:
        raise Http404
    return row


def _page_of(pk: int) -> HttpResponse:
    return HttpResponseRedirect(reverse("admin:quotas_apikey_change", args=[pk]))
