"""A CSV file on its way: it keeps no thread that others need, and ends with the rights of who asked."""

import asyncio
import threading

import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.test import RequestFactory

from quotas import csv_export
from quotas.api_keys import revoke
from quotas.csv_export import csv_response
from quotas.errors import AccessEnded
from quotas.standing import Standing
from tests import builders

pytestmark = pytest.mark.django_db
PATIENCE_SECONDS = 10.0


def send(request, pieces, key=None, **options):
    standing = Standing(key_id=None if key is None else key.pk)
    return csv_response(request, name="x", columns=["n"], pieces=pieces, standing=standing, **options)


def test_what_is_read_in_one_go_is_read_before_its_first_row_is_sent():
    read = []
    pieces = ([[read.append(number) or number]] for number in range(100_000))

    texts = iter(send(RequestFactory().get("/"), pieces, in_one_go=True).streaming_content)
    first = next(texts)

    assert len(read) == 100_000
    assert first + b"".join(texts) == b"n\r\n" + b"".join(b"%d\r\n" % number for number in read)
    assert len(first) <= csv_export.SENT_CHARACTERS


def test_a_file_ends_with_the_key_that_asked_for_it(account, monkeypatch):
    monkeypatch.setattr(csv_export, "LOOK_SECONDS", -1)
    key, _ = builders.make_api_key(account)
    texts = iter(send(RequestFactory().get("/"), ([[number]] for number in range(3)), key).streaming_content)
    assert [next(texts), next(texts)] == [b"n\r\n", b"0\r\n"]

    revoke(key, actor="test")

    with pytest.raises(AccessEnded):
        next(texts)


def test_a_file_ends_with_the_right_to_read(account, monkeypatch):
    monkeypatch.setattr(csv_export, "LOOK_SECONDS", -1)
    key, _ = builders.make_api_key(account, scopes=["submit"])

    with pytest.raises(AccessEnded):
        b"".join(send(RequestFactory().get("/"), [], key).streaming_content)


def test_files_however_many_leave_the_common_threads_free():
    go_on = threading.Event()

    def slow():
        go_on.wait(PATIENCE_SECONDS)
        yield [[1]]

    begun = []

    async def read(response):
        texts = []
        async for text in response.streaming_content:
            texts.append(text)
            begun.append(text)
        return texts

    async def all_at_once():
        request = ASGIRequest({"type": "http", "method": "GET", "path": "/", "headers": []}, None)
        files = [asyncio.ensure_future(read(send(request, slow()))) for _ in range(64)]
        while len(begun) < len(files):  # then all of them wait for their second piece
            await asyncio.sleep(0)
        try:
            assert await asyncio.wait_for(sync_to_async(go_on.is_set, thread_sensitive=False)(), 5) is False
        finally:
            go_on.set()
        return await asyncio.gather(*files)

    assert asyncio.run(all_at_once()) == [[b"n\r\n", b"1\r\n"]] * 64
