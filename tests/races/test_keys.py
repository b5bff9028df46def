"""Two who rotate one key, and many who use it, at the same time."""

import pytest

from quotas.api_keys import create_api_key, find_live_key, rotate
from quotas.errors import TooManyKeys
from quotas.models import ApiKey, AuditEntry
from tests.racing import in_parallel

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]


def test_of_two_who_rotate_a_key_one_makes_the_second(account):
    old, _ = create_api_key(account=account, name="ci", scopes=["read"], actor="test")

    results = in_parallel(*[lambda: rotate(old, actor="test")] * 4)

    assert sum(isinstance(result, TooManyKeys) for result in results) == 3, results
    assert (ApiKey.objects.count(), AuditEntry.objects.filter(action="api_key.rotated").count()) == (2, 1)


def test_many_first_uses_of_a_key_at_once_all_succeed(account):
    row, raw = create_api_key(account=account, name="ci", scopes=["read"], actor="test")

    found = in_parallel(*[lambda: find_live_key(raw)] * 8)

    assert found == [row] * 8
    assert ApiKey.objects.get(pk=row.pk).last_used_at is not None
