"""The two event streams in the OpenAPI schema: they are plain async views, which drf-spectacular cannot see."""

from typing import Any

PROBLEM = {"$ref": "#/components/schemas/Problem"}
EVENT = {
    "type": "object",
    "description": "One fact about a run. A `gap` has no id: what lay between two ids is not kept any more.",
    "properties": {
        "id": {"type": "string", "description": "`<fence>-<seq>`: the cursor of a run's stream."},
        "run": {"type": "string", "format": "uuid"},
        "at": {"type": "string", "format": "date-time"},
        "kind": {"type": "string", "examples": ["run.queued", "output.delta", "run.succeeded"]},
        "data": {"type": "object", "additionalProperties": True},
    },
    "required": ["id", "run", "at", "kind", "data"],
}
PAGE = {
    "type": "object",
    "properties": {
        "results": {"type": "array", "items": {"$ref": "#/components/schemas/Event"}},
        "next": {"type": "string"},
        "ended": {"type": "boolean", "description": "Whether the terminal event has been given out."},
    },
}
QUERY: dict[str, dict[str, Any]] = {
    "after": {"type": "string", "description": "Start after this cursor; `Last-Event-ID` does the same."},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
    "wait": {"type": "integer", "minimum": 0, "maximum": 30, "description": "JSON pages: wait for news, seconds."},
}


def add_event_streams(result: dict[str, Any], **_context: Any) -> dict[str, Any]:
    """Add both streams and the event to the schema (a post-processing hook of drf-spectacular)."""
    result["components"]["schemas"]["Event"] = EVENT
    result["paths"]["/api/v1/runs/{run_id}/events"] = {
        "get": _operation(
            "stream_run_events",
            "The run's events as server-sent events, to the terminal one; with `Accept: application/json` in pages.",
            _in_path("run_id", {"type": "string", "format": "uuid"}),
            list(QUERY),
        )
    }
    result["paths"]["/api/v1/sessions/{key}/events"] = {
        "get": _operation(
            "stream_session_events",
            "The events of all runs of a session, one after the other; a cursor is `<run number>/<event id>`.",
            _in_path("key", {"type": "string"}),
            ["after", "limit"],
        )
    }
    result["paths"] = dict(sorted(result["paths"].items()))
    return result


def _in_path(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"in": "path", "name": name, "required": True, "schema": schema}


def _operation(name: str, text: str, path: dict[str, Any], query: list[str]) -> dict[str, Any]:
    problem = {"content": {"application/problem+json": {"schema": PROBLEM}}}
    ok = {"text/event-stream": {"schema": {"type": "string"}}, "application/json": {"schema": PAGE}}
    return {
        "operationId": name,
        "description": text,
        "tags": ["events"],
        "parameters": [path, *({"in": "query", "name": name, "schema": QUERY[name]} for name in query)],
        "security": [{"apiKey": []}, {"session": []}],
        "responses": {
            "200": {"description": "Events.", "content": ok},
            **{code: {"description": "", **problem} for code in ("400", "401", "403", "404")},
        },
    }
