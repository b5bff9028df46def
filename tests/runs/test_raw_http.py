"""Rows F48, F49 and F54 on raw sockets against the real server: it answers, and goes on serving."""

import json
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from runs.models import Run
from tests import builders
from tests.probes import Stack, WebServer

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]
MIB = 1 << 20


class Raw:
    """Sends bytes as they are to one server, with a key."""

    def __init__(self, web: WebServer, key: str) -> None:
        parts = urlsplit(web.url)
        self.address = (parts.hostname, parts.port)
        self.common = f"Host: localhost\r\nAuthorization: Bearer {key}\r\n".encode()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def send(self, *parts: bytes) -> bytes:
        """Send the parts and return what comes back until the answer is complete or the server hangs up."""
        with self.connect() as connection:
            return self.exchange(connection, *parts)

    def exchange(self, connection: socket.socket, *parts: bytes) -> bytes:
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
            while not self._is_complete(answer):
                piece = connection.recv(65536)
                if not piece:
                    break
                answer += piece
        except ConnectionError:
            pass
        return answer

    @staticmethod
    def _is_complete(answer: bytes) -> bool:
        head, found, body = answer.partition(b"\r\n\r\n")
        if not found:
            return False
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return len(body) >= int(lengths[0].split(b":")[1]) if lengths else body.endswith(b"0\r\n\r\n")

    def get(self, target: bytes, *headers: bytes) -> int:
        lines = b"".join(header + b"\r\n" for header in headers)
        return status_of(self.send(b"GET " + target + b" HTTP/1.1\r\n" + self.common + lines + b"\r\n"))

    def head(self, path: bytes, *headers: bytes) -> bytes:
        lines = b"".join(header + b"\r\n" for header in headers)
        return b"POST " + path + b" HTTP/1.1\r\n" + self.common + lines + b"\r\n"


def status_of(answer: bytes) -> int:
    """Return the status of an answer, 0 where the server hung up without one."""
    return int(answer[9:12]) if answer else 0


@pytest.fixture
def web(stack: Stack) -> WebServer:
    return stack.web()


@pytest.fixture
def raw(web: WebServer, account) -> Raw:
    return Raw(web, builders.make_api_key(account)[1])


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


ODD = [
    (b"/api/v1/runs/\xe2\x80\xa6", []),
    (b"/api/v1/runs/%e2%80%a6", []),
    (b"/api/v1/runs/%00", []),
    (b"/api/v1/runs/%ff", []),
    (b"/api/v1/sessions/a%00b/events", []),
    (b"/admin/?q=%00", []),
    (b"/api/v1/runs?session=\xff", []),
    (b"/api/v1/runs?token=\xd1\x84\xd1\x84", []),
    (b"/api/v1/runs?limit=%ff", []),
    (b"/api/v1/runs", [b"X-Request-ID: a\0b"]),
    (b"/api/v1/runs", [b"X-Big: " + b"a" * 65_536]),
    (b"/api/v1/runs", [b"Content-Type: text/plain; x*=bogus''%ff"]),
    (b"/api/v1/runs", [b"Host: \xff\xfe"]),
    (b"/api/v1/runs", [b"Content-Length: -5"]),
    (b"/%ff%00?%00", []),
]


HARMLESS = [
    b"X-Request-ID: \xff",
    b"traceparent: \xff",
    b'Cookie: sessionid="a\\000bcdefghij"',
    b"Accept: */*;\xff",
    *(b"Content-Type: text/plain; charset=" + name for name in (b"hex", b"undefined", b"utf-16", b"bogus", b"\xff")),
]


def test_f49_f54_odd_bytes_get_a_4xx_or_a_hang_up(raw):
    for target, headers in ODD:
        status = raw.get(target, *headers)
        assert status == 0 or 400 <= status < 500, (target, headers, status)
    for header in HARMLESS:
        assert raw.get(b"/api/v1/runs?session=%ff", header) == 200, header
    for number in range(1000):
        target, headers = ODD[number % len(ODD)]
        assert raw.get(target, *headers) < 500
    assert raw.get(b"/api/v1/runs") == 200


def test_a_body_in_chunks_is_read(raw):
    body = json.dumps({"agent": "probe.ret", "input": {"value": "😀"}}, ensure_ascii=False).encode()
    chunks = b"".join(b"1\r\n" + body[at : at + 1] + b"\r\n" for at in range(len(body)))
    head = raw.head(b"/api/v1/runs", b"Content-Type: application/json", b"Transfer-Encoding: chunked")
    assert status_of(raw.send(head, chunks + b"0\r\n\r\n")) == 202
    assert Run.objects.get().input == {"value": "😀"}


def test_f48_a_length_over_the_limit_is_413_at_once(raw):
    head = raw.head(b"/api/v1/runs", b"Content-Type: application/json", b"Content-Length: " + b"9" * 23)
    answer = raw.send(head, b"x")
    assert status_of(answer) == 413
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "body_too_large"
    whole = raw.head(b"/api/v1/runs", b"Content-Type: application/json", b"Content-Length: %d" % (50 * MIB))
    assert status_of(raw.send(whole, *[b"x" * MIB] * 50)) == 413
    upload = raw.head(
        b"/api/v1/files", b"Content-Type: multipart/form-data; boundary=x", b"Content-Length: %d" % (52 * MIB)
    )
    body = json.loads(raw.send(upload, b"x").partition(b"\r\n\r\n")[2])
    assert (body["code"], len(body["request_id"])) == ("upload_too_large", 32)


def test_f48_an_endless_body_is_cut_off_and_memory_stays(raw, web):
    raw.get(b"/api/v1/runs")
    before = resident_kib(web.pid)
    chunk = b"%x\r\n" % MIB + b"y" * MIB + b"\r\n"
    answers: list[int] = []

    def send(kind: bytes) -> None:
        head = raw.head(b"/api/v1/files", b"Content-Type: " + kind, b"Transfer-Encoding: chunked")
        with raw.connect() as connection:
            answers.append(status_of(raw.exchange(connection, head, *[chunk] * 80, b"0\r\n\r\n")))

    kinds = [b"application/json", b"multipart/form-data; boundary=x", b"text/plain"]
    senders = [threading.Thread(target=send, args=[kind]) for kind in kinds]
    for sender in senders:
        sender.start()
    assert raw.get(b"/api/v1/runs") == 200  # others are served meanwhile
    for sender in senders:
        sender.join()
    assert answers == [413] * 3
    assert resident_kib(web.pid) - before < 60 * 1024


def test_f48_slow_senders_do_not_hold_up_others(raw):
    head = raw.head(b"/api/v1/runs", b"Content-Type: application/json", b"Content-Length: 1000")
    slow = [raw.connect() for _ in range(100)]
    try:
        for connection in slow:
            connection.sendall(head + b"{")
        for _ in range(5):
            assert raw.get(b"/api/v1/runs") == 200
            for connection in slow:
                connection.sendall(b" ")
    finally:
        for connection in slow:
            connection.close()
