"""The plan of a requeue, and of any bulk operation: what it would do, how it shall be done, and its start.

The page sends back what was read on it: the newest key, how many were eligible, whose input was shown. Nothing that
came later is acted on, and where it is otherwise by then, the plan is shown again in place of a start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import structlog
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import Error, connection
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from redis.exceptions import RedisError

from agentops.console.plan_edit import LookAgain, editing_of
from agentops.console.plan_forms import PlanForm
from agentops.console.run_acts import page_of
from agentops.console.run_facts import priorities_of
from quotas.admin_base import ID_DIGITS, actor_of, request_id_of
from quotas.errors import Busy, Refusal
from runs.filters import needs_payload
from runs.models import Run
from workers.bulk import operations
from workers.bulk.options import NEEDS, RUN_BULK, WAIVE, Kind, Options, Source
from workers.bulk.plans import Plan, plan_of
from workers.bulk.runner import BulkRunner
from workers.bulk.targets import TARGETS_MAX, matching
from workers.dead_letters import restorable
from workers.models import BulkOperation, DeadLetter
from workers.selectors import list_workers

log = structlog.get_logger(__name__)
SEE_PAYLOAD = "runs.view_payload"
SEE_OPERATION = "workers.view_bulkoperation"
HIDDEN = "Texts of errors, tags and metadata are for those who may see payloads."  # as the list of runs says it
NAMES = {Source.RUNS: "runs", Source.LETTERS: "dead letters"}
# Their targets grow fewer by themselves, as runs begin and end: a plan of a busy queue would never be as it was shown.
DWINDLE = frozenset({Kind.CANCEL, Kind.REPRIORITISE})


@dataclass(frozen=True, slots=True)
class Asked:
    """What a plan's address asks for."""

    kind: str
    source: str
    query: Mapping[str, str]
    single: bool = False

    @property
    def title(self) -> str:
        if self.single:
            return "Requeue plan"
        return f"{Kind(self.kind).label} {NAMES[Source(self.source)]}: the plan"


