"""What may be done with runs: submit, cancel, requeue, and the owner's side of an attempt."""

from runs.services.attempts import finish_attempts
from runs.services.cancel import CancelVerdict, cancel_run
from runs.services.claims import start_attempts
from runs.services.files import open_artifact, read_upload, store_artifact, store_upload
from runs.services.leaving import end_overdue, hand_back, take_over, take_over_dead
from runs.services.requeue import requeue_run
from runs.services.submit import Submitted, check_input, submit_run

__all__ = [
    "CancelVerdict",
    "Submitted",
    "cancel_run",
    "check_input",
    "end_overdue",
    "finish_attempts",
    "hand_back",
    "open_artifact",
    "read_upload",
    "requeue_run",
    "start_attempts",
    "store_artifact",
    "store_upload",
    "submit_run",
    "take_over",
    "take_over_dead",
]
