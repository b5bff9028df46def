"""Files of runs: only the owner keeps one, and a fenced attempt leaves neither row nor bytes (protocol 1.5)."""

from pathlib import Path

import pytest
from django.conf import settings

from runs.models import Artifact, Run
from runs.services import store_artifact
from runs.services.files import open_artifact
from tests import working

pytestmark = pytest.mark.django_db


def store(claimed, data=b"mine", name="out.txt"):
    return store_artifact(
        run_id=claimed.run.pk, fence=claimed.fence, claim_token=claimed.token, name=name, data=data,
        content_type="text/plain",
    )  # fmt: skip


def files(claimed):
    """Return what lies in the storage for a run."""
    return [path for path in Path(settings.DATA_DIR).rglob(f"runs/{claimed.run.pk}/**/*") if path.is_file()]


@pytest.fixture
def claimed(account):
    return working.claim(working.submit(account))[0]


def test_the_owner_keeps_a_file_and_the_same_name_replaces_it(claimed):
    store(claimed, b"first")

    assert store(claimed, b"second") == {"name": "out.txt", "content_type": "text/plain", "size": 6}

    with open_artifact(Artifact.objects.get()) as kept:
        assert kept.read() == b"second"


@pytest.mark.parametrize(
    "change", [{"fence": 9}, {"claim_token": "x" * 32}, {"state": "interrupted"}], ids=["fence", "token", "state"]
)
def test_a_fenced_attempt_leaves_neither_row_nor_bytes(claimed, change):
    store(claimed, b"owner's")
    before = files(claimed)
    assert len(before) == 1
    Run.objects.filter(pk=claimed.run.pk).update(**change)

    assert store(claimed, b"too late") is None
    assert store(claimed, b"too late", name="other.txt") is None

    assert files(claimed) == before
    with open_artifact(Artifact.objects.get()) as kept:
        assert kept.read() == b"owner's"
