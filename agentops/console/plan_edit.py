"""The edit of an input on a plan's page: whose input is shown, why there may be none, and what of it was changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agentops.console.plan_forms import InputForm
from quotas.display import TEXT_SHOWN
from quotas.errors import Refusal
from runs.agents import AgentNotRegistered, get_agent
from runs.models import Run
from runs.services import check_input
from workers.bulk.edits import Edit, applied, difference
from workers.bulk.options import Kind, Source
from workers.bulk.plans import Plan
from workers.bulk.targets import matching

SEE_PAYLOAD = "runs.view_payload"
GONE = "Nothing was started: the run whose input was shown is gone, or matches no more. Look again."
NOT_SENT = "Nothing was started: the input is shown now. Change it, or take the tick away."


class LookAgain(Exception):
    """The plan is shown once more with a sentence, and nothing is started."""

    def __init__(self, note: str, *, status: int = 409) -> None:
        super().__init__(note)
        self.note, self.status = note, status


@dataclass(slots=True)
class Editing:
    """The form of the input of `first`, or why there is none. `changes` is what a valid edit makes of that input."""

    why_not: str = ""
    first: Run | None = None
    form: InputForm | None = None
    is_wanted: bool = False
    is_gone: bool = False
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_unchanged(self) -> bool:
        """Whether the input came back as it was shown."""
        return self.is_wanted and self.form is not None and self.form.is_bound and not self.changes

    def edit_wanted(self, *, is_look: bool) -> Edit | None:
        """Return the edit that is asked for, if one is. Raises LookAgain where it cannot be told, or is not valid."""
        if not self.is_wanted:
            return None
        if self.is_gone or self.form is None or self.first is None:
            raise LookAgain(GONE)
        if not self.form.is_bound:
            if is_look:
                return None
            raise LookAgain(NOT_SENT, status=400)
        edit = self.form.edit if self.form.is_valid() else None
        if edit is not None:
            self._check(self.form, self.first, edit)
        if self.form.errors:
            raise LookAgain("", status=400)
        return edit

    def _check(self, form: InputForm, first: Run, edit: Edit) -> None:
        """Put what the agent says against the edited input into the form; where it says nothing, tell the changes."""
        try:
            after = applied(edit, first.input)
            check_input(first.agent, after, account=first.account)
            self.changes = difference(first.input, after)
        except Refusal as refusal:
            form.add_errors(refusal.facts.get("errors") or [{"path": "", "message": refusal.message}])


def editing_of(
    kind: str, source: str, query: Mapping[str, str], plan: Plan, *, user: Any, sent: Mapping[str, str]
) -> Editing:
    """Return the edit as the page offers it, of the newest run of the plan; of the one that was shown if it is sent."""
    editing = Editing(is_wanted="edit_input" in sent)
    if kind != Kind.REQUEUE:
        editing.why_not = "only a requeue makes new runs."
    elif not user.has_perm(SEE_PAYLOAD):
        editing.why_not = "that is for those who may see payloads."
    if editing.why_not:
        return editing
    if editing.is_wanted:
        editing.first = _shown(source, query, sent.get("first", ""))
        editing.is_gone = editing.first is None
    if editing.first is None:
        editing.first = _newest(source, query, plan)
    editing.why_not = _why_not(editing.first, plan)
    if editing.first is not None and not editing.why_not:
        spec = get_agent(editing.first.agent)
        form = InputForm(spec, editing.first.input, sent if editing.is_wanted and not editing.is_gone else None)
        editing.form = form if form.is_sent or not form.is_bound else InputForm(spec, editing.first.input)
    return editing


def _why_not(first: Run | None, plan: Plan) -> str:
    """Return why the input of this run cannot be edited for all of the plan; empty where it can."""
    if first is None or not plan.eligible:
        return "nothing is eligible."
    if not plan.only_agent or plan.only_agent != first.agent:
        return "what is eligible is not of one agent alone."
    try:
        get_agent(first.agent)
    except AgentNotRegistered:
        return "its agent is not known here."
    if first.payload_pruned:
        return "retention has deleted it."
    length = len(first.input_json)
    if length > TEXT_SHOWN:
        return f"it has {length:,} characters, and up to {TEXT_SHOWN:,} can be edited here."
    return ""


def _newest(source: str, query: Mapping[str, str], plan: Plan) -> Run | None:
    """Return the run that is acted on first."""
    rows = matching(source, query)
    rows = rows.filter(pk__lte=plan.up_to) if plan.up_to else rows
    if source == Source.RUNS:
        return _read(rows.values_list("pk", flat=True).first())
    return _read(rows.filter(run__isnull=False).values_list("run", flat=True).first())


def _shown(source: str, query: Mapping[str, str], shown: str) -> Run | None:
    """Return the run whose input was shown, if it still matches."""
    try:
        run_id = UUID(shown)
    except ValueError:
        return None
    rows = matching(source, query)
    rows = rows.filter(pk=run_id) if source == Source.RUNS else rows.filter(run=run_id)
    return _read(run_id) if rows.exists() else None


def _read(run_id: UUID | None) -> Run | None:
    rows = Run.objects.defer("result_json", "error", "usage").select_related("account")
    return rows.filter(pk=run_id).first() if run_id is not None else None
