"""What has to hold on every kind of Redis server and every database; `python -m tests.matrix --conformance` runs it.

A cell is one kind of Redis server beside one database. Its tests are those of this folder, which are about what the
kinds do differently, and the files named here: the scripts, the logs, and all that claims, ends, repairs or moves
money. They carry the mark `conformance`.
"""

PARTS = (
    "tests/conformance",
    "tests/quotas/test_holds.py",
    "tests/races/test_ownership.py",
    "tests/runs/test_archive.py",
    "tests/runs/test_attempts.py",
    "tests/runs/test_cancel.py",
    "tests/runs/test_dispatch.py",
    "tests/runs/test_log.py",
    "tests/workers/test_deliveries.py",
    "tests/workers/test_departed.py",
    "tests/workers/test_departed.py",
    "tests/workers/test_leases.py",
    "tests/workers/test_losing.py",
    "tests/workers/test_parking.py",
    "tests/workers/test_retention.py",
    "tests/workers/test_sweeper.py",
    "tests/workers/test_take.py",
    "tests/workers/test_takeover.py",
    "tests/workers/test_waiting_sets.py",
)
