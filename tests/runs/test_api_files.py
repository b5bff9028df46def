"""Uploads and artifacts over HTTP."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from runs.models import StoredFile
from runs.services.files import store_upload
from runs.states import RunState
from tests import builders
from tests.api import RUNS, Api, problem

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(api_key):
    return Api(api_key)


def test_an_upload_becomes_a_file_of_the_account(api, account):
    sent = SimpleUploadedFile("../a b\u202e.pdf", b"%PDF-1.7 ...", content_type="application/octet-stream")
    response = api.client.post("/api/v1/files", {"file": sent})
    assert response.status_code == 201, response.content
    body = response.json()
    row = StoredFile.objects.get(pk=body["id"])
    assert (row.account, row.content_type, row.size) == (account, "application/pdf", 12)
    assert "/" not in row.name
    assert row.name.isprintable()


@pytest.mark.parametrize(
    ("name", "kind", "data", "status"),
    [
        ("a.md", "application/octet-stream", b"# hi", 201),
        ("a.txt", "text/plain; charset=bogus", b"hi", 201),
        ("a.json", "application/json", b"{}", 201),
        ("a.docx", "application/octet-stream", b"PK\x03\x04", 201),
        ("a.docx", "application/octet-stream", b"MZ", 415),
        ("a.pdf", "application/pdf", b"not one", 415),
        ("a.png", "image/png", b"<svg>", 415),
        ("a.exe", "application/x-msdownload", b"MZ", 415),
        ("a", "application/octet-stream", b"??", 415),
        ("a.txt", "text/plain", b"a\0b", 415),
    ],
)
def test_the_type_of_an_upload_is_checked(api, name, kind, data, status):
    response = api.client.post("/api/v1/files", {"file": SimpleUploadedFile(name, data, content_type=kind)})
    assert response.status_code == status, response.content


def test_an_upload_is_stopped_at_the_limit(api, settings):
    settings.UPLOAD_LIMIT = 100_000
    small, large = (SimpleUploadedFile("a.txt", b"x" * size) for size in (100_000, 100_001))
    assert api.client.post("/api/v1/files", {"file": small}).status_code == 201
    body = problem(api.client.post("/api/v1/files", {"file": large}), 413, "upload_too_large")
    assert body["limit"] == 100_000
    huge = SimpleUploadedFile("a.txt", b"x" * 300_000)
    problem(api.client.post("/api/v1/files", {"file": huge}), 413, "upload_too_large")


def test_an_upload_has_exactly_one_file(api):
    def one():
        return SimpleUploadedFile("a.txt", b"x")

    for form in ({}, {"file": "text"}, {"file": [one(), one()]}, {"file": one(), "more": "x"}, {"other": one()}):
        response = api.client.post("/api/v1/files", form)
        assert response.status_code == 400, form


def test_artifacts_are_listed_and_downloaded_as_attachments(api, account):
    run = builders.make_run(RunState.SUCCEEDED, account=account)
    path = store_upload(account=account, name="x", content_type="text/html", chunks=[b"<script>", b"1"]).path
    name = 'ä "b".html'
    run.artifacts.create(name=name, content_type="text/html", size=9, path=path, fence=2)
    run.artifacts.create(name="lost", content_type="text/plain", size=1, path="runs/none", fence=2)

    listed = {item["name"]: item for item in api.get(f"{RUNS}/{run.id}/artifacts").json()["results"]}
    assert set(listed) == {"lost", name}
    response = api.get(listed[name]["url"])
    assert b"".join(response.streaming_content) == b"<script>1"
    assert response["Content-Disposition"].startswith("attachment")
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Length"] == "9"
    problem(api.get(listed["lost"]["url"]), 404, "no_such_artifact")
    problem(api.get(f"{RUNS}/{run.id}/artifacts/none"), 404, "no_such_artifact")
