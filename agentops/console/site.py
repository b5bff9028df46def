"""The admin site: an operations menu, the overview as its first page, and the pages that span apps."""

from functools import update_wrapper
from typing import Any

from django.contrib.admin import AdminSite, autodiscover
from django.core.checks import CheckMessage
from django.core.exceptions import BadRequest
from django.db import DataError, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse

from agentops.console import (
    agents_page,
    control_acts,
    names,
    overview_page,
    plan_page,
    run_acts,
    run_log,
    run_page,
    spending_page,
    streams_page,
    submit,
)
from agentops.console.overview import numbers_for, open_dead_letters
from quotas import audit
from quotas.admin_base import actor_of, request_id_of
from workers.cases import live_cases

# The menu by what people do, not by app. Models of other apps follow under "People and settings".
MENU = (
    (
        "Operations",
        "operations",
        ("runs.Run", "workers.Case", "workers.DeadLetter", "workers.BulkOperation", "workers.WorkerProcess"),
    ),
    ("Money", "money", ("quotas.Account", "quotas.Hold", "quotas.LedgerEntry", "quotas.Price")),
    ("Access", "access", ("quotas.Membership", "quotas.ApiKey", "auth.User", "auth.Group")),
    ("Record", "record", ("quotas.AuditEntry",)),
)
REST = ("Sign-in record", "rest")
BADGE_MAX = 99  # what the menu counts to, on every page


class AgentOpsAdminSite(AdminSite):
    site_header = "AgentOps"
    site_title = "AgentOps"
    index_title = "Overview"
    site_url = None
    index_template = "admin/index.html"

    def check(self, app_configs: Any) -> list[CheckMessage]:
        autodiscover()
        return super().check(app_configs)

    def get_urls(self) -> list[URLPattern | URLResolver]:
        """Put our pages before the models' own, so that the page of a run is ours."""
        autodiscover()
        view = self.admin_view
        run = "runs/run/<uuid:run_id>/"
        ours: list[URLPattern | URLResolver] = [
            path("overview.json", view(self.numbers), name="overview_numbers"),
            path("overview/charts.json", view(overview_page.charts_view), name="overview_charts"),
            path("overview/parts.json", view(overview_page.parts_view), name="overview_parts"),
            path("agents/", view(agents_page.AgentsPage(self).handle), name="agents"),
            path("spending/", view(spending_page.SpendingPage(self).handle), name="spending"),
            path("spending.csv", view(spending_page.csv_view), name="spending_csv"),
            path("requeue-plan/", view(plan_page.PlanPage(self).requeue), name="requeue_plan"),
            path("bulk-plan/", view(plan_page.PlanPage(self).bulk), name="bulk_plan"),
            path("submit/", view(submit.SubmitPage(self).handle), name="submit_run"),
            path("queues/pause/", view(control_acts.pause), name="queue_pause"),
            path("queues/resume/", view(control_acts.resume), name="queue_resume"),
            path("maintenance/begin/", view(control_acts.begin), name="maintenance_begin"),
            path("maintenance/end/", view(control_acts.end), name="maintenance_end"),
            path("streams/", view(streams_page.StreamsPage(self).handle), name="streams"),
            path("streams/repair/", view(streams_page.repair), name="streams_repair"),
            path(f"{run}change/", view(run_page.RunPage(self).handle), name="runs_run_change"),
            path(f"{run}facts.json", view(run_page.facts_view), name="run_facts"),
            path(f"{run}raw.json", view(run_page.raw_view), name="run_raw"),
            path(f"{run}events.json", view(run_log.events_view), name="run_events"),
            path(f"{run}ticket/", view(run_page.ticket_view), name="run_ticket"),
            path(f"{run}cancel/", view(run_acts.cancel), name="run_cancel"),
            path(f"{run}priority/", view(run_acts.priority), name="run_priority"),
            path(f"{run}artifacts/<int:pk>/", view(run_page.artifact_view), name="run_artifact"),
        ]
        return ours + super().get_urls()

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:  # noqa: FBT001, FBT002  Django's signature
        """Refuse for every page what no database looks up: a NUL in the query, and a number beyond its columns."""

        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if any("\0" in value for values in request.GET.lists() for value in values[1]):
                raise BadRequest("The query holds a NUL character.")
            try:
                answer: HttpResponse = view(request, *args, **kwargs)
                return answer.render() if isinstance(answer, TemplateResponse) else answer
            except (OverflowError, DataError):
                if request.method != "GET":
                    raise
                raise BadRequest("The query holds a number that is out of range.") from None

        return super().admin_view(update_wrapper(checked, view), cacheable)

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Show the overview."""
        return super().index(request, {**overview_page.context_for(request.user), **(extra_context or {})})

    @transaction.atomic
    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Change one's own password, which is a line of the audit log without it."""
        answer = super().password_change(request, extra_context)
        if request.method == "POST" and answer.status_code == 302:
            audit.record(
                actor=actor_of(request),
                action="user.password",
                target_type="user",
                target_id=request.user.pk,
                request_id=request_id_of(request),
            )
        return answer

    def numbers(self, request: HttpRequest) -> JsonResponse:
        """Answer the overview's numbers: what the page reads where no socket can be opened."""
        return JsonResponse(numbers_for(request.user))

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return the menu. With a label: that app's models, for Django's page of one app."""
        if app_label is not None:
            return super().get_app_list(request, app_label)
        apps = self._build_app_dict(request)
        models = {f"{label}.{m['object_name']}": m for label, app in apps.items() for m in app["models"]}
        for key, name in names.PLURAL.items():
            if key in models:
                models[key]["name"] = name
        _put_badge(models.get("workers.DeadLetter"), open_dead_letters())
        _put_badge(models.get("workers.Case"), live_cases())
        groups = [_group(name, label, [models.pop(key) for key in keys if key in models]) for name, label, keys in MENU]
        if request.user.has_perm("runs.submit_run"):
            groups[0]["models"].insert(0, _link("Submit a run", "SubmitRun", "admin:submit_run"))
        if request.user.has_perm(agents_page.SEE):
            before = [m["object_name"] for m in groups[0]["models"]]
            place = before.index("WorkerProcess") if "WorkerProcess" in before else len(before)
            groups[0]["models"].insert(place, _link("Agents", "Agents", "admin:agents"))
        if request.user.has_perm(streams_page.SEE):
            groups[0]["models"].append(_link("Streams", "Streams", "admin:streams"))
        if request.user.has_perm(spending_page.SEE):
            groups[1]["models"].append(_link("Spending", "Spending", "admin:spending"))
        groups.append(_group(*REST, sorted(models.values(), key=lambda m: str(m["name"]))))
        return [group for group in groups if group["models"]]


def _group(name: str, label: str, models: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "app_label": label,
        "app_url": models[0]["admin_url"] if models else "",
        "has_module_perms": True,
        "models": models,
    }


def _link(name: str, object_name: str, route: str) -> dict[str, Any]:
    return {
        "name": name,
        "object_name": object_name,
        "admin_url": reverse(route),
        "add_url": None,
        "view_only": True,
        "perms": {"view": True},
    }


def _put_badge(model: dict[str, Any] | None, rows: QuerySet[Any]) -> None:
    count = 0 if model is None else rows.order_by()[: BADGE_MAX + 1].count()
    if model is not None and count:
        model["badge"] = f"{BADGE_MAX}+" if count > BADGE_MAX else str(count)
