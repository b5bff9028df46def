"""Messages between a worker and a handler's process: a JSON object and, where there is one, a block of bytes.

On the wire: the lengths of both (4 and 8 bytes, big-endian), the JSON, the bytes.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

HEAD = struct.Struct("!IQ")
BODY_MAX = 16 * 1024 * 1024
DATA_MAX = 256 * 1024 * 1024
READ_BYTES = 64 * 1024

Body = dict[str, Any]
Message = tuple[Body, bytes]


class FrameTooLarge(ValueError):
    """More than a message may hold."""


class BrokenFrame(ValueError):
    """What came is not a message."""


def encode(body: Body, data: bytes = b"") -> bytes:
    """Return a message as it is sent. Raises FrameTooLarge, TypeError (not JSON)."""
    text = json.dumps(body, separators=(",", ":")).encode("ascii")
    if len(text) > BODY_MAX or len(data) > DATA_MAX:
        raise FrameTooLarge(f"{max(len(text), len(data))} bytes are more than a handler's process can send at once.")
    return HEAD.pack(len(text), len(data)) + text + data


class Reader:
    """Puts messages together from what comes in. Holds at most one that is not complete, and one read more."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, block: bytes) -> Iterator[Message]:
        """Yield the messages that are complete by now. Raises BrokenFrame."""
        self._held += block
        while len(self._held) >= HEAD.size:
            body_size, data_size = HEAD.unpack_from(self._held)
            if body_size > BODY_MAX or data_size > DATA_MAX:
                raise BrokenFrame(f"a message of {body_size} and {data_size} bytes")
            middle, end = HEAD.size + body_size, HEAD.size + body_size + data_size
            if len(self._held) < end:
                return
            text, data = bytes(self._held[HEAD.size : middle]), bytes(self._held[middle:end])
            del self._held[:end]
            yield _decode(text), data


def _decode(text: bytes) -> Body:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(str(error)) from error
    if not isinstance(body, dict):
        raise BrokenFrame("a message that is no object")
    return body
