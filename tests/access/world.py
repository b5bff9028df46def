"""Account A, with a mark of its own in every text it has; account B, who must find none of them; and how each asks."""

import itertools
import json
import re
import secrets
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import models
from django.test import Client

from quotas import audit
from quotas.models import AMOUNT_MAX, Account, ApiKey, Hold, LedgerEntry, Membership
from runs import broker, lifecycle
from runs.archive import pack
from runs.events import Event
from runs.models import Artifact, Attempt, EventArchive, Run, SavedView, StoredFile, Transition
from runs.services.estimating import ENOUGH
from runs.services.files import store_upload
from tests import builders
from tests.access.rules import API, Call
from workers.models import BulkOperation, DeadLetter

RECENT = "probe.varied"  # its estimate is what the account's recent runs of it cost
SCOPES = ["read", "submit", "cancel", "admin"]
BACKEND = "django.contrib.auth.backends.ModelBackend"
OF_A: tuple[tuple[type[models.Model], str], ...] = (
    (Account, "pk"), (Hold, "account"), (LedgerEntry, "account"), (Membership, "account"), (StoredFile, "account"),
    (Run, "account"), (Transition, "run__account"), (Attempt, "run__account"), (Artifact, "run__account"),
    (EventArchive, "run__account"), (DeadLetter, "run__account"),
)  # fmt: skip


class World:
    """Two accounts. `marks` says what must not be seen, by the place it stands in."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}
        self.a = builders.make_account(self._mark("account name"), limit=AMOUNT_MAX)
        self.b = builders.make_account("other")
        self.key, self.raw = builders.make_api_key(self.a, scopes=SCOPES, name=self._mark("key name"))
        self.marks |= {"key secret": self.raw.split("_", 2)[2], "key digest": self.key.digest}
        self.owner = builders.make_user(self._mark("user name"), account=self.a, role="owner")
        self.member = Membership.objects.get(account=self.a)
        self.stranger = builders.make_user("stranger", account=self.b, role="owner")
        self.stranger_key = builders.make_api_key(self.b, scopes=SCOPES)[1]
        self.worker = builders.make_worker()
        self.session, self.tag = self._mark("session"), self._mark("tag")
        self._runs()
        self._rest()

    def _mark(self, place: str) -> str:
        self.marks[place] = f"MARK{secrets.token_hex(8)}"
        return self.marks[place]

    def _runs(self) -> None:
        told = {"metadata": {self._mark("metadata name"): self._mark("metadata")}, "tags": [self.tag]}
        error = {"class": "agent_bug", "type": self._mark("error type"), "message": self._mark("error message")}
        error |= {"traceback": self._mark("traceback"), "cause": "fatal"}
        common: dict[str, Any] = {"account": self.a, "session": self.session, **told}
        self.failed = builders.make_run(
            "failed", **common, session_number=1, input={"value": self._mark("input")}, error=error, archived=False,
            usage={self._mark("model"): {"input": 3}}, cost=700_001, idempotency_key=self._mark("idempotency key"),
        )  # fmt: skip
        self.succeeded = builders.make_run("succeeded", **common, session_number=2, result=self._mark("result"))
        self.queued = builders.make_run("queued", **common, session_number=3, estimate=1)
        self.running = builders.make_run("running", **common, session_number=4, worker=self._mark("worker"))
        self.marks["what recent runs cost"] = str(10**11 + secrets.randbelow(10**11))
        for _ in range(ENOUGH):  # the estimate of the agent is an account's own, as GET /agents shows it
            cost = int(self.marks["what recent runs cost"])
            builders.make_run("succeeded", account=self.a, agent=RECENT, cost=cost, archived=False)
        self.runs = [self.failed, self.succeeded, self.queued, self.running]
        self.marks |= {f"id of the {run.state} run": str(run.pk) for run in self.runs}
        self.marks["claim token"] = self.running.claim_token or ""
        said = Event(
            id="2-1", run="", at="2030-01-01T00:00:00Z", kind="output.delta", data={"text": self._mark("event")}
        )
        body = pack([(said, "")])
        EventArchive.objects.create(run=self.failed, body=body, event_count=1, last_id="2-1")
        Run.objects.filter(pk=self.failed.pk).update(log_closed_at=self.failed.finished_at)
        lifecycle.announce(broker.client(), list(Transition.objects.filter(run=self.running)))

    def _rest(self) -> None:
        self.artifact = f"{self._mark('artifact name')}.txt"
        data = self._mark("artifact")
        path = storages["artifacts"].save(f"runs/{self.succeeded.pk}/1", ContentFile(data.encode()))
        self.kept = Artifact.objects.create(
            run=self.succeeded, name=self.artifact, content_type="text/plain", size=len(data), path=path, fence=2
        )
        self.file = store_upload(
            account=self.a,
            name=self._mark("file name"),
            content_type="text/plain",
            chunks=[self._mark("file").encode()],
        )
        self.view = SavedView.objects.create(
            owner=self.owner, name=self._mark("view name"), query=urlencode({"session": self._mark("view query")})
        )
        self.letter = builders.make_dead_letter(
            self.failed, message=self._mark("letter"), payload=self._mark("payload")
        )
        self.operation = BulkOperation.objects.create(
            form_id=uuid.uuid4(), kind="requeue", source="letters", query={"account": self.a.name}, state="done",
            actor=self._mark("bulk actor"), reason=self._mark("bulk reason"),
        )  # fmt: skip
        self.grant = LedgerEntry.objects.create(
            account=self.a, kind="grant", amount=-5_000_009, actor=self._mark("grantor"), reason=self._mark("grant")
        )
        audit.record(
            actor=self._mark("actor"), action="run.cancel", target_type="run", target_id=self.failed.pk,
            reason=self._mark("audit"), before={"a": self._mark("audit before")},
        )  # fmt: skip

    # -- asking ----------------------------------------------------------------------------------------------------
    def addresses(self, route: str) -> Iterator[str]:
        """Yield the route's addresses with what A has: one for each of its runs, where a run is named."""
        names: dict[str, list[Any]] = {"run_id": [run.pk for run in self.runs], "letter_id": [self.letter.pk]}
        names["case_id"] = [self.letter.case_id]
        names |= {"key": [self.session], "name": [self.artifact] if "artifacts" in route else ["probe.ret", RECENT]}
        asked = re.findall(r"<(?:\w+:)?(\w+)>", route)
        for values in itertools.product(*(names[name] for name in asked)):
            yield "/" + API + re.sub(r"<[^>]+>", "{}", route).format(*values)

    def filled(self, query: str) -> str:
        return query.format(
            session=self.session,
            tag=self.tag,
            run_id=self.failed.pk,
            ledger_id=self.grant.pk + 1,
            letter=self.letter.pk,
            account=self.a.name,
            case_id=self.letter.case_id,
            metadata="{}={}".format(*next(iter(self.failed.metadata.items()))),
            fingerprint=self.letter.case.fingerprint if self.letter.case else "0" * 64,
        )

    def traces(self, answer: Any, *asked: str) -> list[str]:
        """Return the places whose marks an answer shows, apart from what the question itself said."""
        text = answer.shown
        return [place for place, mark in self.marks.items() if mark in text and not any(mark in one for one in asked)]

    def rows(self) -> dict[str, list[Any]]:
        """Return all that A has, as it is stored."""
        return {
            model.__name__: list(model._default_manager.filter(**{path: self.a.pk}).order_by("pk").values())
            for model, path in OF_A
        }


