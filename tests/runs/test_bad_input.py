"""Rows F43 to F54 of the fault list at the level of HTTP: a 4xx with a code, nothing kept, never a 5xx."""

import json
import random
from urllib.parse import quote

import pytest
from django.test import Client

from quotas.models import Account, Hold
from runs.models import Run
from tests import builders

pytestmark = pytest.mark.django_db
RUNS = "/api/v1/runs"
UUID = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def key(account):
    return builders.make_api_key(account, scopes=["read", "submit", "cancel", "admin"])[1]


@pytest.fixture
def client(key):
    return Client(headers={"authorization": f"Bearer {key}"}, raise_request_exception=False)


def submit(client, raw_input, content_type="application/json"):
    body = b'{"agent":"probe.ret","input":' + raw_input + b"}"
    return client.generic("POST", RUNS, body, content_type=content_type)  # `post` would encode the body


def refused(response, status=400):
    assert response.status_code == status, (response.status_code, response.content[:300])
    assert response["Content-Type"] == "application/problem+json"
    assert not Run.objects.exists()
    assert not Hold.objects.exists()
    assert Account.objects.get(name="acme").held == 0
    return response.json()


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (rb'"a\u0000b"', "input"),
        (rb'{"x":{"y":["a\u0000"]}}', "input.x.y[0]"),
        (rb'{"x":{"k\u0000":1}}', r'input.x["k\u0000"]'),
        (b'"a\0b"', ""),
        (rb'"\ud83d"', "input"),
        (rb'{"x":["\udc00"]}', "input.x[0]"),
        (rb'{"\ud83d":1}', r'input["\ud83d"]'),
    ],
)
def test_f43_f44_nul_and_lone_surrogates_are_refused_by_name(client, raw, path):
    assert refused(submit(client, raw))["path"] == path


@pytest.mark.parametrize("field", ["metadata", "session", "tags", "agent"])
def test_f43_nul_in_any_field_is_refused_by_name(client, field):
    value = {"metadata": {"a": "\0"}, "session": "\0", "tags": ["\0"], "agent": "a\0"}[field]
    body = {"agent": "probe.ret", "input": {}, field: value}
    answer = refused(client.post(RUNS, json.dumps(body), content_type="application/json"))
    assert answer["path"].startswith(field)


@pytest.mark.parametrize("given", ["a\0b", "", "x" * 201, "ü", "a\nb", "\x7f"])
def test_f43_f52_idempotency_keys_are_printable_ascii(client, given):
    body = {"agent": "probe.ret", "input": {}}
    headers = {"idempotency-key": given}
    answer = refused(client.post(RUNS, body, content_type="application/json", headers=headers))
    assert answer["code"] == "invalid_idempotency_key"


def test_f44_f51_valid_pairs_and_emoji_come_back_as_sent(client):
    family = "👩‍👩‍👧‍👦 é ﷽ \U0010ffff"
    body = {"agent": "probe.ret", "input": {"value": family, family: [family]}, "session": family, "tags": [family]}
    response = client.post(RUNS, json.dumps({**body, "metadata": {family: family}}), content_type="application/json")
    assert response.status_code == 202, response.content
    read = client.get(response["Location"]).json()
    assert (read["input"], read["session"], read["metadata"]) == (body["input"], family, {family: family})
    assert client.get(RUNS, query_params={"session": family, "tag": family}).json()["results"][0]["id"] == read["id"]
    pair = submit(client, rb'{"value":"\ud83d\ude00"}')
    assert pair.json()["input"] == {"value": "😀"}


@pytest.mark.parametrize("levels", [64, 10_000, 100_000])
@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_f45_depth(client, levels, start, end):
    assert refused(submit(client, start * levels + b"1" + end * levels))["code"] == "too_deep"


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 30, b"9" * 5000])
@pytest.mark.parametrize("place", [b"%s", b'{"x":[%s]}'])
def test_f46_f47_numbers_that_are_none_or_too_large(client, number, place):
    answer = refused(submit(client, place % number))
    assert answer["code"] == "invalid_number"
    assert answer["path"].startswith("input")


BIG = "1" + "0" * 30


