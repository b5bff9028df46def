"""Admin pages of runs: their list, and the holds with the runs they are for."""

from runs.admin.holds import HoldAdmin
from runs.admin.runs import RunAdmin

__all__ = ["HoldAdmin", "RunAdmin"]
