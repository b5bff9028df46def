"""What a run will probably cost, for the estimate functions of agents."""

from quotas.prices import PriceTable


def estimate_tokens(model: str, *, input: int = 0, output: int = 0, embedding: int = 0) -> int:  # noqa: A002
    """Return the cost of so many tokens of a model in micro-units. Raises UnknownPrice."""
    return PriceTable.current().cost(model, {"input": input, "output": output, "embedding": embedding})
