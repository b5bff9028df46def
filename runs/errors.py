"""Refusals about runs, each with a stable code, and the two quiet facts of the protocol."""

from uuid import UUID

from quotas.errors import Refusal


class OnlyGet(Refusal):
    """Events are read: use GET."""

    code = "method_not_allowed"
    status = 405


class NoSuchRun(Refusal):
    """There is no run {run}."""

    code = "no_such_run"
    status = 404


class NoSuchFile(Refusal):
    """There is no file {file}. Upload it with POST /api/v1/files first."""

    code = "no_such_file"
    status = 422


class NoSuchArtifact(Refusal):
    """The run {run} has no artifact {name}."""

    code = "no_such_artifact"
    status = 404


class UnknownAgent(Refusal):
    """There is no agent {agent}. GET /api/v1/agents lists those there are."""

    code = "unknown_agent"
    status = 422


class InvalidInputRefused(Refusal):
    """The input does not fit the schema of the agent {agent}."""

    code = "invalid_input"
    status = 400


class InvalidRequest(Refusal):
    """The field {field} is not acceptable: {problem}."""

    code = "invalid_request"
    status = 400


class InvalidCursor(Refusal):
    """The cursor {cursor} is not one this list or stream gave out."""

    code = "invalid_cursor"
    status = 400


class NoSuchView(Refusal):
    """There is no saved view {view} of yours."""

    status = 404


class ViewNameTaken(Refusal):
    """You have another view named {name}."""

    status = 409


class TooManyViews(Refusal):
    """You have {most} saved views, which is the most there can be. Delete one first."""

    status = 409


class UnknownFilter(Refusal):
    """The query parameter {parameter} is unknown here. Known: {known}."""

    code = "unknown_parameter"
    status = 400


class InvalidFilter(Refusal):
    """The query parameter {parameter} {problem}."""

    code = "invalid_parameter"
    status = 400


class Unsupported(Refusal):
    """The value {value} of {field} is not supported; use {use}."""

    code = "unsupported"
    status = 422


class PriorityTooHigh(Refusal):
    """The priority {priority} is above what the account {account} may use, {max_priority}."""

    code = "priority_too_high"
    status = 403


class IdempotencyMismatch(Refusal):
    """This Idempotency-Key was used with another body, by the run {run}."""

    code = "idempotency_mismatch"
    status = 422


class DuplicateRun(Refusal):
    """The same input was submitted to this agent a moment ago, by the run {run}."""

    code = "duplicate_run"
    status = 409


class SessionBusy(Refusal):
    """The session {session} is busy with the run {run}. Wait for its end, or cancel it."""

    code = "session_busy"
    status = 409
    retry_after = 5.0


class BacklogFull(Refusal):
    """The queue {queue} has {backlog} runs waiting; its limit is {limit}. Nothing was accepted."""

    code = "backlog_full"
    status = 429
    retry_after = 10.0


class NotEnded(Refusal):
    """The run {run} is {state}; only an ended run can be requeued."""

    code = "not_ended"
    status = 409


class NotWaiting(Refusal):
    """The run {run} is {state}; only the priority of a queued or scheduled run can be changed."""

    code = "not_waiting"
    status = 409


class AlreadyRequeued(Refusal):
    """The run {run} was requeued already, as {retried_by}."""

    code = "already_requeued"
    status = 409


class PayloadPruned(Refusal):
    """The run {run} has no input any more: it was deleted at {pruned_at}, by retention."""

    code = "payload_pruned"
    status = 409


class TransitionRefused(Exception):
    """Somebody else moved the run first: an everyday fact, and nothing was changed."""

    def __init__(self, run_ids: list[UUID]) -> None:
        super().__init__(f"moved by somebody else: {', '.join(map(str, run_ids))}")
        self.run_ids = run_ids


class RunEnded(Refusal):
    """The run {run} is {state} already: there is nothing to cancel."""

    code = "run_ended"
    status = 409


class NoSuchAgent(Refusal):
    """There is no agent {agent}. GET /api/v1/agents lists those there are."""

    code = "no_such_agent"
    status = 404


class NoSuchQueue(Refusal):
    """There is no queue {queue}. Known are: {known}."""

    code = "no_such_queue"
    status = 404


class UnderMaintenance(Refusal):
    """No new runs are accepted now. The operators say: “{operator_message}”."""

    code = "maintenance"
    status = 503
