"""Users and groups: Django's own pages, with check boxes that a keyboard and a screen reader can work, and audited."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import QuerySet
from django.forms import CheckboxSelectMultiple
from django.http import HttpRequest, HttpResponse

from agentops.console import bulk_actions
from quotas import audit
from quotas.admin.members import record_member
from quotas.admin_base import actor_of, request_id_of

bulk_actions.attach()
admin.site.unregister([Group, User])


class _Boxes(admin.options.BaseModelAdmin):  # type: ignore[type-arg]
    """Choices of many as check boxes: the pair of lists that Django makes has parts no screen reader can name."""

    filter_horizontal = ()

    def formfield_for_manytomany(self, db_field: Any, request: Any = None, **kwargs: Any) -> Any:
        field: Any = super().formfield_for_manytomany(db_field, request, **kwargs | {"widget": CheckboxSelectMultiple})
        field.help_text = ""
        return field


class _Audited:
    """Every change is a line of the audit log, in the change's transaction."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:  # noqa: FBT001
        form.facts_before = _facts(type(obj).objects.get(pk=obj.pk)) if change else None
        super().save_model(request, obj, form, change)  # type: ignore[misc]

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:  # noqa: FBT001
        """Record here, and not before: groups and permissions are written last."""
        super().save_related(request, form, formsets, change)  # type: ignore[misc]
        if form.has_changed():
            act = "change" if change else "create"
            _record(request, act, form.instance, before=form.facts_before, after=_facts(form.instance))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        _record_removal(request, obj)
        super().delete_model(request, obj)  # type: ignore[misc]

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        with transaction.atomic():
            for row in queryset:
                _record_removal(request, row)
            super().delete_queryset(request, queryset)  # type: ignore[misc]


def _facts(row: User | Group) -> dict[str, Any]:
    """Return who it is and what it may."""
    codes = row.user_permissions if isinstance(row, User) else row.permissions
    pairs = codes.order_by("content_type__app_label", "codename").values_list("content_type__app_label", "codename")
    may = {"permissions": [f"{app}.{code}" for app, code in pairs]}
    if isinstance(row, Group):
        return {"name": row.name, **may}
    flags = {name: getattr(row, name) for name in ("is_active", "is_staff", "is_superuser")}
    groups = list(row.groups.order_by("name").values_list("name", flat=True))
    return {"username": row.get_username(), **flags, "groups": groups, **may}


def _record(request: HttpRequest, act: str, row: User | Group, before: Any = None, after: Any = None) -> None:
    kind = "user" if isinstance(row, User) else "group"
    audit.record(
        actor=actor_of(request),
        action=f"{kind}.{act}",
        target_type=kind,
        target_id=row.pk,
        before=before,
        after=after,
        request_id=request_id_of(request),
    )


def _record_removal(request: HttpRequest, row: User | Group) -> None:
    """Memberships go with their user: each is a line of its account."""
    _record(request, "delete", row, before=_facts(row))
    for membership in row.memberships.select_related("user") if isinstance(row, User) else ():
        record_member(request, membership, None)


@admin.register(User)
class ConsoleUserAdmin(_Audited, _Boxes, UserAdmin):  # type: ignore[type-arg]
    """Times of sign-in are what happened: nobody types them.

    Only a superuser makes superusers, changes one, and gives single permissions: the role "admin" gives groups.
    """

    readonly_fields = ("last_login", "date_joined")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = super().get_readonly_fields(request, obj)
        return fields if request.user.is_superuser else (*fields, "is_superuser", "user_permissions")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_above = obj is not None and obj.is_superuser and not request.user.is_superuser
        return not is_above and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_above = obj is not None and obj.is_superuser and not request.user.is_superuser
        return not is_above and super().has_delete_permission(request, obj)

    @transaction.atomic
    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002
        """Set another user's password, which is a line without it."""
        answer = super().user_change_password(request, id, form_url)
        user = self.get_object(request, unquote(id))
        if request.method == "POST" and answer.status_code == 302 and user is not None:
            _record(request, "password", user)
        return answer


@admin.register(Group)
class ConsoleGroupAdmin(_Audited, _Boxes, GroupAdmin):
    """A group and its permissions."""
