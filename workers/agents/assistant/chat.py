"""`assistant.chat`: stream an answer to a prompt or a conversation, count its tokens."""

from typing import Any

from django.conf import settings

from runs.agents import OVERRIDES, agent
from runs.outcomes import ErrorClass
from runs.pricing import estimate_tokens
from workers.agents.provider import ChatRequest, connect, stream_chat
from workers.agents.tokens import tokens_of
from workers.context import Context

MAX_TOKENS = 256
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "prompt": {"type": "string", "minLength": 1, "title": "Prompt", "description": "What to ask the model."},
        "system": {"type": "string", "title": "System", "description": "How the model should behave."},
        "messages": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1000,
            "description": "A conversation, instead of prompt and system.",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["role", "content"],
                "properties": {
                    "role": {"enum": ["system", "user", "assistant"]},
                    "content": {"type": "string"},
                },
            },
        },
        "model": {"type": "string", "minLength": 1, "maxLength": 120, "description": "Default: AGENTOPS_MODEL."},
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 131_072, "default": MAX_TOKENS},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    },
    "oneOf": [
        {"required": ["prompt"], "not": {"required": ["messages"]}},
        {"required": ["messages"], "not": {"anyOf": [{"required": ["prompt"]}, {"required": ["system"]}]}},
    ],
}


def _model(run_input: dict[str, Any]) -> str:
    return str(run_input.get("model") or settings.AGENTOPS_MODEL)


def _messages(run_input: dict[str, Any]) -> list[dict[str, str]]:
    if "messages" in run_input:
        return list(run_input["messages"])
    system = run_input.get("system")
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": run_input["prompt"]}]


def _models(run_input: dict[str, Any]) -> list[str]:
    return [_model(run_input)]


def _estimate(run_input: dict[str, Any]) -> int:
    """Return micro-units: all of the conversation sent, all of `max_tokens` answered."""
    sent = sum(tokens_of(message["content"]) for message in _messages(run_input))
    made = int(run_input.get("max_tokens", MAX_TOKENS))
    return estimate_tokens(_model(run_input), input=sent, output=made)


@agent(
    "assistant.chat",
    description="Answers a prompt or a conversation and streams the tokens as they come.",
    input_schema=SCHEMA,
    estimate=_estimate,
    extend=True,  # token counts are judged without the model's tokenizer, and a broken answer is paid twice
    models=_models,
    max_attempts=3,
    retry_on=(ErrorClass.PROVIDER_TRANSIENT, ErrorClass.PROVIDER_LIMIT),
    allow=OVERRIDES,
    sample={"prompt": "Tell me a short story about a lighthouse.", "max_tokens": 120},
)
async def chat(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Return `{text, model, finish_reason}`; `finish_reason` is the provider's (`stop`, `length`, …)."""
    request = ChatRequest(
        model=_model(run_input),
        messages=_messages(run_input),
        max_tokens=int(run_input.get("max_tokens", MAX_TOKENS)),
        temperature=run_input.get("temperature"),
    )
    async with connect() as client:
        answer = await stream_chat(client, ctx.usage, request, ctx.delta)
    return {"text": answer.text, "model": request.model, "finish_reason": answer.finish_reason}
