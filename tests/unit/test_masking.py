"""What is masked in a text about an error, what is not, and that a hostile text costs no more than a long one."""

import io
import json
import logging
import uuid

import pytest
import structlog
from django.core.exceptions import ImproperlyConfigured

from agentops.logs import mask_fields
from quotas import masking
from quotas.masking import mask, mask_json
from runs.outcomes import ErrorClass, Failed
from tests import builders

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAx\nqLr8T4\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5="
RUN = "0193c1f2-7a3b-7c4d-8e5f-0123456789ab"


@pytest.fixture
def configured():
    """Give `masking.configure`, and what was configured before back at the end."""
    before = masking._Known.values, masking._Known.patterns
    yield masking.configure
    masking._Known.values, masking._Known.patterns = before


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        # headers
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [masked]"),
        ("authorization: basic dXNlcjpwdw==, host: x", "authorization: basic [masked], host: x"),
        ("{'Authorization': 'Bearer abc', 'Host': 'x'}", "{'Authorization': 'Bearer [masked]', 'Host': 'x'}"),
        ("[(b'authorization', b'Bearer topsecret')]", "[(b'authorization', b'Bearer [masked]')]"),
        ('-H "Proxy-Authorization: Token abc" -v', '-H "Proxy-Authorization: Token [masked]" -v'),
        ('Authorization: Digest username="bob", response="6629"', "Authorization: Digest [masked]"),
        ("X-Api-Key: abcdef", "X-Api-Key: [masked]"),
        ("[('x-api-key', 'abc123'), ('a', 'b')]", "[('x-api-key', '[masked]'), ('a', 'b')]"),
        ("Cookie: sessionid=abc; csrftoken=def", "Cookie: [masked]"),
        ("{'Set-Cookie': 'sessionid=abc; Path=/', 'x': 1}", "{'Set-Cookie': '[masked]', 'x': 1}"),
        ("got bearer abc123def from it", "got bearer [masked] from it"),
        # well-known forms
        ("Incorrect API key: sk-abc12***xyz, see", "Incorrect API key: sk-[masked], see"),
        ("sk-proj-AbCdEf123456 sk-ant-api03-xyzxyz", "sk-[masked] sk-[masked]"),
        ("AKIAIOSFODNN7EXAMPLE!", "AKIA[masked]!"),
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ghp_[masked]"),
        ("github_pat_11ABCDEFG0abcdefghij_x", "github_pat_[masked]"),
        ("xoxb-123456789012-abcdefghijkl", "xoxb-[masked]"),
        ("https://hooks.slack.com/services/T0/B0/XXXX", "https://hooks.slack.com/services/[masked]"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "AIza[masked]"),
        (f"bad jwt {JWT}", "bad jwt eyJ[masked]"),
        (f"{PEM} is bad", "-----BEGIN RSA PRIVATE KEY-----[masked] is bad"),
        (repr(PEM), "'-----BEGIN RSA PRIVATE KEY-----[masked]'"),
        (PEM[:60], "-----BEGIN RSA PRIVATE KEY-----[masked]"),
        ("ao_0123456789_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789abcde", "ao_0123456789_[masked]"),
        # addresses
        ("postgres://app:s3cr3t@db:5432/x", "postgres://app:[masked]@db:5432/x"),
        ("redis://:hunter2@h:6379/0 down", "redis://:[masked]@h:6379/0 down"),
        ("mysql://u:p@ss@h/x", "mysql://u:[masked]@h/x"),
        ("postgres://u:pa/ss@h:5/x", "postgres://u:[masked]@h:5/x"),
        ("https://0123456789abcdef0123@sentry.io/1", "https://[masked]@sentry.io/1"),
        (
            "GET https://x/v1?api_key=abc&user=bob&token=xyz",
            "GET https://x/v1?api_key=[masked]&user=bob&token=[masked]",
        ),
        ("?key=AIx12345&q=1", "?key=[masked]&q=1"),
        ("?X-Amz-Signature=deadbeef01&sig=Zm9v%3D", "?X-Amz-Signature=[masked]&sig=[masked]"),
        # named values
        ("api_key='abc def' OPENAI_API_KEY=k", "api_key='[masked]' OPENAI_API_KEY=[masked]"),
        ("connect(host='x', password='pw', user='u')", "connect(host='x', password='[masked]', user='u')"),
        (r'password="x\"y" rest', 'password="[masked]" rest'),
        ('{"dbPassword": "k", "a": {"token": "abcdef12"}}', '{"dbPassword": "[masked]", "a": {"token": "[masked]"}}'),
        (r"{\"api_key\": \"k9\", \"x\": 1}", r"{\"api_key\": \"[masked]\", \"x\": 1}"),
        ("aws_secret_access_key = wJalr/K7MDENG", "aws_secret_access_key = [masked]"),
        ("secret: hunter2 was wrong", "secret: [masked] was wrong"),
        ("Invalid token: password: letmein", "Invalid token: password: [masked]"),
        ("Server=db;Password=abc;User Id=sa", "Server=db;Password=[masked];User Id=sa"),
        ("key=abc123secret", "key=[masked]"),
        ("['curl', '--token', 'abc123', '-x']", "['curl', '--token', '[masked]', '-x']"),
        ("psql --password hunter2 --user bob", "psql --password [masked] --user bob"),
        ('"secret": "cut off in the mid', '"secret": "[masked]'),
        ("'password=hunter2\\n'", "'password=[masked]\\n'"),
    ],
)
def test_a_secret_is_masked_once_and_for_all(text, masked):
    assert mask(text) == masked
    assert mask(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"The run {RUN} failed: token={RUN}",
        "token count = 5, max_tokens=256, prompt_tokens: 5, token: 5, tokens: 7",
        "Unexpected token: identifier at line 1; unexpected token '}' in JSON at position 4",
        "bearer tokens are required; Bearer authentication failed; a bearer token.",
        "Send `Authorization: Bearer <key>` with a live one.",
        'WWW-Authenticate: Bearer realm="api", error="invalid_token"',
        "password: must be at least 8 characters",
        "password: This field may not be blank. Invalid password: too short",
        "no secret key: none given. secret key is missing. The secret: love is all.",
        "sort(key=len) primary_key=True key=None KeyError: 'key' key='name' key=user_id",
        'raise ValueError(f"bad {token}"); token = request.headers["x"]; api_key=settings.OPENAI_API_KEY',
        "def f(token: str, password: Optional[str] = None, api_key: SecretStr): ...",
        "choices are 'password', 'username', \"secret\", 'token'",
        "pwd=/home/x pass=3 fail=2 auth=basic token_type: bearer",
        "http://host:80/path?email=a@b.c http://h:8080/x@y ssh://git@github.com/a/b mailto:a@b.c",
        "sk-learn-pipeline task-force-something-long risk-management-handbook",
        "expected a -----BEGIN PRIVATE KEY----- header",
        "Duplicate entry 'x' for key 'runs_run.one_idempotency'; Key (id)=(5) already exists.",
        "The Idempotency-Key: abc12345 was used; idempotency_key=abc12345",
        "The session 'abc' is busy with the run; the cookie: it is none",
        "{agentops}:ready:normal 1700000000000-0 key=agentops:ready:normal",
        "WorkerLost: the worker host-1.4711-ab12cd was lost in attempt 2 of 3",
        IMAGE,
    ],
)
def test_ordinary_text_is_left_as_it_is(text):
    assert mask(text) == text


