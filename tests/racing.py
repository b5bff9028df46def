"""Two and more real connections: threads that start together, and a lock held by somebody else.

For tests marked `django_db(transaction=True)`: what the test wrote must be committed to be seen.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

WAIT_SECONDS = 60.0


def in_parallel(*calls: Callable[[], Any]) -> list[Any]:
    """Run every call in a thread with a connection of its own, all let go at once.

    Returns the results in the order of the calls; a call that raised gives its exception.
    """
    results: list[Any] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def work(place: int) -> None:
        try:
            with connections["default"].cursor():  # connected before the start
                barrier.wait(WAIT_SECONDS)
            results[place] = calls[place]()
        except Exception as error:
            results[place] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=[place]) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a call is still waiting"
    return results


@contextmanager
def held_open(work: Callable[[], Any]) -> Iterator[Callable[[], None]]:
    """Do `work` in a transaction of another connection, and keep it open until the block ends (it commits then).

    Gives a function that commits earlier, for the middle of the block. Raises what `work` raised.
    """
    done, release = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def other() -> None:
        try:
            with transaction.atomic():
                work()
                done.set()
                release.wait(WAIT_SECONDS)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()
            connections.close_all()

    thread = threading.Thread(target=other)

    def let_go() -> None:
        release.set()
        thread.join(WAIT_SECONDS)

    thread.start()
    try:
        assert done.wait(WAIT_SECONDS), "the other connection does not get its lock"
        if not failures:
            yield let_go
    finally:
        let_go()
    if failures:
        raise failures[0]