ACCEPT = "application/json, text/csv;q=0.5"


def with_key(raw: str, **headers: str) -> Client:
    return Client(headers={"authorization": f"Bearer {raw}", "accept": ACCEPT, **headers})


def signed_in(user: Any, **headers: str) -> Client:
    client = Client(headers={"accept": ACCEPT, **headers})
    client.force_login(user, backend=BACKEND)
    return client


def ask(client: Client, method: str, address: str, call: Call) -> Any:
    """Send the call; the answer has all that it shows, head and body, as `shown`. A 500 is an answer, no exception."""
    client.raise_request_exception = False
    if call.upload:
        answer = client.post(address, {"file": SimpleUploadedFile("a.txt", b"plain text", content_type="text/plain")})
    elif call.body is None:
        answer = client.generic(method, address)
    else:
        answer = client.generic(method, address, json.dumps(call.body), content_type="application/json")
    body = b"".join(answer.streaming_content) if answer.streaming else answer.content
    answer.shown = f"{answer.headers}\n{body.decode('utf-8', 'replace')}"
    return answer


def key_of(account: Account, *scopes: str, **fields: Any) -> str:
    return builders.make_api_key(account, scopes=list(scopes), **fields)[1]


def ended_keys(account: Account) -> list[str]:
    """Return a revoked and an expired key."""
    keys = [builders.make_api_key(account, scopes=SCOPES) for _ in range(2)]
    past = keys[0][0].created_at
    ApiKey.objects.filter(pk=keys[0][0].pk).update(revoked_at=past)
    ApiKey.objects.filter(pk=keys[1][0].pk).update(expires_at=past)
    return [raw for _, raw in keys]
