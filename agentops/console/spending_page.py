"""The page of an account's spending: the totals that `GET /spending` answers, with their CSV file."""

import datetime as dt
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django import forms
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from quotas.admin_base import standing_of_staff
from quotas.csv_export import csv_response
from quotas.database import exactly
from quotas.days import moment_of
from quotas.display import short
from quotas.models import Account
from runs.spending import AMOUNTS, BY, DAYS, Question, SpanTooLong, Total, rows_of, span_of, spending, total_of

SEE = "quotas.view_ledgerentry"
SEE_PAYLOAD = "runs.view_payload"  # tags are texts of whoever submits
PAGE = 50
ACCOUNTS = 200  # suggested; any other one is typed
NOTHING = {"agent": "no agent", "session": "no session", "tag": "no tag", "run": "no run", "attempt": "no attempt"}


class SpendingForm(forms.Form):
    """What is asked, in the query of the page."""

    account = forms.CharField(max_length=100, widget=forms.TextInput(attrs={"list": "accounts"}))
    by = forms.ChoiceField(choices=[(by, by) for by in BY])
    start = forms.DateField(label="From", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    end = forms.DateField(label="To", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    agent = forms.CharField(max_length=120, required=False)
    session = forms.CharField(max_length=200, required=False)
    tag = forms.CharField(max_length=60, required=False)

    def __init__(self, *args: Any, may_see_tags: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not may_see_tags:
            del self.fields["tag"]
            self.fields["by"] = forms.ChoiceField(choices=[(by, by) for by in BY if by != "tag"])

    def clean_account(self) -> Account:
        name = self.cleaned_data["account"]
        account = Account.objects.filter(exactly("name", name)).first()
        if account is None:
            raise forms.ValidationError("There is no such account.")
        return account

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if "account" in cleaned and not self.errors:
            self.question = self._question(cleaned)
        return cleaned

    def _question(self, cleaned: dict[str, Any]) -> Question:
        zone = ZoneInfo(cleaned["account"].timezone)
        facts: dict[str, Any] = {name: cleaned.get(name) or None for name in ("agent", "session", "tag")}
        for name in ("start", "end"):
            day = cleaned[name]
            try:
                facts[name] = None if day is None else moment_of(day.isoformat(), zone, is_end=name == "end")
            except ValueError:
                self.add_error(name, "This day is out of range.")
        if not self.errors:
            try:
                facts["start"], facts["end"] = span_of(cleaned["account"], facts["start"], facts["end"])
            except SpanTooLong:
                self.add_error("start", f"Ask for at most {DAYS} days at once.")
        return Question(cleaned["account"], **facts)


@dataclass(frozen=True, slots=True)
class Row:
    """A total as it is shown: what it is called, where that leads, and its part of the settled whole in thousandths."""

    total: Total
    name: str
    address: str
    share: int


class SpendingPage:
    """The page, drawn with a site's frame."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def handle(self, request: HttpRequest) -> HttpResponse:
        form = _form(request)
        context = {
            **self._site.each_context(request),
            "title": "Spending",
            "form": form,
            "accounts": Account.objects.order_by("name").values_list("name", flat=True)[:ACCOUNTS],
        }
        if form.is_valid():
            context |= _shown(request, form)
        return TemplateResponse(request, "console/spending.html", context, status=400 if form.errors else 200)


def csv_view(request: HttpRequest) -> StreamingHttpResponse:
    """Send all totals of the page's question."""
    form = _form(request)
    if not form.is_valid():
        raise BadRequest("The query asks for nothing there is.")
    by = form.cleaned_data["by"]
    return csv_response(
        request,
        name=f"spending-by-{by}",
        columns=(by, *AMOUNTS),
        pieces=rows_of(form.question, by),
        standing=standing_of_staff(request, SEE),
        in_one_go=True,
    )


def _form(request: HttpRequest) -> SpendingForm:
    if not request.user.has_perm(SEE):
        raise PermissionDenied
    given = {name: value for name, value in request.GET.items() if value}
    first = Account.objects.filter(name="default").first() or Account.objects.order_by("pk").first()
    defaults = {"account": "" if first is None else first.name, "by": "agent"}
    return SpendingForm(defaults | given, may_see_tags=request.user.has_perm(SEE_PAYLOAD))


def _shown(request: HttpRequest, form: SpendingForm) -> dict[str, Any]:
    by, question = form.cleaned_data["by"], form.question
    asked = {name: value for name, value in form.data.items() if name in form.fields}
    try:
        page = spending(question, by, after=request.GET.get("after") or None, limit=PAGE)
    except ValueError as error:
        raise BadRequest("There is no such page.") from error
    total = total_of(question)
    return {
        "by": by,
        "zone": question.account.timezone,
        "first_day": _day(question, question.start),
        "last_day": _day(question, question.end and question.end - dt.timedelta.resolution),
        "total": total,
        "rows": [_row(by, row, total.settled, asked) for row in page.results],
        "next": page.next and urlencode(asked | {"after": page.next}),
        "query": urlencode(asked),
    }


def _day(question: Question, at: dt.datetime | None) -> str:
    return "" if at is None else at.astimezone(ZoneInfo(question.account.timezone)).date().isoformat()


def _row(by: str, total: Total, settled: int, asked: dict[str, str]) -> Row:
    share = max(0, total.settled) * 1000 // settled if settled > 0 else 0
    if total.key is None:
        return Row(total, NOTHING.get(by, ""), "", share)
    if by in {"run", "attempt"}:
        run, _, fence = total.key.partition("/")
        name = short(run) + (f", fence {fence}" if fence else "")
        return Row(total, name, reverse("admin:runs_run_change", args=[run]), share)
    narrowed = {"start": total.key, "end": total.key} if by == "day" else {by: total.key}
    return Row(total, total.key, f"?{urlencode(asked | narrowed | {'by': 'run'})}", share)