@pytest.mark.parametrize(
    "path",
    [
        f"/api/v1/runs/{BIG}",
        "/api/v1/runs/" + "9" * 5000,
        f"/api/v1/runs/{UUID}/artifacts/" + "x" * 2000,
        f"/api/v1/runs/{UUID}/artifacts/a%00b",
        f"/api/v1/runs/{UUID}/artifacts/%ff%fe",
        f"/api/v1/runs/{UUID}/artifacts/..%2f..%2fetc",
        "/api/v1/runs/%00",
        "/api/v1/runs/%e2%80%a6",
        "/api/v1/runs/%ff",
        "/api/v1/agents/a%00b",
        "/api/v1/agents/%ff",
        "/api/v1/agents/" + quote(":/%2F*{} " * 40),
        f"/api/v1/dead-letters/{BIG}",
        "/api/v1/dead-letters/" + "9" * 5000,
        "/api/v1/dead-letters/9223372036854775807",
        "/api/v1/dead-letters/9223372036854775808",
        "/api/v1/dead-letters/-1",
        "/api/v1/%0a",
        "/api/%0d%0aX: y",
    ],
)
def test_f47_f49_odd_paths_are_404(client, path):
    response = client.get(path)
    assert response.status_code == 404, response.content[:300]
    assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["runs", "ledger", "dead-letters"])
@pytest.mark.parametrize(
    "query",
    [
        f"limit={BIG}",
        "limit=-1",
        "limit=0",
        "limit=1000000000",
        "limit=201",
        "limit=1.5",
        "limit=x",
        "limit=",
        "limit=%D9%A1",
        "limit=1&limit=2",
        "after=%00",
        "after=x",
        f"after={BIG}",
        "after=-1",
        "after=%ff",
        "after=" + "1" * 5000,
        "page=1",
        "%00=1",
        "%ff",
        "dry_run=1",
        "&".join(f"a{n}=1" for n in range(2000)),
    ],
)
def test_f47_odd_queries_are_400(client, path, query):
    response = client.get(f"/api/v1/{path}?{query}")
    assert response.status_code == 400, response.content[:300]
    assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("query", ["state=open%00", "state=nope", "session=%00", "agent=" + "x" * 500, "tag=%00"])
def test_f47_odd_filters_are_400(client, query):
    assert client.get(f"{RUNS}?{query}").status_code == 400


def test_a_parameter_that_post_does_not_know_spends_nothing(client):
    body = {"agent": "probe.ret", "input": {}}
    refused(client.post(f"{RUNS}?dryrun=1", body, content_type="application/json"))


def test_f48_a_body_over_the_limit_is_413(client, settings):
    settings.BODY_LIMIT = settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10_000
    assert refused(submit(client, b'"' + b"x" * 20_000 + b'"'), 413)["code"] == "body_too_large"
    assert submit(client, b'{"value":"' + b"x" * 9_000 + b'"}').status_code == 202


def test_f49_odd_headers_are_no_error_of_ours(client):
    odd = {
        "x-request-id": "\xff",
        "x-agentops-account": "\xff\0",
        "traceparent": "\xff",
        "accept-language": "\xff" * 1000,
        "cookie": 'sessionid="a\\000bcdefghij"; csrftoken="\\000"; =; \xff',
        "accept": "*/*; q=\xff",
        "if-modified-since": "\xff",
        "origin": "\0",
    }
    for name, value in odd.items():
        assert client.get(RUNS, headers={name: value}).status_code in {200, 400, 406}, name
    anonymous = Client(raise_request_exception=False)
    assert anonymous.get(RUNS, headers={"cookie": odd["cookie"]}).status_code == 401
    assert anonymous.get("/admin/", headers={"cookie": odd["cookie"]}).status_code == 302


@pytest.mark.parametrize("text", [":", "/", "%2F", "*", "{}", "a b", "a:b", "..", "?", "#", "\u202e", "x" * 200, "'\""])
def test_f52_sessions_and_tags_may_hold_separators(client, text):
    body = {"agent": "probe.ret", "input": {}, "session": text, "tags": [text[:60]]}
    response = client.post(RUNS, body, content_type="application/json")
    assert response.status_code == 202, response.content
    found = client.get(RUNS, query_params={"session": text, "tag": text[:60]}).json()["results"]
    assert [run["id"] for run in found] == [response.json()["id"]]


