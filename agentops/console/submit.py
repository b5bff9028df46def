"""The page to submit a run by hand: choose an agent, fill the form made from its schema, go to the run's page.

With `?dry_run=1` the filled form is only tried: the page says what the run would probably cost, and whether it may.
"""

import uuid
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from agentops.console import schema_form
from agentops.console.run_acts import page_of
from quotas.admin_base import actor_of, request_id_of
from quotas.errors import Refusal
from quotas.json_rules import digest
from quotas.models import Account, Priority
from runs.agents import ATTEMPTS_MAX, LIMIT_MAX_SECONDS, AgentNotRegistered, AgentSpec, get_agent, list_agents
from runs.models import OnLost
from runs.services import Preview, check_input, preview_run, store_upload, submit_run
from runs.services.estimating import sample_estimate
from runs.services.overrides import DELAY_MAX
from runs.uploads import checked_type, clean_name

PERMISSION = "runs.submit_run"
# Which field of the form a refusal is about; every other one is said above the form.
FIELD_OF_CODE = {
    "quota_exceeded": "account",
    "too_many_in_flight": "account",
    "priority_too_high": "priority",
    "session_busy": "session",
}

RUN_FIELDS = ("account", "priority", "session", "metadata")
ON_BUSY = (
    ("reject", "refuse this run"),
    ("enqueue", "run it after the others"),
    ("replace", "cancel them and run this one"),
)
ON_LOST = {OnLost.INTERRUPT: "end it as interrupted", OnLost.RERUN: "start it again"}


def _seconds(label: str, *, most: float, help_text: str) -> forms.FloatField:
    """Return a field for a duration above 0; left empty, nothing is said about it."""
    widget = forms.NumberInput(attrs={"step": "any"})
    return forms.FloatField(
        label=label, required=False, min_value=0.001, max_value=most, widget=widget, help_text=help_text
    )


def options_for(spec: AgentSpec) -> dict[str, forms.Field]:
    """Return what a submit may say about the life of its run, by submit_run's own names."""
    far = DELAY_MAX.total_seconds()
    fields: dict[str, forms.Field] = {
        "on_busy": forms.ChoiceField(choices=ON_BUSY, label="When the session has a run", required=False),
        "delay": _seconds("Delay", most=far, help_text="Seconds before it may begin."),
        "start_at": forms.DateTimeField(
            label="Start at",
            required=False,
            widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"),
            help_text="In UTC, in place of a delay.",
        ),
        "deadline_seconds": _seconds("Deadline", most=far, help_text="Seconds from now after which it is over."),
    }
    may: dict[str, forms.Field] = {
        "time_limit": _seconds(
            "Time limit",
            most=LIMIT_MAX_SECONDS,
            help_text=f"Seconds for one attempt; else {spec.time_limit_seconds:g}.",
        ),
        "max_attempts": forms.IntegerField(
            label="Attempts",
            required=False,
            min_value=1,
            max_value=ATTEMPTS_MAX,
            help_text=f"How often it is tried; else {spec.attempts_by(spec.policy)}.",
        ),
        "on_lost": forms.ChoiceField(
            label="When its worker is lost",
            required=False,
            choices=[("", f"{ON_LOST[OnLost(spec.policy)]} (the agent's way)"), *ON_LOST.items()],
        ),
    }
    return fields | {name: field for name, field in may.items() if name in spec.allow}


class SubmitForm(forms.Form):
    """The agent's fields, then what belongs to every run."""

    def __init__(self, spec: AgentSpec, accounts: QuerySet[Account], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spec = spec
        self.fields.update(schema_form.fields_for(spec))
        self.input_names = list(self.fields)
        only = accounts.first() if accounts.count() == 1 else accounts.filter(name="default").first()
        self.fields["account"] = forms.ModelChoiceField(queryset=accounts, initial=only)
        self.fields["priority"] = forms.ChoiceField(choices=Priority.choices, initial=spec.priority)
        self.fields["session"] = forms.CharField(
            required=False, max_length=200, help_text="Runs of one session run one at a time."
        )
        self.fields["metadata"] = schema_form.JsonField(
            required=False, label="Metadata (JSON)", help_text="An object of your own, kept with the run."
        )
        options = options_for(spec)
        self.option_names = list(options)
        self.fields.update(options)
        # Pressed twice, the same form makes one run; changed and sent again, another one.
        self.fields["form_id"] = forms.UUIDField(widget=forms.HiddenInput, initial=uuid.uuid4)

    @property
    def input_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.input_names if name != schema_form.WHOLE or self.whole_only]

    @property
    def whole_only(self) -> bool:
        return self.input_names == [schema_form.WHOLE]

    @property
    def run_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in RUN_FIELDS]

    @property
    def option_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.option_names]

    @property
    def has_options(self) -> bool:
        """Whether anything was said in the options: then they are shown."""
        return any(self[name].errors or self[name].value() not in (None, "", "reject") for name in self.option_names)

    @property
    def options(self) -> dict[str, Any]:
        """What was said in the options, as submit_run takes it."""
        said = {name: self.cleaned_data.get(name) for name in self.option_names}
        return {name: value for name, value in said.items() if value not in (None, "")}

    @property
    def estimate(self) -> int | None:
        """What would be held now for the agent's sample on the account that is chosen at first."""
        account: Account | None = self.fields["account"].initial
        return None if account is None else sample_estimate(self.spec, account)

    def takes_files(self, run_input: Any) -> bool:
        """Whether uploads go into this input: it is made of the fields."""
        return isinstance(run_input, dict) and self.cleaned_data.get(schema_form.WHOLE) is None

    def clean_metadata(self) -> dict[str, Any] | None:
        metadata = self.cleaned_data["metadata"]
        if metadata is not None and not isinstance(metadata, dict):
            raise forms.ValidationError("This must be an object: {…}.")
        return metadata

    def add_refusal(self, refusal: Refusal) -> None:
        """Show the refusal where it belongs: at the input's fields, at a field of the run, or above the form."""
        for error in refusal.facts.get("errors") or []:
            self.add_error(schema_form.field_of(self.spec, error.get("path", "")), _said(error))
        if not self.errors:
            field = FIELD_OF_CODE.get(refusal.code) or refusal.facts.get("field")
            self.add_error(field if field in self.fields else None, refusal.message)


