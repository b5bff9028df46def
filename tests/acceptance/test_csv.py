"""The ledger as a file, from a real web process: all of it, while it is read, in pieces."""

import csv
import io

import httpx
import pytest
from django.db import connection

from quotas.database import PIECE
from quotas.ledger import COLUMNS
from quotas.models import LedgerEntry
from tests import builders
from tests.probes import Stack

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.mark.sqlite_only  # no other database takes a line that cannot be read
def test_a_file_that_fails_in_its_middle_is_broken_off_and_the_server_goes_on(stack: Stack) -> None:
    account = builders.make_account("acme")
    key = builders.make_api_key(account)[1]
    LedgerEntry.objects.create(account=account, kind="settle", amount=1)
    with connection.cursor() as cursor:
        columns = [field.column for field in LedgerEntry._meta.concrete_fields if field.column not in {"id", "run_id"}]
        told = ", ".join(f'"{column}"' for column in columns)
        cursor.execute(
            f"INSERT INTO quotas_ledgerentry (run_id, {told}) SELECT 'no id', {told} FROM quotas_ledgerentry"
        )
    LedgerEntry.objects.bulk_create(LedgerEntry(account=account, kind="settle", amount=n) for n in range(2 * PIECE))
    web, headers = stack.web(), {"Authorization": f"Bearer {key}", "Accept": "text/csv"}

    for _ in range(2):  # the second one, too: daphne still looks after what fails
        with (
            pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)),
            httpx.stream("GET", f"{web.url}/api/v1/ledger", headers=headers, timeout=30) as answer,
        ):
            answer.read()
        assert answer.status_code == 200


def test_the_whole_ledger_is_sent_in_pieces(stack: Stack) -> None:
    account = builders.make_account("acme")
    count = 2 * PIECE + 1
    LedgerEntry.objects.bulk_create(LedgerEntry(account=account, kind="settle", amount=n) for n in range(count))
    web, key = stack.web(), builders.make_api_key(account)[1]
    headers = {"Authorization": f"Bearer {key}", "Accept": "text/csv"}

    with httpx.stream("GET", f"{web.url}/api/v1/ledger", headers=headers, timeout=60) as answer:
        pieces = list(answer.iter_raw())

    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert len(pieces) > 1
    header, *rows = csv.reader(io.StringIO(b"".join(pieces).decode()))
    assert header == list(COLUMNS)
    assert [int(row[COLUMNS.index("amount")]) for row in rows] == list(reversed(range(count)))
