"""Bulk operations: the list, and the page of one with its progress, its items, abort and repeat."""

from typing import Any
from uuid import UUID, uuid4

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from quotas.admin_base import ID_DIGITS, ReadOnlyAdmin, actor_of, reason_of, request_id_of
from quotas.display import NOTHING, about, age_of, moment, pill
from quotas.errors import Refusal
from quotas.models import AuditEntry
from workers.bulk import operations
from workers.bulk.operations import LIVE
from workers.bulk.options import RUN_BULK, permissions_for
from workers.bulk.targets import items_again
from workers.models import BulkItem, BulkOperation
from workers.selectors import list_workers

SEE_PAYLOAD = "runs.view_payload"
ITEMS = 50
SHOWN = ("", *BulkItem.State.values)


@admin.register(BulkOperation)
class BulkOperationAdmin(ReadOnlyAdmin):
    list_display = ("id", "state_shown", "what", "progress", "refused_count", "actor", "reason", "age")
    list_filter = ("state", "kind")
    search_fields = ()
    sortable_by = ()
    ordering = ("-id",)

    @admin.display(description="State")
    def state_shown(self, obj: BulkOperation) -> SafeString:
        return pill(obj.state)

    @admin.display(description="Act")
    def what(self, obj: BulkOperation) -> str:
        return what_of(obj)

    @admin.display(description="Done")
    def progress(self, obj: BulkOperation) -> str:
        return f"{obj.done_count:,} of {obj.total:,}"

    @admin.display(description="Age")
    def age(self, obj: BulkOperation) -> str:
        return age_of(obj.created_at)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:pk>/progress.json", view(progress_view), name="workers_bulkoperation_progress"),
            path("<int:pk>/abort/", view(abort_view), name="workers_bulkoperation_abort"),
            path("<int:pk>/again/", view(again_view), name="workers_bulkoperation_again"),
            *super().get_urls(),
        ]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        operation = _found(object_id)
        is_live = operation.state in LIVE
        may_run = request.user.has_perm(RUN_BULK)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": f"Bulk operation {operation.pk}",
            "operation": operation,
            "what": what_of(operation),
            "facts": facts_of(operation),
            "progress": progress_of(operation),
            "is_live": is_live,
            "form_id": uuid4(),
            "may_abort": is_live and may_run,
            "may_repeat": not is_live and _may_repeat(request, operation) and items_again(operation.pk).exists(),
            "has_workers": list_workers(alive=True).exists(),
            "audit": AuditEntry.objects.filter(target_type="bulk_operation", target_id=str(operation.pk)).order_by(
                "id"
            )[:10],
            "sees_payload": request.user.has_perm(SEE_PAYLOAD),
            **_items_of(request, operation),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/workers/bulkoperation/change_form.html", context)


def _found(object_id: str) -> BulkOperation:
    is_number = object_id.isascii() and object_id.isdigit() and len(object_id) <= ID_DIGITS
    try:
        return operations.get_operation(int(object_id) if is_number else 0)
    except Refusal:
        raise Http404(f"There is no bulk operation {object_id[:40]}.") from None


def what_of(operation: BulkOperation) -> str:
    """Return what an operation does, in words: "requeue dead letters with case=3"."""
    things = "dead letters" if operation.source == BulkOperation.Source.LETTERS else "runs"
    asked = ", ".join(f"{name}={str(value)[:60]}" for name, value in operation.query.items())
    return f"{operation.kind} {things}" + (f" with {asked}" if asked else "")


def facts_of(operation: BulkOperation) -> list[tuple[str, str]]:
    """Return what was chosen, as (name, text)."""
    options = operation.options
    facts = [
        ("By", operation.actor),
        ("Reason", operation.reason),
        ("Started", moment(operation.created_at)),
        ("Ended", moment(operation.finished_at)),
        ("Pace", f"{operation.pace} a minute" if operation.pace else "as fast as it goes"),
        ("Reserved by its new runs", about(operation.reserved)),
    ]
    said = (("Priority", options.get("priority")), ("Delay", options.get("delay")))
    facts += [(name, f"{value:g} s" if isinstance(value, float) else str(value)) for name, value in said if value]
    if options.get("waived"):
        facts.append(("Paid by", "nobody: written off as the runs end"))
    if "edit" in options:
        facts.append(("Input", "edited"))
    if operation.request_id:
        facts.append(("Request", operation.request_id))
    return facts


def progress_of(operation: BulkOperation) -> dict[str, Any]:
    """Return what the page reads again and again; numbers of items, texts for people."""
    acted = operation.done_count + operation.refused_count + operation.failed_count
    return {
        "state": operation.state,
        "total": operation.total,
        "acted": acted,
        "done": operation.done_count,
        "refused": operation.refused_count,
        "failed": operation.failed_count,
        "left": operation.total - acted,
        "problem": operation.problem,
        "is_live": operation.state in LIVE,
    }


def _items_of(request: HttpRequest, operation: BulkOperation) -> dict[str, Any]:
    """Return a page of the items, those of one result or all, by keys."""
    result, after = request.GET.get("result", ""), request.GET.get("after", "")
    rows = operation.items.order_by("position")
    if result in BulkItem.State.values:
        rows = rows.filter(state=result)
    if after.isascii() and after.isdigit() and len(after) <= 9:
        rows = rows.filter(position__gt=int(after))
    items = list(rows[: ITEMS + 1])
    return {
        "items": items[:ITEMS],
        "results": SHOWN,
        "result": result if result in SHOWN else "",
        "next_after": items[ITEMS - 1].position if len(items) > ITEMS else None,
        "is_later_page": bool(after),
        "canary_run": operation.canary_run,
        "nothing": NOTHING,
    }


def progress_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Answer how far it is."""
    if not request.user.has_perm("workers.view_bulkoperation"):
        raise PermissionDenied
    return JsonResponse(progress_of(_found(str(pk))))


@require_POST
def abort_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop it: what was done stays done."""
    if not request.user.has_perm(RUN_BULK):
        raise PermissionDenied
    try:
        operations.abort(pk, actor=actor_of(request), reason=reason_of(request), request_id=request_id_of(request))
    except Refusal as refusal:
        messages.warning(request, refusal.message)
    else:
        messages.success(request, "Aborted. What was done stays done; the rest is as it was.")
    return HttpResponseRedirect(reverse("admin:workers_bulkoperation_change", args=[pk]))


@require_POST
def again_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Start an operation on what this one did not do."""
    old = _found(str(pk))
    if not _may_repeat(request, old):
        raise PermissionDenied
    by = {"actor": actor_of(request), "reason": reason_of(request), "request_id": request_id_of(request)}
    try:
        pk = operations.again(old.pk, form_id=_form_id(request), **by).pk
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return HttpResponseRedirect(reverse("admin:workers_bulkoperation_change", args=[pk]))


def _may_repeat(request: HttpRequest, operation: BulkOperation) -> bool:
    return request.user.has_perms([RUN_BULK, *permissions_for(operation)])


def _form_id(request: HttpRequest) -> UUID | None:
    try:
        return UUID(request.POST.get("form_id", ""))
    except ValueError:
        return None
