"""The SQL of every page is bounded: with 20,000 runs no plan reads a large table whole. `make scale` has a million."""

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.benchmark import fill
from tests.scale import pages, plans

pytestmark = pytest.mark.django_db(transaction=True)
RUNS, DEAD = 20_000, 2_000
TOUCHED_MAX = 12_000  # rows of one table: what a bounded count may count, and some


def test_no_page_reads_a_large_table_from_end_to_end():
    if connection.vendor == "postgresql":  # as on a disk without a moving head: at this size the planner is torn
        with connection.cursor() as cursor:
            cursor.execute("SET random_page_cost = 1.1")
    fill.Filling(runs=RUNS, dead=DEAD).run(lambda _: None)
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_superuser("root"), backend="django.contrib.auth.backends.ModelBackend")
    with_key = Client(raise_request_exception=False, headers={"authorization": f"Bearer {pages.key_of()[1]}"})
    wrong, seen = [], set()

    for asker, found in ((client, pages.console()), (with_key, pages.api())):
        for name, address in list(found):
            with CaptureQueriesContext(connection) as asked:
                answer = asker.get(address)
            if answer.status_code not in {200, 302}:
                wrong.append(f"{name}: {answer.status_code}")
            new = dict.fromkeys(query["sql"] for query in asked.captured_queries if query["sql"] not in seen)
            seen |= set(new)
            wrong += [f"{name} {fault}" for fault in plans.faults(list(new), most=TOUCHED_MAX)]

    assert "\n".join(wrong) == ""
