"""A database that loses answers, for the races that are about them: on PostgreSQL only, and collected there only."""

import pytest
from django.db import connection

from tests.lying import LyingProxy


def pytest_collection_modifyitems(items):
    """Leave out what needs the proxy where the database speaks another protocol, also when it was named."""
    if connection.vendor != "postgresql":
        items[:] = [item for item in items if "proxy" not in getattr(item, "fixturenames", ())]


@pytest.fixture
def proxy(db):
    """The database behind a proxy: for this thread, and for every thread that connects from now on."""
    entry = connection.settings_dict
    home = entry["HOST"]
    with LyingProxy(home) as made:
        connection.close()
        entry["HOST"] = str(made.folder)
        yield made
        made.accept()
        connection.close()
        entry["HOST"] = home