class PlanPage:
    """Both pages, drawn with a site's frame."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def requeue(self, request: HttpRequest) -> HttpResponse:
        """Plan the requeue of one: `?run=<id>` or `?letter=<number>`."""
        letter, run = request.GET.get("letter", "").strip(), request.GET.get("run", "").strip()
        source = Source.LETTERS if letter else Source.RUNS
        if not request.user.has_perm(NEEDS[source, Kind.REQUEUE]):
            raise PermissionDenied
        if not (letter or run):
            return HttpResponseRedirect(reverse("admin:index"))
        if not (_is_number(letter) if letter else _is_run_id(run)):  # a list of ids would be many, planned as one
            raise Http404("There is no such run or dead letter.")
        return self._handle(request, Asked(Kind.REQUEUE, source, {"ids": letter or run}, single=True))

    def bulk(self, request: HttpRequest) -> HttpResponse:
        """Plan an act on what a filter matches: `?kind=…&source=runs|letters` and the list's own filter."""
        if not request.user.has_perm(RUN_BULK):
            raise PermissionDenied
        query = {key: str(value).strip() for key, value in request.GET.items() if str(value).strip()}
        kind, source = query.pop("kind", ""), query.pop("source", "")
        if not (kind or source):
            return HttpResponseRedirect(reverse("admin:index"))
        needed = NEEDS.get((source, kind))
        if needed is None:
            raise Http404("There is no such act.")
        if not request.user.has_perm(needed):
            raise PermissionDenied
        return self._handle(request, Asked(kind, source, query))

    def _handle(self, request: HttpRequest, asked: Asked) -> HttpResponse:
        answer = self._answer(request, asked)
        is_started = isinstance(answer, HttpResponseRedirect)
        if request.method != "POST" or "look" in request.POST or is_started:
            return answer
        # Sent twice, a form starts once; what the first has changed is no reason to refuse the second.
        begun = _begun(request, asked)
        return answer if begun is None else _lead_to(request, asked, begun)

    def _answer(self, request: HttpRequest, asked: Asked) -> HttpResponse:
        sent = request.POST
        is_look = "look" in sent
        basic = Options(with_succeeded=asked.single or "with_succeeded" in sent)
        up_to = "" if is_look else sent.get("up_to", "")
        try:
            hidden = _hidden_from(request, asked)
            if hidden:
                return self._draw(request, asked, {"refused": hidden}, status=403)
            plan = plan_of(asked.kind, asked.source, asked.query, basic, up_to=up_to)
        except Refusal as refusal:
            return self._draw(request, asked, {"refused": refusal.message}, status=refusal.status)
        if asked.single and not plan.total:
            raise Http404("There is no such run or dead letter. Retention may have deleted it.")
        editing = editing_of(asked.kind, asked.source, asked.query, plan, user=request.user, sent=sent)
        run = _run_of(asked)
        form = PlanForm(
            asked.kind,
            asked.source,
            sent if request.method == "POST" else None,
            single=asked.single,
            no_edit=editing.why_not,
            may_waive=request.user.has_perm(WAIVE),
            is_look=is_look,
            priorities=None if run is None else priorities_of(run),
        )
        context: dict[str, Any] = {"plan": plan, "form": form, "editing": editing}
        if asked.single and not plan.eligible:
            context |= _instead(request, asked, run)
        if not form.is_bound:
            return self._draw(request, asked, context, status=200)
        if not form.is_valid():
            return self._draw(request, asked, context, status=400)
        try:
            options = form.options(editing.edit_wanted(is_look=is_look))
            if not is_look:
                _check_as_shown(asked, plan, sent.get("eligible", ""))
                return _start(request, asked, form, options, plan)
        except LookAgain as look:
            now = plan_of(asked.kind, asked.source, asked.query, basic)
            return self._draw(request, asked, {**context, "plan": now, "note": look.note}, status=look.status)
        planned = plan_of(asked.kind, asked.source, asked.query, options)
        return self._draw(request, asked, {**context, "plan": planned}, status=200)

    def _draw(self, request: HttpRequest, asked: Asked, context: dict[str, Any], *, status: int) -> HttpResponse:
        shown = {
            **self._site.each_context(request),
            "title": asked.title,
            "asked": asked,
            "verb": Kind(asked.kind).label.lower(),
            "things": NAMES[Source(asked.source)],
            "query": urlencode(asked.query),
            "is_requeue": asked.kind == Kind.REQUEUE,
            "most": TARGETS_MAX,
            "has_workers": list_workers(alive=True).exists(),
            **context,
        }
        return TemplateResponse(request, "console/plan.html", shown, status=status)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= ID_DIGITS


def _is_run_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _run_of(asked: Asked) -> Run | None:
    """Return the run that a single requeue is of; None where there is none, or where they are many."""
    if not asked.single:
        return None
    named = asked.query["ids"]
    mine = Q(pk=named) if asked.source == Source.RUNS else Q(pk__in=DeadLetter.objects.filter(pk=named).values("run"))
    return Run.objects.select_related("account").only("retried_by", "account").filter(mine).first()


def _instead(request: HttpRequest, asked: Asked, run: Run | None) -> dict[str, str]:
    """Return where to go where nothing is to be requeued: the run that there is, or where a letter is restored."""
    if run is not None and run.retried_by is not None:
        return {"new_run": page_of(run.retried_by)} if request.user.has_perm("runs.view_run") else {}
    if asked.source == Source.LETTERS and restorable(DeadLetter.objects.filter(pk=asked.query["ids"])).exists():
        return {"restore_at": reverse("admin:workers_deadletter_change", args=[asked.query["ids"]])}
    return {}


