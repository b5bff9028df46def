"""What operators hold back, for the banner of every page and for the switches."""

from typing import Any

from django import template

from runs.controls import RETRY_AFTER_SECONDS, maintenance, paused_queues, queue_names

register = template.Library()


@register.simple_tag
def held_back() -> dict[str, Any]:
    """Return {pauses: [QueuePause], queues: [(name, its pause or None)], maintenance, retry_after}."""
    pauses = paused_queues()
    names = dict.fromkeys([*queue_names(), *pauses])
    return {
        "pauses": list(pauses.values()),
        "queues": [(name, pauses.get(name)) for name in names],
        "maintenance": maintenance(),
        "retry_after": RETRY_AFTER_SECONDS,
    }
