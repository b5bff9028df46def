"""Views of the list of runs that people save: made, renamed and deleted by their owner, shared ones under audit."""

from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from quotas import audit
from quotas.database import in_transaction
from runs.errors import NoSuchView, TooManyViews, ViewNameTaken
from runs.models import SavedView

VIEWS_MAX = 50  # of one owner
SHARED_SHOWN = 50


def views_for(user: Any) -> QuerySet[SavedView]:
    """Return the views a user sees: their own, and the shared ones of others."""
    seen = Q(owner=user) | Q(is_shared=True)
    return SavedView.objects.filter(seen).select_related("owner").order_by("name", "pk")[: VIEWS_MAX + SHARED_SHOWN]


def save_view(*, owner: Any, name: str, query: str, is_shared: bool, request_id: str = "") -> SavedView:
    """Save a query under a name, in place of the owner's view of that name. Raises TooManyViews."""

    def work() -> SavedView:
        known = SavedView.objects.filter(owner=owner)
        before = known.filter(name=name).first()
        if before is None and known.count() >= VIEWS_MAX:
            raise TooManyViews(most=VIEWS_MAX)
        values = {"query": query, "is_shared": is_shared}
        view, _ = SavedView.objects.update_or_create(owner=owner, name=name, defaults=values)
        if is_shared or (before is not None and before.is_shared):
            _record("view.save", view, owner, before, view, request_id)
        return view

    return in_transaction(work)


def rename_view(*, view_id: int, owner: Any, name: str, request_id: str = "") -> SavedView:
    """Give one's own view another name. Raises NoSuchView and ViewNameTaken."""

    def work() -> SavedView:
        view = _own(view_id, owner)
        before = SavedView(pk=view.pk, name=view.name, query=view.query, is_shared=view.is_shared)
        view.name = name
        try:
            with transaction.atomic():
                view.save(update_fields=["name"])
        except IntegrityError:
            raise ViewNameTaken(name=name) from None
        if view.is_shared and before.name != name:
            _record("view.rename", view, owner, before, view, request_id)
        return view

    return in_transaction(work)


def delete_view(*, view_id: int, owner: Any, request_id: str = "") -> None:
    """Delete one's own view. Raises NoSuchView."""

    def work() -> None:
        view = _own(view_id, owner)
        if view.is_shared:
            _record("view.delete", view, owner, view, None, request_id)
        view.delete()

    in_transaction(work)


def _own(view_id: int, owner: Any) -> SavedView:
    view = SavedView.objects.select_for_update().filter(pk=view_id, owner=owner).first()
    if view is None:
        raise NoSuchView(view=view_id)
    return view


def _record(
    action: str, view: SavedView, owner: Any, before: SavedView | None, after: SavedView | None, request_id: str
) -> None:
    audit.record(
        actor=owner.get_username(),
        action=action,
        target_type="view",
        target_id=view.pk,
        before=_facts(before),
        after=_facts(after),
        request_id=request_id,
    )


def _facts(view: SavedView | None) -> dict[str, Any] | None:
    return None if view is None else {"name": view.name, "query": view.query, "shared": view.is_shared}
