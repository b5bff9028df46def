"""A Django form made from an agent's JSON Schema, and the way back: an input made from what was typed.

Strings, numbers, whole numbers, booleans, choices and files get fields of their own; everything else (objects, lists,
unions, references) is typed as JSON. The schema itself is checked by the submit service: here only the shape counts.
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from django import forms

from quotas.errors import Refusal
from quotas.json_rules import parse
from runs.agents import AgentSpec

PREFIX = "input."  # a schema's property may be called "priority" too
WHOLE = "whole_input"
LONG = 500  # a text that may be longer than this gets several lines
LONG_NAMES = frozenset(
    {"prompt", "text", "message", "content", "instructions", "input", "question", "system", "document"}
)
KEPT = "as it was"  # the choice that changes nothing
KEPT_MAX = 60  # characters of it that are shown
NUMBER_MAX = 1e300

Schema = Mapping[str, Any]


class JsonField(forms.CharField):
    """JSON typed into several lines. Empty means: not given."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("widget", forms.Textarea(attrs={"rows": 5, "data-json": "", "spellcheck": "false"}))
        super().__init__(**kwargs)

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) or value is None else json.dumps(value, indent=2)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return parse(text.encode())
        except Refusal as refusal:
            raise forms.ValidationError(refusal.message) from refusal


class TextField(forms.CharField):
    """A text as typed: no blanks cut off, line ends as everywhere else (browsers send CR LF)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(strip=False, **kwargs)

    def to_python(self, value: Any) -> Any:
        return str(super().to_python(value) or "").replace("\r\n", "\n")


def fields_for(spec: AgentSpec) -> dict[str, forms.Field]:
    """Return the form fields of an agent's input, by the name they have in the form."""
    properties = _properties(spec)
    if not properties:
        sample = spec.sample if spec.sample is not None else {}
        return {WHOLE: JsonField(label="Input (JSON)", required=True, initial=sample)}
    required = set(spec.input_schema.get("required", ()))
    sample = spec.sample if isinstance(spec.sample, dict) else {}
    if file_names(spec):  # beside an upload, an example text would be a second input
        sample = {name: value for name, value in sample.items() if name in required}
    fields = {
        PREFIX + name: _field(name, rule, required=name in required, sample=sample.get(name))
        for name, rule in properties.items()
    }
    fields[WHOLE] = JsonField(
        label="Whole input as JSON",
        required=False,
        help_text="If this is filled, the fields above are not used.",
    )
    return fields


