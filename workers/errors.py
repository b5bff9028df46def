"""Refusals about dead letters, and the quiet facts of the working side."""

from quotas.errors import Refusal


class NoSuchDeadLetter(Refusal):
    """There is no dead letter {dead_letter}."""

    code = "no_such_dead_letter"
    status = 404


class NoSuchCase(Refusal):
    """There is no case {case}."""

    code = "no_such_case"
    status = 404


class CaseUnchanged(Refusal):
    """The case {case} {problem}; nothing was done."""

    code = "case_unchanged"
    status = 409


class NoSuchWorker(Refusal):
    """No live worker is called {worker}. `workers list` shows those there are."""

    code = "no_such_worker"
    status = 404


class NotOpen(Refusal):
    """The dead letter {dead_letter} is {state} already; nothing was done."""

    code = "not_open"
    status = 409


class NotRestorable(Refusal):
    """The dead letter {dead_letter} is {state}: only one that was discarded in the last {days} days can be restored."""

    code = "not_restorable"
    status = 409


class NoSuchOperation(Refusal):
    """There is no bulk operation {operation}."""

    code = "no_such_operation"
    status = 404


class OperationEnded(Refusal):
    """The bulk operation {operation} is {state} already; nothing was done."""

    code = "operation_ended"
    status = 409


class OperationLive(Refusal):
    """The bulk operation {operation} is {state}: abort it, or wait for its end."""

    code = "operation_live"
    status = 409


class NotAllTargets(Refusal):
    """Bulk operation {operation} ended when {count} of its targets were written down. Plan its filter anew."""

    code = "not_all_targets"
    status = 409


class NotRequeueable(Refusal):
    """The dead letter {dead_letter} has no run to requeue; it can only be discarded."""

    code = "not_requeueable"
    status = 409


class RepairRunning(Refusal):
    """A repair of the streams is running already."""

    code = "repair_running"
    status = 409
    retry_after = 5.0


class NotRecallable(Refusal):
    """The worker {worker} cannot be undrained: {why}."""

    code = "not_recallable"
    status = 409


class NotProvablyGone(Refusal):
    """Nothing was taken over from {worker}: {why}."""

    code = "not_provably_gone"
    status = 409
