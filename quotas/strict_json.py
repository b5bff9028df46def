"""The request body of the API: UTF-8 JSON, one object, at most BODY_LIMIT bytes."""

from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from django.utils.http import parse_header_parameters
from rest_framework.parsers import BaseParser

from quotas.errors import Refusal
from quotas.json_rules import InvalidJson, parse

UTF8 = frozenset({"utf-8", "utf8"})


class BodyTooLarge(Refusal):
    """The request body is larger than {limit} bytes."""

    code = "body_too_large"
    status = 413


class UnsupportedCharset(Refusal):
    """Send the body as UTF-8, not {charset}."""

    code = "unsupported_charset"
    status = 415


class StrictJSONParser(BaseParser):
    """Parses `application/json` by the rules of `quotas.json_rules`; anything but an object is refused."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,  # noqa: ARG002  DRF's signature
    ) -> dict[str, Any]:
        check_charset(media_type or "")
        # One byte more than allowed: bounds what is kept whether or not a length was announced.
        body = stream.read(settings.BODY_LIMIT + 1)
        if len(body) > settings.BODY_LIMIT:
            raise BodyTooLarge(limit=settings.BODY_LIMIT)
        value = parse(body)
        if not isinstance(value, dict):
            raise InvalidJson(problem="the body must be an object", path="")
        return value


def check_charset(content_type: str) -> None:
    """Raise UnsupportedCharset where the header names another charset than UTF-8."""
    try:
        charset = parse_header_parameters(content_type)[1].get("charset", "utf-8")
    except (LookupError, ValueError):  # an RFC 2231 parameter in an unknown encoding
        raise UnsupportedCharset(charset="an unknown encoding") from None
    if charset.lower() not in UTF8:
        raise UnsupportedCharset(charset=charset[:40])
