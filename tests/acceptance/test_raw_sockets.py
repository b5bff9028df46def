"""Rows F47 and F49 on raw sockets: WebSocket handshakes of odd bytes, and numbers no database holds (F47, F49, F50)."""

import base64
import os
import socket as plain
from urllib.parse import urlsplit

import httpx
import pytest

from tests import builders
from tests.acceptance.viewers import frames, socket

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
HUGE = "1" + "0" * 30
HANDSHAKE = (
    b"Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)) + b"\r\n"
)


def shake(web, target: bytes, *headers: bytes) -> int:
    """Ask for a WebSocket with these bytes; return the answer's status, 0 where the server hung up without one."""
    parts = urlsplit(web.url)
    lines = b"".join(header + b"\r\n" for header in headers)
    with plain.create_connection((parts.hostname, parts.port), timeout=15) as connection:
        connection.sendall(b"GET " + target + b" HTTP/1.1\r\n" + HANDSHAKE + lines + b"\r\n")
        try:
            answer = connection.recv(4096)
        except ConnectionError:
            answer = b""
    return int(answer[9:12]) if answer else 0


def test_odd_handshakes_and_huge_numbers_leave_it_serving(stack, account):
    web, key = stack.web(), builders.make_api_key(account)[1]
    run = builders.make_run(account=account)
    path = f"/ws/runs/{run.pk}/".encode()
    odd = [
        shake(web, path + b"?token=\xd1\x84\xd1\x84"),
        shake(web, path + b"?ticket=%ff%00&after=%00"),
        shake(web, path + b"?after=" + b"9" * 5000 + b"-1"),
        shake(web, path + b"?ticket=\xff\xfe"),
        shake(web, b"/ws/runs/\xe2\x80\xa6/"),
        shake(web, b"/ws/runs/%00/"),
        shake(web, b"/ws/sessions/%ff%00/"),
        shake(web, path, b"Sec-WebSocket-Protocol: agentops, key.\xff"),
        shake(web, path, b"Sec-WebSocket-Protocol: " + b"key.," * 2000),
        shake(web, path, b"Origin: \xff\xfe"),
        shake(web, path, b"Origin: http://[", b"Cookie: sessionid=a"),
        shake(web, path, b"Cookie: sessionid=" + b"\xff" * 100),
        shake(web, path, b'Cookie: sessionid="a\\000b"'),
        shake(web, path, b"X-Big: " + b"a" * 65_536),
    ]
    assert [status for status in odd if status >= 500] == []
    with httpx.Client(base_url=f"{web.url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=15) as client:
        for target in (f"/runs/{HUGE}", f"/runs?limit={HUGE}", "/runs?limit=-1", f"/runs?after={HUGE}"):
            assert client.get(target).status_code in {400, 404}, target
        for target in (
            f"/events?limit={HUGE}",
            f"/events?wait={HUGE}",
            f"/events?after={HUGE}",
            f"/events?after={HUGE}-1",
        ):
            answer = client.get(f"/runs/{run.pk}{target}", headers={"Accept": "application/json"})
            assert answer.status_code in {200, 400}, target
        assert client.get("/runs").json()["results"][0]["id"] == str(run.pk)
    with socket(web, path.decode(), key=key) as connection:
        connection.send('{"type": "ping"}')
        assert {"type": "pong"} in list(frames(connection, 2))
    assert "Traceback" not in web.output()
