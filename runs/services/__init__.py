"""What may be done with runs: submit, cancel, requeue, and the owner's side of an attempt."""

from runs.services.asking import check_input
from runs.services.attempts import finish_attempts
from runs.services.cancel import CancelVerdict, cancel_run
from runs.services.claims import start_attempts
from runs.services.dry_run import Preview, preview_run
from runs.services.files import open_artifact, read_upload, store_artifact, store_upload
from runs.services.leaving import end_overdue, hand_back, take_over, take_over_dead
from runs.services.reprioritise import reprioritise
from runs.services.requeue import Changes, preview_requeue, requeue_run
from runs.services.submit import Submitted, submit_run

__all__ = [
    "CancelVerdict",
    "Changes",
    "Preview",
    "Submitted",
    "cancel_run",
    "check_input",
    "end_overdue",
    "finish_attempts",
    "hand_back",
    "open_artifact",
    "preview_requeue",
    "preview_run",
    "read_upload",
    "reprioritise",
    "requeue_run",
    "start_attempts",
    "store_artifact",
    "store_upload",
    "submit_run",
    "take_over",
    "take_over_dead",
]
