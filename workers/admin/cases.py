"""Cases: the list with what each costs and how often it comes, and the page of one with its acts."""

from collections.abc import Callable, Sequence
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from quotas.admin_base import ID_DIGITS, ReadOnlyAdmin, actor_of, reason_of, request_id_of
from quotas.admin_filters import TextFilter
from quotas.database import exactly
from quotas.display import NOTHING, about, age_of, excerpt, moment, pill
from quotas.errors import Refusal
from workers import cases
from workers.dead_letters import state_of
from workers.models import BulkOperation, Case, DeadLetter

TRIAGE = "workers.triage_case"
SEE_PAYLOAD = "runs.view_payload"
RUN_BULK = "workers.run_bulkoperation"
PLANS = (
    (str(BulkOperation.Kind.REQUEUE), "Requeue", "workers.requeue_deadletter"),
    (str(BulkOperation.Kind.DISCARD), "Discard", "workers.discard_deadletter"),
)
WAITING = "waiting"
LETTERS = 25
OWNERS = 200
PATTERN_SHOWN = 140
SEARCHED = 5_000  # cases in which words are looked for
BAR_WIDTH, BAR_HEIGHT = 5, 20
HOURS = ((1, "1 hour"), (8, "8 hours"), (24, "a day"), (168, "7 days"), (720, "30 days"))
SAID = {
    "assign": "The owner is changed.",
    "ignore": "Ignored until then.",
    "resolve": "Resolved. It opens again when it comes back.",
    "reopen": "Open again.",
    "note": "Noted.",
}
Rows = QuerySet[Case]


class StateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state_is"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(WAITING, "Open or assigned"), *Case.State.choices]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:  # noqa: ARG002
        state = self.value()
        if state == WAITING:
            return queryset.filter(state__in=cases.LIVE)
        return queryset.filter(state=state) if state in Case.State.values else queryset


class AgentFilter(TextFilter):
    title = "agent"
    parameter_name = "agent_is"

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:  # noqa: ARG002
        return queryset.filter(exactly("agent", self.value() or "")) if self.value() else queryset


class ClassFilter(TextFilter):
    title = "error class"
    parameter_name = "error_class_is"

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:  # noqa: ARG002
        return queryset.filter(exactly("error_class", self.value() or "")) if self.value() else queryset


class OwnerFilter(TextFilter):
    title = "owner"
    parameter_name = "owner_is"

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:  # noqa: ARG002
        return queryset.filter(owner__username=self.value()) if self.value() else queryset