def showing(made: forms.Field, given: Schema, name: str, indent: int | None) -> forms.Field:
    """Return the field with what is given for it, in a form that a browser sends back as it was.

    A line of text loses its line breaks, a list of choices posts its first one, a box has no third state, and what is
    of another type than the schema's has no place: such values are shown in several lines, as one more choice, as JSON.
    """
    value, is_given = given.get(name), name in given
    common: dict[str, Any] = {"label": made.label, "help_text": made.help_text, "required": made.required}
    if isinstance(made, forms.ChoiceField):
        choices: list[tuple[str, str]] = [(str(one), str(label)) for one, label in cast(Any, made.choices)]
        return _choice(forms.ChoiceField, choices, value, is_given=is_given, **common)
    if isinstance(made, forms.BooleanField):
        chosen = {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else value
        choices = [("yes", "yes"), ("no", "no")]
        field = partial(forms.TypedChoiceField, coerce=lambda answer: answer == "yes", empty_value=None)
        return _choice(field, choices, chosen, is_given=is_given, **common)
    if not _fits(made, value):
        made = JsonField(**common)
    if isinstance(made, JsonField):
        made.initial = json.dumps(value, indent=indent, ensure_ascii=False) if is_given else None
        return made
    if isinstance(value, str) and set(value) & set("\r\n") and not isinstance(made.widget, forms.Textarea):
        made.widget = forms.Textarea(attrs={"rows": 6})
    made.initial = value
    return made


def _choice(
    field: Callable[..., forms.Field], choices: list[tuple[str, str]], value: Any, *, is_given: bool, **common: Any
) -> forms.Field:
    """Return a choice in which what is not among the choices is one of its own."""
    known = [one for one, _ in choices]
    if value is None and "" in known:
        return field(choices=choices, initial="", **common)
    if isinstance(value, str) and value in known:
        return field(choices=choices, initial=value, **common)
    kept = KEPT
    while kept in known:
        kept += "."
    told = f"as it was: {json.dumps(value, ensure_ascii=False)[:KEPT_MAX]}" if is_given else "not given"
    return field(choices=[(kept, told), *choices], initial=kept, **common)


def _fits(made: forms.Field, value: Any) -> bool:
    """Whether the field can show the value; a number that is none to a browser would come back empty."""
    if value is None or isinstance(made, JsonField):
        return True
    if isinstance(made, forms.IntegerField):  # a FloatField is one too
        kinds: tuple[type, ...] = (int, float) if isinstance(made, forms.FloatField) else (int,)
        return isinstance(value, kinds) and not isinstance(value, bool) and abs(cast(float, value)) < NUMBER_MAX
    return isinstance(value, str)


def input_from(spec: AgentSpec, cleaned: Mapping[str, Any]) -> Any:
    """Return the input that was typed, without its files. A field left empty is left out."""
    whole = cleaned.get(WHOLE)
    if whole is not None:
        return whole
    made = {}
    for name, rule in _properties(spec).items():
        value = cleaned.get(PREFIX + name)
        if value is None or value == "" or _is_file(rule):
            continue
        made[name] = value
    return made


def field_of(spec: AgentSpec, path: Any) -> str | None:
    """Return the form field that an error's path ("a.b", "/a/b", "$.a", ["a", 0]) belongs to, or None."""
    parts = path if isinstance(path, list) else str(path).lstrip("$./").replace("[", "/").replace(".", "/").split("/")
    first = str(parts[0]) if parts else ""
    return PREFIX + first if first in _properties(spec) else None


def file_names(spec: AgentSpec) -> list[str]:
    """Return the input's file fields."""
    return [name for name, rule in _properties(spec).items() if _is_file(rule)]


def _properties(spec: AgentSpec) -> Mapping[str, Schema]:
    properties = spec.input_schema.get("properties", {}) if isinstance(spec.input_schema, dict) else {}
    return {name: rule for name, rule in properties.items() if isinstance(rule, dict)}


def _is_file(rule: Schema) -> bool:
    return rule.get("format") == "file"


def _kind(rule: Schema) -> str:
    """Return the one JSON type of the rule besides null, or "" where there are several or none."""
    named = rule.get("type", "")
    kinds = [kind for kind in named if kind != "null"] if isinstance(named, list) else [named]
    return str(kinds[0]) if len(kinds) == 1 else ""


def _field(name: str, rule: Schema, *, required: bool, sample: Any) -> forms.Field:
    common = {
        "label": str(rule.get("title") or name.replace("_", " ").capitalize()),
        "help_text": str(rule.get("description", "")),
        "required": required,
        "initial": rule.get("default", sample),
    }
    kind = _kind(rule)
    choices = rule.get("enum")
    if isinstance(choices, list) and all(isinstance(choice, str) for choice in choices):
        shown = [(choice, choice) for choice in choices]
        return forms.ChoiceField(choices=shown if required else [("", "–"), *shown], **common)  # noqa: RUF001
    if _is_file(rule):
        return forms.FileField(**{**common, "initial": None})
    if kind == "string" and not isinstance(choices, list):
        return _text(name, rule, common)
    if kind == "boolean":
        return forms.BooleanField(**{**common, "required": False})
    if kind in {"integer", "number"}:
        return _number(kind, rule, common)
    return JsonField(**common)


def _text(name: str, rule: Schema, common: dict[str, Any]) -> forms.Field:
    longest = rule.get("maxLength")
    several_lines = name in LONG_NAMES or (isinstance(longest, int) and longest > LONG)
    widget = forms.Textarea(attrs={"rows": 6}) if several_lines else forms.TextInput()
    return TextField(max_length=longest if isinstance(longest, int) else None, widget=widget, **common)


def _number(kind: str, rule: Schema, common: dict[str, Any]) -> forms.Field:
    limits = {"min_value": _finite(rule.get("minimum")), "max_value": _finite(rule.get("maximum"))}
    if kind == "integer":
        return forms.IntegerField(**limits, **common)
    return forms.FloatField(widget=forms.NumberInput(attrs={"step": "any"}), **limits, **common)


def _finite(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None
