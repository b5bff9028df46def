"""Run ids: UUIDv7, so that the primary key is in order of submission and keyset paging needs no other index."""

import uuid

from uuid_utils.compat import uuid7


def new_run_id() -> uuid.UUID:
    """Return a new time-ordered id."""
    return uuid7()


def first_id_at(timestamp: float) -> uuid.UUID:
    """Return the least id that can have been made at a Unix time: what is older is below, without another index."""
    # Version and variant are in it: MariaDB sorts ids of other versions by other bytes.
    return uuid.UUID(int=max(0, int(timestamp * 1000)) << 80 | 7 << 76 | 2 << 62)
