"""Prices as agents meet them: what so many tokens cost, and which models they name that have no price."""

from contextlib import suppress

from django.conf import settings

from quotas.prices import PriceTable
from runs.agents import list_agents


def estimate_tokens(model: str, *, input: int = 0, output: int = 0, embedding: int = 0) -> int:  # noqa: A002
    """Return the cost of so many tokens of a model in micro-units. Raises UnknownPrice."""
    return PriceTable.current().cost(model, {"input": input, "output": output, "embedding": embedding})


def named_models() -> dict[str, list[str]]:
    """Return {model: agents} of the models that agents name for their sample inputs, and of those in the settings."""
    found: dict[str, list[str]] = {settings.AGENTOPS_MODEL: [], settings.AGENTOPS_EMBEDDING_MODEL: []}
    for spec in list_agents():
        if spec.models is None or spec.sample is None:
            continue
        with suppress(Exception):  # a function that breaks on the agent's own sample is told at its first submit
            for model in set(spec.models(spec.sample)):
                found.setdefault(model, []).append(spec.name)
    return found


def unpriced_models() -> dict[str, list[str]]:
    """Return {model: agents} of named models without a price: their runs are refused. Raises DatabaseError."""
    table = PriceTable.current()
    return {model: agents for model, agents in sorted(named_models().items()) if not table.knows(model)}
