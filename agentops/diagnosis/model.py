"""The model endpoint: reachable, has the model; and every model that agents name has a price."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

from django.conf import settings
from django.db import DatabaseError

from agentops.diagnosis.finding import Finding, judged
from runs.pricing import named_models, unpriced_models

PART = "model"
DEFAULT_URL = "https://api.openai.com/v1"
SECONDS = 8


def examine() -> Iterator[Finding]:
    if not (settings.OPENAI_BASE_URL or settings.OPENAI_API_KEY):
        yield Finding(
            PART, "warn", "no endpoint", "Set OPENAI_BASE_URL, or let `up` start its own (without --no-model)."
        )
        yield from _prices()
        return
    url = (settings.OPENAI_BASE_URL or DEFAULT_URL).rstrip("/")
    try:
        known = _models(url)
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Finding(
            PART, "fail", f"{url} does not answer: {error}", "Check OPENAI_BASE_URL, OPENAI_API_KEY and the network."
        )
    else:
        yield Finding(PART, "ok", f"{url} answers")
        yield judged(
            PART,
            f"{settings.AGENTOPS_MODEL} {'is' if settings.AGENTOPS_MODEL in known else 'is not'} in its list",
            well=settings.AGENTOPS_MODEL in known,
            advice="Set AGENTOPS_MODEL to a model of this endpoint.",
            otherwise="warn",
        )
    yield from _prices()


def _models(url: str) -> set[str]:
    request = urllib.request.Request(  # noqa: S310  the operator's own setting
        f"{url}/models", headers={"Authorization": f"Bearer {settings.OPENAI_API_KEY}"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
        return {str(entry["id"]) for entry in json.load(answer)["data"]}


def _prices() -> Iterator[Finding]:
    try:
        unpriced = unpriced_models()
    except DatabaseError:
        return  # said under "database"
    for model, agents in sorted(named_models().items()):
        named_by = f", which {', '.join(agents)} may use," if agents else ""
        yield judged(
            "price",
            f"{model}{named_by} {'has no price' if model in unpriced else 'has prices'}",
            well=model not in unpriced,
            advice=f"Its runs are refused until ./run set_price {model} … names one.",
        )