def _said(error: dict[str, Any]) -> str:
    return f"{error.get('path') or 'input'}: {error.get('message', 'not valid')}"


class SubmitPage:
    """The page, drawn with a site's frame."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def handle(self, request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        spec = _chosen(request.GET.get("agent", ""))
        form, preview = None, None
        if spec is not None:
            accounts = accounts_of(request.user)
            is_post = request.method == "POST"
            form = SubmitForm(spec, accounts, *((request.POST, request.FILES) if is_post else ()))
            if is_post and form.is_valid():
                done = _preview(request, form) if "dry_run" in request.GET else _submit(request, form)
                if isinstance(done, uuid.UUID):
                    return HttpResponseRedirect(page_of(done))
                preview = done
        context = {
            **self._site.each_context(request),
            "title": "Submit a run",
            "agents": list_agents(),
            "spec": spec,
            "form": form,
            "preview": preview,
            "estimate": None if form is None else form.estimate,
            "unknown": request.GET.get("agent", "") if spec is None else "",
        }
        status = 400 if form is not None and form.errors else 200
        return TemplateResponse(request, "console/submit.html", context, status=status)


def accounts_of(user: Any) -> QuerySet[Account]:
    """Return the accounts a user may act for: a superuser all, everybody else where they may submit."""
    if user.is_superuser:
        return Account.objects.order_by("name")
    mine = Account.objects.filter(memberships__user=user, memberships__role__in=("member", "owner"))
    return mine.order_by("name")


def _chosen(name: str) -> AgentSpec | None:
    try:
        return get_agent(name) if name else None
    except AgentNotRegistered:
        return None


def _submit(request: HttpRequest, form: SubmitForm) -> uuid.UUID | None:
    """Store the files, submit, and return the run's id; or put the refusal into the form and return None."""
    account: Account = form.cleaned_data["account"]
    run_input = schema_form.input_from(form.spec, form.cleaned_data)
    key = _form_key(form, run_input)
    try:
        if form.takes_files(run_input):
            run_input |= _store_files(form, account)
        check_input(form.spec.name, run_input, account=account)
        asked = _asked(request, form, run_input) | {"request_id": request_id_of(request)}
        submitted = submit_run(**asked, idempotency_key=key, idempotency_digest=digest(key))
    except Refusal as refusal:
        form.add_refusal(refusal)
        return None
    return submitted.run.pk


def _preview(request: HttpRequest, form: SubmitForm) -> Preview | None:
    """Try the form; or put what would be refused in any case into it and return None. Files are not stored."""
    run_input = schema_form.input_from(form.spec, form.cleaned_data)
    given = _given_files(form) if form.takes_files(run_input) else {}
    try:
        asked = _asked(request, form, run_input | {name: str(uuid.uuid4()) for name in given} if given else run_input)
        return preview_run(**asked, files_follow=bool(given))
    except Refusal as refusal:
        form.add_refusal(refusal)
        return None


def _asked(request: HttpRequest, form: SubmitForm, run_input: Any) -> dict[str, Any]:
    """Return what the form says as submit_run takes it."""
    cleaned = form.cleaned_data
    return {
        "account": cleaned["account"],
        "agent": form.spec.name,
        "input": run_input,
        "actor": actor_of(request),
        "priority": cleaned["priority"],
        "session": cleaned["session"],
        "metadata": cleaned["metadata"] or {},
        **form.options,
    }


def _form_key(form: SubmitForm, run_input: Any) -> str:
    """Return a key of this form with this content: what is pressed twice is one run."""
    files = [[upload.name, upload.size] for upload in _given_files(form).values()]
    rest = {name: str(form.cleaned_data.get(name)) for name in (*RUN_FIELDS, *form.option_names)}
    return f"console:{form.cleaned_data['form_id']}:{digest([run_input, files, rest])[:32]}"


def _given_files(form: SubmitForm) -> dict[str, Any]:
    """Return the uploads by the input's fields."""
    uploads = {name: form.cleaned_data.get(schema_form.PREFIX + name) for name in schema_form.file_names(form.spec)}
    return {name: upload for name, upload in uploads.items() if upload}


def _store_files(form: SubmitForm, account: Account) -> dict[str, str]:
    """Store each uploaded file; return the input's fields with the files' ids. Raises Refusal."""
    stored = {}
    for name, upload in _given_files(form).items():
        file_name = clean_name(upload.name)
        kind = checked_type(upload, file_name)
        row = store_upload(account=account, name=file_name, content_type=kind, chunks=upload.chunks())
        stored[name] = str(row.pk)
    return stored
