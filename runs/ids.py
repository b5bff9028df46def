"""Run ids: UUIDv7, so that the primary key is in order of submission and keyset paging needs no other index."""

import uuid

from uuid_utils.compat import uuid7


def new_run_id() -> uuid.UUID:
    """Return a new time-ordered id."""
    return uuid7()
