"""Template filters of the console: every state, amount and age is shown through one of these."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django import template
from django.utils import timezone
from django.utils.safestring import SafeString

from agentops.console import names
from quotas import display

register = template.Library()


@register.filter
def pill(word: Any) -> SafeString:
    """Return a state as a coloured label."""
    return display.pill("" if word is None else str(word))


@register.filter
def credits_of(amount: Any) -> str:
    """Return micro-units as credits."""
    return display.credits_of(amount if isinstance(amount, int) else None)


@register.filter
def age(moment: Any) -> str:
    """Return how long ago a moment was."""
    if not isinstance(moment, dt.datetime):
        return display.NOTHING
    return display.span((timezone.now() - moment).total_seconds())


@register.filter
def span(seconds: Any) -> str:
    """Return a number of seconds for people."""
    return display.span(float(seconds) if isinstance(seconds, int | float) else None)


@register.filter
def short(identifier: Any) -> str:
    """Return the end of an id."""
    return display.short(identifier)


@register.simple_tag(takes_context=True)
def heading(context: Mapping[str, Any]) -> str:
    """Return the heading of the page."""
    return names.heading(context)


@register.simple_tag(takes_context=True)
def crumbs(context: Mapping[str, Any]) -> list[names.Crumb]:
    """Return the way to the page as (text, address)."""
    return names.crumbs(context)
