"""Admin pages of the working side: one module each."""

from workers.admin import bulk, cases, letters, processes

__all__ = ["bulk", "cases", "letters", "processes"]
