"""Refusals about dead letters, and the quiet facts of the working side."""

from quotas.errors import Refusal


class NoSuchDeadLetter(Refusal):
    """There is no dead letter {dead_letter}."""

    code = "no_such_dead_letter"
    status = 404


class NoSuchWorker(Refusal):
    """No live worker is called {worker}. `workers list` shows those there are."""

    code = "no_such_worker"
    status = 404


class NotOpen(Refusal):
    """The dead letter {dead_letter} is {state} already; nothing was done."""

    code = "not_open"
    status = 409


class NotRequeueable(Refusal):
    """The dead letter {dead_letter} has no run to requeue; it can only be discarded."""

    code = "not_requeueable"
    status = 409
