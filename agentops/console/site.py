"""The admin site: an operations menu, the overview as its first page, and the pages that span apps."""

from functools import update_wrapper
from typing import Any

from django.contrib.admin import AdminSite, autodiscover
from django.core.checks import CheckMessage
from django.core.exceptions import BadRequest
from django.db import DataError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse

from agentops.console import names, run_acts, run_log, run_page, spending_page, submit
from agentops.console.overview import bounded, numbers_for, open_dead_letters, recent_runs, shown

# The menu by what people do, not by app. Models of other apps follow under "People and settings".
MENU = (
    ("Operations", "operations", ("runs.Run", "workers.DeadLetter", "workers.WorkerProcess")),
    ("Money", "money", ("quotas.Account", "quotas.Hold", "quotas.LedgerEntry", "quotas.Price")),
    ("Access", "access", ("quotas.Membership", "quotas.ApiKey", "auth.User", "auth.Group")),
    ("Record", "record", ("quotas.AuditEntry",)),
)
REST = ("Sign-in record", "rest")


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
            path("spending/", view(spending_page.SpendingPage(self).handle), name="spending"),
            path("spending.csv", view(spending_page.csv_view), name="spending_csv"),
            path("submit/", view(submit.SubmitPage(self).handle), name="submit_run"),
            path(f"{run}change/", view(run_page.RunPage(self).handle), name="runs_run_change"),
            path(f"{run}facts.json", view(run_page.facts_view), name="run_facts"),
            path(f"{run}raw.json", view(run_page.raw_view), name="run_raw"),
            path(f"{run}events.json", view(run_log.events_view), name="run_events"),
            path(f"{run}ticket/", view(run_page.ticket_view), name="run_ticket"),
            path(f"{run}cancel/", view(run_acts.cancel), name="run_cancel"),
            path(f"{run}requeue/", view(run_acts.requeue), name="run_requeue"),
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
        context = {
            "numbers": numbers_for(request.user),
            "recent": recent_runs() if request.user.has_perm("runs.view_run") else [],
            **(extra_context or {}),
        }
        return super().index(request, context)

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
        _put_badge(models.get("workers.DeadLetter"))
        groups = [_group(name, label, [models.pop(key) for key in keys if key in models]) for name, label, keys in MENU]
        if request.user.has_perm("runs.submit_run"):
            groups[0]["models"].insert(0, _link("Submit a run", "SubmitRun", "admin:submit_run"))
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


def _put_badge(model: dict[str, Any] | None) -> None:
    count = 0 if model is None else bounded(open_dead_letters())
    if model is not None and count:
        model["badge"] = shown(count)