def test_our_own_keys_are_masked_but_for_their_public_prefix(account):
    row, raw = builders.make_api_key(account)

    assert mask(f"used {raw}.") == f"used ao_{row.prefix}_[masked]."


def test_what_the_process_was_configured_with_is_masked_wherever_it_stands(configured):
    environ = {
        "MY_TOOL_TOKEN": "tool value 1",
        "BROKER_URL": "amqp://u:bro%2Fker-pw@h/",
        "SSL_KEY": "/",
        "SHORT_KEY": "abc",
        "MAX_TOKEN": "123456789",
        "HOME_PAGE": "https://example.org/",
        "DB_PASSWORD": "postgres",
    }
    configured(["settings-value", None, ""], environ, ["CUST-[0-9]{4}", "(?=x)"])

    assert mask("a settings-value b") == "a [masked] b"
    assert mask("tool value 1/bro/ker-pw/bro%2Fker-pw") == "[masked]/[masked]/[masked]"
    assert mask("customer CUST-1234 of abc") == "customer [masked] of abc"
    assert mask("/ 123456789 postgres https://example.org/") == "/ 123456789 postgres https://example.org/"


def test_an_expression_that_is_none_stops_the_start(configured):
    with pytest.raises(ImproperlyConfigured, match=r"AGENTOPS_MASK: 'a\[' is no regular expression"):
        configured([], {}, ["a["])


