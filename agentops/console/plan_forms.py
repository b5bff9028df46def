"""The forms of a plan: how the operation acts, and the edit of the input, made from the agent's schema."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from agentops.console import schema_form
from quotas.admin_base import REASON_MAX
from quotas.display import TEXT_SHOWN
from quotas.models import Priority
from runs.agents import AgentSpec
from runs.services.overrides import DELAY_MAX
from workers.bulk.edits import Edit
from workers.bulk.options import PACE_MAX, Kind, Options, Source


class PlanForm(forms.Form):
    """How it acts. Which fields there are depends on the act, and on whether it is one target or many.

    `no_edit` says why the input cannot be changed, where it cannot; `is_look`: nothing is started with what it says.
    `priorities` are those that a single run's account may use.
    """

    use_required_attribute = False

    reason = forms.CharField(max_length=REASON_MAX, help_text="Kept with every act and in the audit log.")
    canary = forms.BooleanField(
        label="Canary: one first, the rest only when it has succeeded", required=False, initial=True
    )
    pace = forms.IntegerField(
        label="At most a minute",
        required=False,
        min_value=1,
        max_value=PACE_MAX,
        help_text="Left empty, they follow one another as fast as the accounts allow.",
    )
    priority = forms.ChoiceField(
        label="Priority",
        required=False,
        choices=[("", "as it was"), *Priority.choices],
        help_text="One above what a run's account may use is refused for that run.",
    )
    delay = forms.FloatField(
        label="Delay",
        required=False,
        min_value=0,
        max_value=DELAY_MAX.total_seconds(),
        widget=forms.NumberInput(attrs={"step": "any"}),
        help_text="Seconds before each new run may begin.",
    )
    payer = forms.ChoiceField(
        label="Who pays",
        required=False,
        choices=[("", "the account of the run"), ("nobody", "nobody: written off as the run ends")],
        help_text="What is to be held has to be free on the account either way.",
    )
    with_succeeded = forms.BooleanField(label="Runs that succeeded too", required=False)
    edit_input = forms.BooleanField(label="Change the input", required=False)
    form_id = forms.UUIDField(widget=forms.HiddenInput, initial=uuid.uuid4)

    def __init__(
        self,
        kind: str,
        source: str,
        sent: Any,
        *,
        single: bool,
        no_edit: str,
        may_waive: bool,
        is_look: bool = False,
        priorities: Sequence[str] | None = None,
    ) -> None:
        super().__init__(sent)
        gone = {"edit_input"} if no_edit else set()
        if not may_waive:
            gone.add("payer")
        if source == Source.LETTERS:  # of runs that failed
            gone.add("with_succeeded")
        if single:
            gone |= {"canary", "pace", "with_succeeded"}
        if kind != Kind.REQUEUE:
            gone |= {"canary", "delay", "payer", "with_succeeded", "edit_input"}
            if kind != Kind.REPRIORITISE:
                gone.add("priority")
            else:
                self.fields["priority"] = forms.ChoiceField(choices=Priority.choices, initial=Priority.NORMAL)
        if priorities is not None:
            mine = [(value, label) for value, label in Priority.choices if value in priorities]
            self.fields["priority"] = forms.ChoiceField(required=False, choices=[("", "as it was"), *mine])
        for name in gone:
            del self.fields[name]
        self.fields["reason"].required = not is_look
        self._single, self._no_edit = single, no_edit

    def clean(self) -> None:
        """Refuse an edit that cannot be made: without it, everything would be requeued as it was."""
        self.fields["reason"].required = True  # a look needs none, and says that the start does
        if self._no_edit and "edit_input" in self.data:
            raise forms.ValidationError(f"The input cannot be changed: {self._no_edit}")

    @property
    def shown(self) -> list[forms.BoundField]:
        """The fields in their order, without those that have a place of their own."""
        return [self[name] for name in self.fields if name not in {"form_id", "edit_input"}]

    def options(self, edit: Edit | None = None) -> Options:
        """Return what the valid form says."""
        said = self.cleaned_data
        return Options(
            canary=bool(said.get("canary")),
            pace=said.get("pace"),
            priority=said.get("priority") or None,
            delay=said.get("delay"),
            with_succeeded=self._single or bool(said.get("with_succeeded")),
            waived=said.get("payer") == "nobody",
            edit=edit,
        )


class InputForm(forms.Form):
    """The fields of an agent's input, filled with one that is there. Files stay as they are.

    What comes back as it was shown changes nothing and is not checked again, whatever browsers make of it; so does a
    field that is not sent. Each field shows its value such that a browser can send it back: schema_form.showing.
    """

    use_required_attribute = False

    def __init__(self, spec: AgentSpec, before: Any, sent: Mapping[str, Any] | None = None) -> None:
        super().__init__(sent)
        self.spec, self.before = spec, before
        given = before if isinstance(before, dict) else {}
        # Indented, what is deep may be many times as long, and a form too long is not taken.
        self._indent = 2 if len(_json(before, 2)) <= TEXT_SHOWN else None
        for name, made in schema_form.fields_for(spec).items():
            own = name.removeprefix(schema_form.PREFIX)
            if name != schema_form.WHOLE and own not in schema_form.file_names(spec):
                self.fields[name] = schema_form.showing(made, given, own, self._indent)
        whole = schema_form.JsonField(label="Whole input as JSON", required=not self.fields)
        whole.help_text = "If this is filled, the fields above are not used." if self.fields else ""
        whole.initial = None if self.fields else _json(before, self._indent)
        self.fields[schema_form.WHOLE] = whole

    @property
    def is_sent(self) -> bool:
        """Whether any of it came back: a browser sends nothing of a form that was not opened."""
        return any(name in self.data for name in self.fields)

    def clean(self) -> None:
        """Forget what was found wrong with fields that nobody has touched: the agent's schema has the last word."""
        for name in self.fields:
            if not self._is_touched(name):
                self.errors.pop(name, None)

    @property
    def edit(self) -> Edit | None:
        """What the valid form changes; None where nothing."""
        touched = [name for name in self.fields if self._is_touched(name)]
        if schema_form.WHOLE in touched and self.data[schema_form.WHOLE].strip():
            whole = self.cleaned_data[schema_form.WHOLE]
            return None if _is_same(whole, self.before) else {"whole": whole}
        before: Mapping[str, Any] = self.before if isinstance(self.before, dict) else {}
        changed: dict[str, Any] = {}
        unset: list[str] = []
        for name in touched:
            own = name.removeprefix(schema_form.PREFIX)
            value = self.cleaned_data.get(name)
            if name == schema_form.WHOLE:
                continue
            if value in (None, "") and not self.data[name].strip():  # JSON's null is something
                unset += [own] if own in before else []
            elif own not in before or not _is_same(value, before[own]):
                changed[own] = value
        if not (changed or unset):
            return None
        return {"set": changed, "unset": unset} if isinstance(self.before, dict) else {"whole": changed}

    def add_errors(self, errors: list[dict[str, Any]]) -> None:
        """Show what the agent's schema says of the edited input, each at its field."""
        for error in errors:
            field = schema_form.field_of(self.spec, error.get("path", ""))
            text = f"{error.get('path') or 'input'}: {error.get('message', 'not valid')}"
            self.add_error(field if field in self.fields else None, text)

    def _is_touched(self, name: str) -> bool:
        if name not in self.data:
            return False
        shown = self.fields[name].prepare_value(self.fields[name].initial)
        return _lines(self.data[name]) != _lines("" if shown is None else str(shown))


def _json(value: Any, indent: int | None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: to Python, 1 is True and 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _lines(text: str) -> str:
    """Return a text with line ends of one kind: browsers send their own."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