@pytest.mark.parametrize("other", ["K", "k ", "ḱ", "K\u0301"])
@pytest.mark.parametrize("place", ["key", "session", "tag"])
def test_f52_names_that_a_collation_takes_for_the_same_are_two(client, place, other):
    """MySQL's default collation ignores case, accents and trailing spaces."""
    made = []
    for name in ("k", other):
        body = {"agent": "probe.ret", "input": {"value": name if place == "key" else 1}}
        body |= {"session": name} if place == "session" else {"tags": [name]}
        key = {"idempotency-key": name} if place == "key" and name.isascii() else {}
        response = client.post(RUNS, body, content_type="application/json", headers=key)
        assert response.status_code == 202, response.content
        made.append(response.json()["id"])
    if place != "key":
        found = client.get(RUNS, query_params={place: "k"}).json()["results"]
        assert [run["id"] for run in found] == made[:1]


@pytest.mark.parametrize(
    "body",
    [
        b'{"agent":"probe.ret","agent":"probe.boom","input":{}}',
        b'{"agent":"probe.ret","input":{"value":{"priority":1,"priority":2}}}',
        b'{"agent":"probe.ret","input":{},"input":{}}',
    ],
)
def test_f53_duplicate_keys(client, body):
    assert refused(client.post(RUNS, body, content_type="application/json"))["code"] == "duplicate_key"


@pytest.mark.parametrize(
    "charset", ["bogus", "utf-16", "latin-1", "hex", "undefined", "idna", "rot13", "\xff", "a" * 999]
)
@pytest.mark.parametrize("method", ["get", "post"])
def test_f54_charsets(client, charset, method):
    kind = f"application/json; charset={charset}"
    if method == "get":
        assert client.generic("GET", f"{RUNS}?session=%ff%fe", content_type=kind).status_code == 200
    else:
        refused(submit(client, b"{}", content_type=kind), 415)


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf-8"', "utf8"])
def test_f54_utf8_by_any_of_its_names(client, charset):
    assert submit(client, b"{}", content_type=f"application/json; charset={charset}").status_code == 202


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'"x"', b"1", b"\xff", b"{", b"{}", '{"agent":"a"}'.encode("utf-16"), b"\xef\xbb\xbf{}"],
)
def test_f54_bodies_of_another_shape(client, body):
    refused(client.post(RUNS, body, content_type="application/json"))


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "x;;=;",
    ],
)
def test_f54_other_types_are_415(client, kind):
    refused(client.generic("POST", RUNS, b'{"agent":"probe.ret","input":{}}', content_type=kind), 415)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x",
        b"--x--\r\n",
        b"--x\r\nContent-Disposition: form-data; name=file; filename*=hex''%ff\r\n\r\na\r\n--x--\r\n",
        b"--x\r\nContent-Disposition: form-data; name=file; filename*=bogus''%ff\r\n\r\na\r\n--x--\r\n",
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="\x00\xff"\r\n\r\na\r\n--x--\r\n',
        (
            b"--x\r\nContent-Transfer-Encoding: base64\r\n"
            b"Content-Disposition: form-data; name=file; filename=a\r\n\r\n!\r\n--x--"
        ),
        b"--x\r\n\xff: \xff\r\n\r\n\xff\r\n--x--\r\n",
    ],
)
@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=x", "multipart/form-data", "multipart/form-data; boundary=\xff"]
)
def test_f54_malformed_multipart(client, body, kind):
    response = client.generic("POST", "/api/v1/files", body, content_type=kind)
    assert 400 <= response.status_code < 500, response.content


@pytest.mark.parametrize("verb", ["cancel", "retry", "ticket"])
@pytest.mark.parametrize("body", [b"", b"{}", b'{"reason":1}', b'{"x":1}', b"[]", b'{"reason":"\\u0000"}'])
def test_verbs_take_an_empty_body_and_refuse_others(client, account, verb, body):
    run = builders.make_run("failed" if verb == "retry" else "running", account=account)
    response = client.post(f"{RUNS}/{run.id}/{verb}", body, content_type="application/json")
    assert response.status_code in ({200, 201, 202} if body in {b"", b"{}"} else {400}), response.content


def test_a_thousand_mutated_submits_never_break_the_server(client):
    chance = random.Random(5)
    base = bytearray(b'{"agent":"probe.ret","input":{"value":[1,2.5,"x\\u00e9",null,true]},"tags":["a"],"session":"s"}')
    for _ in range(1000):
        body = bytearray(base)
        for _ in range(chance.randint(1, 4)):
            where = chance.randrange(len(body))
            body[where : where + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        status = client.post(RUNS, bytes(body), content_type="application/json").status_code
        assert status < 500, bytes(body)
