"""Members: which users act for which account, and as what. Every change is audited in its transaction."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.widgets import AutocompleteSelect
from django.db.models import Model
from django.http import HttpRequest
from django.utils.safestring import SafeString

from quotas import audit
from quotas.admin_base import PAGE, BoundedPaginator, actor_of, request_id_of
from quotas.admin_filters import AccountFilter
from quotas.display import pill
from quotas.models import Membership


class Chooser(AutocompleteSelect):
    """Django's field that looks up while one types, with a text while it is empty: else it has no accessible name."""

    def build_attrs(self, base_attrs: dict[str, Any], extra_attrs: dict[str, Any] | None = None) -> dict[str, Any]:
        return super().build_attrs(base_attrs, extra_attrs) | {"data-placeholder": "Choose"}


class Choosing(admin.options.BaseModelAdmin):  # type: ignore[type-arg]
    """Shows the fields of `autocomplete_fields` as a Chooser."""

    def formfield_for_foreignkey(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name in self.autocomplete_fields:
            kwargs["widget"] = Chooser(db_field, self.admin_site)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


@admin.register(Membership)
class MembershipAdmin(Choosing, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["user", "account", "role", "is_active"]
    list_filter = ["role", AccountFilter]
    list_select_related = ["user", "account"]
    search_fields = ["user__username", "account__name__exact"]
    search_help_text = "User name, or the whole name of an account"
    autocomplete_fields = ["account", "user"]
    ordering = ["account__name", "user__username"]
    list_per_page = PAGE
    list_max_show_all = PAGE
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = None

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:  # noqa: ARG002
        """A membership changes its role; another user or account is another membership."""
        return [] if obj is None else ["account", "user"]

    @admin.display(description="User may sign in")
    def is_active(self, obj: Membership) -> SafeString:
        return pill("live" if obj.user.is_active else "revoked")

    def save_model(self, request: HttpRequest, obj: Membership, form: Any, change: bool) -> None:  # noqa: FBT001
        before = stored(obj) if change else None
        if change:
            obj.save(update_fields=form.changed_data)
        else:
            obj.save()
        record_member(request, before, obj)

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        record_member(request, obj, None)
        obj.delete()


def stored(membership: Membership) -> Membership:
    """Return a membership as it is in the database, while a form is about to change it."""
    return Membership.objects.select_related("user").get(pk=membership.pk)


def record_member(request: HttpRequest, before: Membership | None, after: Membership | None) -> None:
    """Audit that a membership was added (no `before`), removed (no `after`) or changed; nothing where it was not."""
    was, now = _facts(before), _facts(after)
    one = after or before
    if one is None or was == now:
        return
    what = "added" if was is None else "removed" if now is None else "changed"
    audit.record(
        actor=actor_of(request),
        action=f"account.member_{what}",
        target_type="account",
        target_id=one.account_id,
        before=was,
        after=now,
        request_id=request_id_of(request),
    )


def _facts(membership: Membership | None) -> dict[str, str] | None:
    return None if membership is None else {"user": str(membership.user), "role": membership.role}
