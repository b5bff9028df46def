"""The agents: all of them with the figures of a day, and the page of one."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from agentops.console import agent_figures
from quotas.display import about, span
from runs.agents import NAME_MAX, AgentSpec, list_agents

SEE, SEE_MONEY = "runs.view_run", "quotas.view_ledgerentry"


class AgentsPage:
    """Both pages, drawn with a site's frame; `?agent=` names one, because a name may hold anything but a space."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def handle(self, request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(SEE):
            raise PermissionDenied
        name = request.GET.get("agent", "")
        context = {**self._site.each_context(request), "shows_money": request.user.has_perm(SEE_MONEY)}
        if not name:
            context |= {"title": "Agents", "lines": agent_figures.lines.get(), "most": agent_figures.MOST_OF_EACH}
            return TemplateResponse(request, "console/agents.html", context)
        spec = next((one for one in list_agents() if one.name == name), None)
        found: dict[str, Any] = agent_figures.page_of(name) if len(name) <= NAME_MAX else {"is_known": False}
        if spec is None and not found["is_known"]:
            raise Http404(f"There is no agent {name!r}, and no run of one.")
        policy = "interrupt" if spec is None else spec.policy
        context |= found | {
            "title": f"Agent {name}",
            "name": name,
            "spec": spec,
            "facts": [] if spec is None else _facts(spec),
            "suggestion": agent_figures.suggestion(found["choice"], policy),
            "most": agent_figures.MOST,
        }
        return TemplateResponse(request, "console/agent.html", context)


def _facts(spec: AgentSpec) -> list[tuple[str, str]]:
    """Return what an agent declares, as (term, value)."""

    def or_default(seconds: float | None) -> str:
        return "as the settings say" if seconds is None else span(seconds)

    estimate = about(spec.estimate.fixed) if spec.estimate.kind == "fixed" else f"by {spec.estimate.kind}"
    return [
        ("Version", spec.version),
        ("Queue", spec.queue),
        ("Priority", str(spec.priority)),
        ("When a worker is lost", spec.policy),
        ("Attempts", str(spec.attempts_by(spec.policy))),
        ("Time of an attempt", span(spec.time_limit_seconds)),
        ("Time of all attempts", or_default(spec.wall_clock_seconds)),
        ("Wait for a worker", or_default(spec.queue_wait_seconds)),
        ("Without an event", "no limit" if spec.no_progress_seconds is None else span(spec.no_progress_seconds)),
        ("At work at once", "no limit" if spec.max_running is None else f"{spec.max_running:,}"),
        ("Isolation", spec.isolation),
        ("Estimate, credits", estimate),
        ("A submit may set", ", ".join(sorted(spec.allow)) or "nothing"),
    ]
