"""What the console's scripts read from every page."""

from collections.abc import Mapping
from typing import Any

from django import template

from agentops.console.palette import shell_facts

register = template.Library()


@register.simple_tag(takes_context=True)
def shell(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the palette and the keys know, for `json_script`."""
    return shell_facts(context["request"].user, context.get("available_apps") or [])
