"""What every list of the console says of its filters."""

from typing import Any

import pytest
from django.test import Client

from quotas.prices import install_default_prices

pytestmark = pytest.mark.django_db


def test_a_list_says_show_all_only_where_something_narrows_it(client: Client, operator: Any) -> None:
    client.force_login(operator)
    install_default_prices()
    queries = ("", "?p=0", "?q=gpt", "?kind=input", "?kind__exact=input", "?state=open")

    assert [b"Show all" in client.get(f"/admin/quotas/price/{one}").content for one in queries] == [
        *(False, False),
        *(True, True, True, True),
    ]


def test_a_list_names_the_filters_it_has(client: Client, operator: Any) -> None:
    client.force_login(operator)
    answer = client.get("/admin/workers/deadletter/?state=open")

    known = "q, state_is, reason, error_class, agent_is, account, case, since, until"
    assert answer.status_code == 400
    assert [str(one) for one in answer.context["messages"]] == [f"This list has no filter 'state'. It has: {known}."]
