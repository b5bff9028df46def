"""An edit of an input: made once in a form, then made to the input of every run that is requeued.

An edit is `{"set": {field: value}, "unset": [field]}`, or `{"whole": input}` in place of whatever was there.
"""

from typing import Any

from runs.errors import InvalidRequest

FIELD_MAX = 2000  # characters of a changed field that are kept
Edit = dict[str, Any]


def edit_between(before: Any, after: Any) -> Edit | None:
    """Return the edit that makes one input the other; None where they are equal."""
    if before == after:
        return None
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return {"whole": after}
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return {"set": changed, "unset": [name for name in before if name not in after]}


def applied(edit: Edit, before: Any) -> Any:
    """Return the input with the edit made to it; raises InvalidRequest where it has no fields to change."""
    if "whole" in edit:
        return edit["whole"]
    if not isinstance(before, dict):
        raise InvalidRequest(field="input", problem="it is no object, so single fields of it cannot be changed")
    gone = set(edit["unset"])
    return {name: value for name, value in before.items() if name not in gone} | edit["set"]


def difference(before: Any, after: Any) -> dict[str, Any]:
    """Return what differs between two inputs: {field: {before, after}}; of those that are no objects {"": {…}}.

    A side on which the field is not there has no such key; what is long is cut.
    """
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return {} if before == after else {"": {"before": _cut(before), "after": _cut(after)}}
    found: dict[str, Any] = {}
    for name in [*before, *(name for name in after if name not in before)]:
        if name in before and name in after and before[name] == after[name]:
            continue
        sides = {"before": before, "after": after}
        found[name[:FIELD_MAX]] = {side: _cut(given[name]) for side, given in sides.items() if name in given}
    return found


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= FIELD_MAX else text[:FIELD_MAX] + "…"
