"""What may be uploaded: the size limit while the bytes arrive, and the type by allow-list and first bytes."""

import mimetypes
from pathlib import PurePosixPath
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler

from quotas.errors import Refusal
from runs.services.files import clean_name

__all__ = ["UploadLimit", "checked_type", "clean_name", "type_of"]

ENVELOPE_BYTES = 64 * 1024  # what multipart headers may add to a file of the full size
OFFICE = "application/vnd.openxmlformats-officedocument"
ALLOWED = frozenset(
    {
        "application/json",
        "application/jsonl",
        "application/pdf",
        "application/rtf",
        "application/x-ndjson",
        "application/xml",
        "application/yaml",
        f"{OFFICE}.wordprocessingml.document",
        f"{OFFICE}.spreadsheetml.sheet",
        f"{OFFICE}.presentationml.presentation",
        "application/vnd.oasis.opendocument.text",
        "image/gif",
        "image/jpeg",
        "image/png",
        "image/webp",
    }
)
# Types that a file's first bytes prove: (type, offset, bytes).
MAGIC = (
    ("application/pdf", 0, b"%PDF-"),
    ("image/png", 0, b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", 0, b"\xff\xd8\xff"),
    ("image/gif", 0, b"GIF8"),
    ("image/webp", 8, b"WEBP"),
)
ZIPPED = frozenset(kind for kind in ALLOWED if kind.startswith((OFFICE, "application/vnd.oasis")))
PROVEN = frozenset(kind for kind, _, _ in MAGIC)
HEAD_BYTES = 1024
# Platforms differ in what they know; these must be the same everywhere.
SUFFIXES = {
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


class UploadTooLarge(Refusal, RequestDataTooBig):
    """An upload may have {limit} bytes."""

    code = "upload_too_large"
    status = 413


class UnsupportedFile(Refusal):
    """Files of the type {content_type} are not taken. Send text, PDF, JSON, an office document or an image."""

    code = "unsupported_file"
    status = 415


class TypeMismatch(Refusal):
    """The file says it is {content_type}, but its first bytes are not."""

    code = "type_mismatch"
    status = 415


class UploadLimit(FileUploadHandler):
    """Stops a multipart body as soon as it is longer than UPLOAD_LIMIT, announced or not; keeps nothing itself."""

    def __init__(self, request: Any = None) -> None:
        super().__init__(request)
        self.received = 0

    def handle_raw_input(
        self,
        input_data: Any,  # noqa: ARG002  Django's signature
        META: Any,  # noqa: ARG002, N803
        content_length: int,
        boundary: Any,  # noqa: ARG002
        encoding: Any = None,  # noqa: ARG002
    ) -> None:
        if content_length > settings.UPLOAD_LIMIT + ENVELOPE_BYTES:
            raise UploadTooLarge(limit=settings.UPLOAD_LIMIT)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes:  # noqa: ARG002
        self.received += len(raw_data)
        if self.received > settings.UPLOAD_LIMIT:
            raise UploadTooLarge(limit=settings.UPLOAD_LIMIT)
        return raw_data

    def file_complete(self, file_size: int) -> None:  # noqa: ARG002
        return None


def type_of(name: str, claimed: str, head: bytes) -> str:
    """Return the type to store for a file; raises UnsupportedFile or TypeMismatch.

    First bytes beat the claim; a claim of no meaning (`application/octet-stream`) is replaced by the name's type.
    """
    for kind, offset, magic in MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return kind
    kind = claimed.partition(";")[0].strip().lower()
    if kind in {"", "application/octet-stream"}:
        suffix = PurePosixPath(name).suffix.lower()
        kind = SUFFIXES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    if not (kind in ALLOWED or kind.startswith("text/")) or len(kind) > 100 or not kind.isascii():
        raise UnsupportedFile(content_type=kind[:100])
    if kind in PROVEN or (kind in ZIPPED and not head.startswith(b"PK")):
        raise TypeMismatch(content_type=kind)
    if kind.startswith("text/") and b"\0" in head:
        raise TypeMismatch(content_type=kind)
    return kind


def checked_type(upload: "UploadedFile[Any]", name: str) -> str:
    """Return the type of an uploaded file, read from its first bytes; raises as `type_of` does."""
    upload.seek(0)
    head = upload.read(HEAD_BYTES)
    upload.seek(0)
    return type_of(name, upload.content_type or "", head)