def _hidden_from(request: HttpRequest, asked: Asked) -> str:
    """Return why somebody may not be told what matches: what its list says. Raises UnknownFilter, InvalidFilter."""
    matching(asked.source, asked.query)
    if request.user.has_perm(SEE_PAYLOAD):
        return ""
    if asked.source == Source.RUNS:
        return HIDDEN if needs_payload(asked.query) else ""
    term = asked.query.get("q", "")
    return HIDDEN if term and not _is_run_id(term) else ""


def _check_as_shown(asked: Asked, plan: Plan, shown: str) -> None:
    """Raise LookAgain where not as many are eligible as somebody has read on the page."""
    if not _is_number(shown):
        return
    if plan.eligible == int(shown) or (plan.eligible < int(shown) and asked.kind in DWINDLE):
        return
    raise LookAgain(f"Nothing was started: it is not as it was shown any more, with {shown} eligible. Look again.")


def _begun(request: HttpRequest, asked: Asked) -> BulkOperation | None:
    """Return the operation that this very form has started already."""
    try:
        found = operations.find_of_form(UUID(request.POST.get("form_id", "")))
    except ValueError:
        return None
    if found is None or found.actor != actor_of(request)[:150]:
        return None
    is_it = (found.kind, found.source, found.query) == (asked.kind, asked.source, asked.query)
    return found if is_it else None


def _start(request: HttpRequest, asked: Asked, form: PlanForm, options: Options, plan: Plan) -> HttpResponse:
    """Start it and go to its page; one run is requeued at once, and its new run's page shown."""
    try:
        operation = operations.start(
            kind=asked.kind,
            source=asked.source,
            query=asked.query,
            options=options,
            actor=actor_of(request),
            reason=form.cleaned_data["reason"],
            form_id=form.cleaned_data["form_id"],
            up_to=plan.up_to,
            request_id=request_id_of(request),
        )
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return HttpResponseRedirect(request.get_full_path())
    return _lead_to(request, asked, operation)


def _lead_to(request: HttpRequest, asked: Asked, operation: BulkOperation) -> HttpResponse:
    if asked.single:
        return _at_once(request, asked, operation)
    messages.success(request, "Started. Workers do it; this page may be left.")
    return HttpResponseRedirect(reverse("admin:workers_bulkoperation_change", args=[operation.pk]))


def _at_once(request: HttpRequest, asked: Asked, operation: BulkOperation) -> HttpResponse:
    """Do an operation of one target here: nobody waits for a worker. Where this fails or dies, workers do it."""
    there = HttpResponseRedirect(_page_for(request, asked, operation))
    try:
        BulkRunner("console").work_on(operation.pk)
        item = operation.items.order_by("position").first()
    except (Busy, Error, RedisError) as error:  # it is written down: an error page would say that nothing happened
        log.warning("bulk.left_to_workers", operation=operation.pk, error=str(error))
        connection.close_if_unusable_or_obsolete()
        messages.warning(request, "It is written down, and could not be done at once: a worker does it.")
        return there
    new: UUID | None = None if item is None else item.new_run
    if new is not None:
        messages.success(request, "Requeued: this is the new run.")
        return HttpResponseRedirect(page_of(new))
    if item is not None and item.code:
        # A refusal is told in words of ours; a bug's text may quote a payload.
        is_told = item.state == item.State.REFUSED or request.user.has_perm(SEE_PAYLOAD)
        messages.error(request, f"Not requeued: {item.message if is_told else item.code}")
    return there


def _page_for(request: HttpRequest, asked: Asked, operation: BulkOperation) -> str:
    """Return the operation's page; for who may not see that, the page of what was to be requeued."""
    if request.user.has_perm(SEE_OPERATION):
        return reverse("admin:workers_bulkoperation_change", args=[operation.pk])
    if asked.source == Source.LETTERS:
        return reverse("admin:workers_deadletter_change", args=[asked.query["ids"]])
    return page_of(UUID(asked.query["ids"]))
