"""API keys: made here and shown once, revoked here, never changed."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from quotas import audit
from quotas.admin_base import ReadOnlyAdmin, actor_of, request_id_of
from quotas.api_keys import create_api_key, revoke
from quotas.display import pill
from quotas.models import Account, ApiKey


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


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
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
    list_filter = ["account"]
    list_select_related = ["account"]
    search_fields = ["prefix", "name"]
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
            key, raw = _create(request, form.cleaned_data)
            context |= {"key": key, "raw": raw, "title": "API key made"}
        return TemplateResponse(request, "admin/quotas/apikey/add.html", context)

    @admin.action(description="Revoke selected keys", permissions=["revoke"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        ended = sum(_revoke(request, key) for key in queryset)
        self.message_user(request, f"Revoked: {ended}.", messages.SUCCESS)

    @admin.display(description="Scopes")
    def scopes_shown(self, obj: ApiKey) -> str:
        return ", ".join(map(str, obj.scopes)) if isinstance(obj.scopes, list) else str(obj.scopes)

    @admin.display(description="State")
    def state_shown(self, obj: ApiKey) -> SafeString:
        if obj.revoked_at is not None:
            return pill("revoked")
        expired = obj.expires_at is not None and obj.expires_at <= timezone.now()
        return pill("expired" if expired else "live")


@transaction.atomic
def _create(request: HttpRequest, wanted: dict[str, Any]) -> tuple[ApiKey, str]:
    key, raw = create_api_key(**wanted)
    _record(request, "api_key.created", key, {"account": key.account.name, "scopes": key.scopes})
    return key, raw


@transaction.atomic
def _revoke(request: HttpRequest, key: ApiKey) -> bool:
    ended = revoke(key)
    if ended:
        _record(request, "api_key.revoked", key, None)
    return ended


def _record(request: HttpRequest, action: str, key: Model, after: Any) -> None:
    audit.record(
        actor=actor_of(request),
        action=action,
        target_type="api_key",
        target_id=key.pk,
        after=after,
        request_id=request_id_of(request),
    )