@admin.register(Case)
class CaseAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "state_shown",
        "what",
        "agent",
        "count",
        "open_shown",
        "spark",
        "last_seen",
        "first_seen",
        "accounts_shown",
        "cost_shown",
        "owner_shown",
    )
    list_filter = (StateFilter, AgentFilter, ClassFilter, OwnerFilter)
    list_select_related = ("owner",)
    search_fields = ("pattern",)  # shows the field; what it finds is below
    search_help_text = f"Number of a case, or words of the error of the {SEARCHED:,} seen last"
    sortable_by = ()
    ordering = ("-last_seen_at",)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Read the bars of all rows of the page at once; leave out words of the error for who may not see them."""
        changelist = super().get_changelist_instance(request)
        rows = list(changelist.result_list)
        hours, shows = cases.hourly(rows), request.user.has_perm(SEE_PAYLOAD)
        for row in rows:
            row.bars, row.shows_words = hours[row.pk], shows
        changelist.result_list = rows
        return changelist

    def get_search_results(self, request: HttpRequest, queryset: Rows, search_term: str) -> tuple[Rows, bool]:
        """Find a case by its number, or words in those of the list that were seen last: no index knows words."""
        term = search_term.strip()[:200]
        if not term:
            return queryset, False
        if term.isascii() and term.isdigit() and len(term) <= ID_DIGITS:
            return queryset.filter(pk=int(term)), False
        which = Q()
        for word in term.split():
            one = Q(reason__icontains=word) | Q(error_class__icontains=word)
            if request.user.has_perm(SEE_PAYLOAD):
                one |= Q(error_type__icontains=word) | Q(pattern__icontains=word)
            which &= one
        seen = queryset.order_by("-last_seen_at").values_list("last_seen_at", flat=True)
        oldest = seen[SEARCHED - 1 : SEARCHED].first()
        return queryset.filter(which) if oldest is None else queryset.filter(which, last_seen_at__gte=oldest), False

    @admin.display(description="State")
    def state_shown(self, obj: Case) -> SafeString:
        return pill(obj.state)

    @admin.display(description="Error")
    def what(self, obj: Case) -> SafeString:
        shows = getattr(obj, "shows_words", False)
        name, pattern = title_of(obj, shows=shows), obj.pattern if shows else ""
        if len(pattern) > PATTERN_SHOWN:
            pattern = pattern[:PATTERN_SHOWN] + "…"
        return format_html('<strong>{}</strong> <span class="case-pattern">{}</span>', name, pattern)

    @admin.display(description="Open")
    def open_shown(self, obj: Case) -> int:
        return obj.open_count

    @admin.display(description="24 hours")
    def spark(self, obj: Case) -> SafeString:
        return sparkline(getattr(obj, "bars", ()))

    @admin.display(description="Last seen")
    def last_seen(self, obj: Case) -> str:
        return age_of(obj.last_seen_at)

    @admin.display(description="First seen")
    def first_seen(self, obj: Case) -> str:
        return age_of(obj.first_seen_at)

    @admin.display(description="Accounts")
    def accounts_shown(self, obj: Case) -> int:
        return obj.account_count

    @admin.display(description="Cost")
    def cost_shown(self, obj: Case) -> str:
        return about(obj.cost)

    @admin.display(description="Owner")
    def owner_shown(self, obj: Case) -> str:
        return NOTHING if obj.owner is None else obj.owner.get_username()

    # -- the page of one ----------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        acts = [path(f"<int:pk>/{act}/", view(_act_view(act)), name=f"workers_case_{act}") for act in SAID]
        return acts + super().get_urls()

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
        is_number = object_id.isascii() and object_id.isdigit() and len(object_id) <= ID_DIGITS
        try:
            case = cases.get_case(int(object_id) if is_number else 0)
        except Refusal:
            raise Http404(f"There is no case {object_id[:40]}. Retention may have deleted it.") from None
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": f"Case {case.pk}",
            "case": case,
            "name": title_of(case, shows=request.user.has_perm(SEE_PAYLOAD)),
            "spark": sparkline(cases.hourly([case])[case.pk]),
            "facts": facts_of(case),
            "accounts": cases.accounts_of(case),
            "history": [(entry, _told(entry.after)) for entry in cases.history_of(case)],
            **_letters_of(request, case),
            **_acts_of(request, case),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/workers/case/change_form.html", context)


def title_of(case: Case, *, shows: bool) -> str:
    """Return what a case is called: the type of its error where it may be seen, or why its letters were set aside."""
    return (case.error_type if shows else "") or case.error_class or case.reason


def facts_of(case: Case) -> list[tuple[str, str]]:
    """Return the numbers and decisions of a case as (name, text)."""
    facts = [
        ("Letters", f"{case.count:,}"),
        ("Open", f"{case.open_count:,}"),
        ("Accounts", f"{case.account_count:,}"),
        ("Cost so far", about(case.cost)),
        ("First seen", moment(case.first_seen_at)),
        ("Last seen", moment(case.last_seen_at)),
        ("Last in version", case.last_version or NOTHING),
        ("Owner", NOTHING if case.owner is None else case.owner.get_username()),
    ]
    if case.ignored_until is not None:
        facts.append(("Ignored until", moment(case.ignored_until)))
    if case.ignored_until_count is not None:
        facts.append(("Ignored until it came", f"{case.ignored_until_count:,} times"))
    if case.resolved_at is not None:
        facts.append(("Resolved", moment(case.resolved_at)))
        facts.append(("Resolved in version", case.resolved_in_version or "any from then on"))
    return facts


def _letters_of(request: HttpRequest, case: Case) -> dict[str, Any]:
    """Return the sample, as much of it as the user may see, and a page of the letters, the newest first."""
    if not request.user.has_perm("workers.view_deadletter"):
        return {}
    before = request.GET.get("before", "")
    rows = DeadLetter.objects.filter(case=case).select_related("run__account").order_by("-pk")
    if before.isascii() and before.isdigit() and len(before) <= ID_DIGITS:
        rows = rows.filter(pk__lt=int(before))
    shown = rows.only(
        "state", "reason", "buried_at", "version", "run__agent", "run__retried_by", "run__cost", "run__account__name"
    )
    letters = list(shown[: LETTERS + 1])
    for letter in letters:
        letter.state_shown = state_of(letter)  # type: ignore[attr-defined]
    sample = cases.newest_letter(case)
    error = None if sample is None or sample.run is None else sample.run.error
    facts = error if isinstance(error, dict) else {}
    return {
        "shows_letters": True,
        "letters": letters[:LETTERS],
        "older": letters[LETTERS - 1].pk if len(letters) > LETTERS else None,
        "is_older_page": bool(before),
        "sample": sample,
        "shows_payload": request.user.has_perm(SEE_PAYLOAD),
        "message": excerpt(str(facts.get("message") or ("" if sample is None else sample.message))),
        "traceback": excerpt(str(facts.get("traceback") or "")),
    }


def _plans_of(request: HttpRequest, case: Case) -> list[tuple[str, str]]:
    """Return what may be planned for the open letters of a case, as (text, address of the plan)."""
    letters = {"source": str(BulkOperation.Source.LETTERS), "case": case.pk, "state_is": str(DeadLetter.State.OPEN)}
    return [
        (f"{text} {case.open_count:,} open…", reverse("admin:bulk_plan", query={"kind": kind, **letters}))
        for kind, text, permission in PLANS
        if case.open_count and request.user.has_perms([RUN_BULK, permission])
    ]


def _acts_of(request: HttpRequest, case: Case) -> dict[str, Any]:
    may = request.user.has_perm(TRIAGE)
    return {
        "plans": _plans_of(request, case),
        "may_triage": may,
        "is_live": case.state in cases.LIVE,
        "owners": list(cases.owners().values_list("username", flat=True)[:OWNERS]) if may else [],
        "hours": HOURS,
        "release": settings.AGENTOPS_RELEASE,
    }


def _told(after: Any) -> str:
    """Return what a decision made of a case, in a line."""
    if not isinstance(after, dict):
        return ""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in after.items() if value not in (None, ""))


def sparkline(counts: Sequence[int]) -> SafeString:
    """Return the counts of 24 hours as bars, the highest as high as the picture; one of many is still seen."""
    most = max(counts, default=0)
    bars = []
    for place, count in enumerate(counts):
        height = max(1, round(BAR_HEIGHT * count / most)) if count else 0
        bars.append((place * BAR_WIDTH, BAR_HEIGHT - height, BAR_WIDTH - 1, height))
    text = f"{sum(counts):,} in 24 hours, at most {most:,} in an hour"
    return format_html(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}"><title>{}</title>{}'
        "</svg>",
        BAR_WIDTH * len(counts),
        BAR_HEIGHT,
        BAR_WIDTH * len(counts),
        BAR_HEIGHT,
        text,
        text,
        format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}"></rect>', bars),
    )


def _act_view(act: str) -> Callable[..., HttpResponse]:
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not request.user.has_perm(TRIAGE):
            raise PermissionDenied
        try:
            _do(act, request, pk)
        except Refusal as refusal:
            if refusal.status == 404:
                raise Http404(refusal.message) from None
            messages.warning(request, refusal.message)
        else:
            messages.success(request, SAID[act])
        return HttpResponseRedirect(reverse("admin:workers_case_change", args=[pk]))

    return view


def _do(act: str, request: HttpRequest, pk: int) -> None:
    who: Any = {"case_id": pk, "actor": actor_of(request), "request_id": request_id_of(request)}
    reason, typed = reason_of(request), request.POST
    match act:
        case "assign":
            cases.assign(owner=typed.get("owner", "")[:150].replace("\0", ""), reason=reason, **who)
        case "ignore":
            hours, times = _number(typed.get("hours", "")), _number(typed.get("times", ""))
            cases.ignore(hours=hours, times=times, reason=reason, **who)
        case "resolve":
            version = "".join(c for c in typed.get("version", "") if c.isprintable())
            cases.resolve(version=version, reason=reason, **who)
        case "reopen":
            cases.reopen(reason=reason, **who)
        case _:
            cases.note(text=reason, **who)


def _number(text: str) -> int | None:
    """Return a count or a number of hours; None for what is none, or too large for any calendar."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None