def test_members_are_masked_by_their_names_too():
    class Client:
        def __repr__(self):
            return "Client(api_key='abc')"

    class Broken:
        def __repr__(self):
            raise RuntimeError

    number = uuid.UUID(RUN)
    value = {
        "token": "abcdef12",
        "password": [b"a", "b", 7],
        "tokens": 5,
        "token_count": 5,
        "key": "name",
        "run": number,
        "deep": [{"secret": "s", "text": "Bearer abc123"}],
        "client": Client(),
        "broken": Broken(),
        "none": None,
        "Bearer abc123": True,
    }

    assert mask_json(value) == {
        "token": "[masked]",
        "password": ["[masked]"] * 3,
        "tokens": 5,
        "token_count": 5,
        "key": "name",
        "run": number,
        "deep": [{"secret": "[masked]", "text": "Bearer [masked]"}],
        "client": "Client(api_key='[masked]')",
        "broken": "(Broken cannot be shown)",
        "none": None,
        "Bearer [masked]": True,
    }


def test_a_value_without_end_ends():
    value: dict = {}
    value["self"] = value

    assert "…" in json.dumps(mask_json(value), ensure_ascii=False)


PIECES = [
    *[
        "a",
        "-",
        " ",
        "\\",
        "://a:b",
        "://",
        "@:",
        "Bearer ",
        "bearer a",
        "eyJ",
        "eyJa.",
        "sk-",
        "ao_a",
        "ghp_",
        "AKIAA",
    ],
    *["token=", "password: '", '"token": "', 'token="\\', "password=\\\\", "Cookie: a=", "key:", "'key'='a' ", "pass "],
    *["token=self.", "token: a ", "password:x", '"secret",', "authorization: digest a=", "--token ", "apikey"],
    *["-----BEGIN PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY-----AAAAAAAAAAAAAAAAAA", "token=a.a.a.a.a.", "bot1"],
]


@pytest.mark.parametrize("piece", PIECES)
def test_a_hostile_text_takes_time_by_its_length_alone(piece):
    """What grew with the square of the length would take hours, and pytest's time limit ends it."""
    text = piece * (500_000 // len(piece))

    assert len(mask(text)) <= 4 * len(text)


def test_five_megabytes_of_hostile_text_are_masked():
    size = 5_000_000 // len(PIECES)
    text = "".join(piece * (size // len(piece)) for piece in PIECES) + " token=abcdef12"

    assert "abcdef12" not in mask(text)


def test_a_failure_cannot_be_made_with_a_secret_in_it():
    failed = Failed(
        ErrorClass.AGENT_BUG, "E", "Bearer abc123", "Traceback\nE: Bearer abc123", partial_json='"sk-abc12345"'
    )

    assert failed.as_json() == {
        "class": "agent_bug",
        "type": "E",
        "message": "Bearer [masked]",
        "traceback": "Traceback\nE: Bearer [masked]",
        "cause": "",
    }
    assert failed.partial_json == '"sk-abc12345"'


@pytest.fixture
def lines():
    """Log lines written with the handler of the process from here on, as JSON values."""
    handler = next(
        h for h in logging.getLogger().handlers if isinstance(h.formatter, structlog.stdlib.ProcessorFormatter)
    )
    out = io.StringIO()
    before = handler.setStream(out)
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    handler.setStream(before)


def test_log_lines_are_masked_whoever_writes_them(lines):
    log = structlog.get_logger("tests.masking")
    try:
        raise RuntimeError("token=abcdef12")
    except RuntimeError as error:
        log.exception("thing.broke", error=str(error), raised=error, headers={"cookie": "sessionid=abcdef12"})
        logging.getLogger("django.request").exception("Oh: %s", "token=abcdef12", extra={"pwd": "abcdef12"})

    assert "abcdef12" not in json.dumps(lines())
    ours, djangos = lines()
    assert ours["error"] == "token=[masked]"
    assert ours["exception"].endswith("RuntimeError: token=[masked]")
    assert djangos["event"] == "Oh: token=[masked]"
    assert djangos["pwd"] == "[masked]"


def test_what_the_log_writes_itself_is_left_alone():
    record = object()
    fields = {"level": "info", "timestamp": "t", "_record": record, "run_id": RUN, "n": 1, "event": "run.claimed"}

    assert mask_fields(None, "info", fields) == fields


def test_an_error_is_masked_before_it_is_cut():
    key = "sk-live-" + "a1B2c3D4" * 6
    said = mask_fields(None, "warning", {"error": f"{'x' * 280} api_key={key}"})["error"]

    assert len(said) <= 300
    assert key[:12] not in said
