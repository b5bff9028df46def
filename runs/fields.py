"""Fields of JSON bodies that take what they say and nothing that could be turned into it."""

import datetime as dt
from typing import Any

from django.utils.dateparse import parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from quotas.json_rules import key_path
from runs.agents import LIMIT_MAX_SECONDS


class Text(serializers.CharField):
    """A JSON string: numbers are not turned into one, spaces stay."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("Must be a string.", code="invalid")
        return str(super().to_internal_value(data))


class Seconds(serializers.FloatField):
    """A JSON number of seconds: above 0, or from 0 on with `or_none`. There is no value that means "no limit"."""

    def __init__(self, *, most: float = LIMIT_MAX_SECONDS, or_none: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.most = most
        self.or_none = or_none

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise serializers.ValidationError("Must be a number of seconds.", code="invalid")
        if not (data >= 0 if self.or_none else data > 0) or not data <= self.most:
            least = "at least 0" if self.or_none else "above 0"
            raise serializers.ValidationError(f"Must be {least} and at most {self.most:.0f}.")
        return float(data)


class Whole(serializers.IntegerField):
    """A JSON whole number: texts, booleans and fractions are not turned into one."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            raise serializers.ValidationError("Must be a whole number.", code="invalid")
        return int(data)


@extend_schema_field(OpenApiTypes.DATETIME)
class Moment(serializers.Field[dt.datetime, str, str, Any]):
    """A time by ISO 8601 with its offset from UTC. One without would mean something else on every server."""

    def to_internal_value(self, data: Any) -> dt.datetime:
        try:
            at = parse_datetime(data) if isinstance(data, str) else None
            if at is None or at.tzinfo is None:
                raise serializers.ValidationError(
                    "Must be a time with its offset from UTC, as in 2031-05-01T09:00:00+02:00.", code="invalid"
                )
            return at.astimezone(dt.UTC)
        except (ValueError, OverflowError):
            raise serializers.ValidationError("There is no such time.", code="invalid") from None

    def to_representation(self, value: dt.datetime) -> str:
        return value.isoformat()


class StrictSerializer(serializers.Serializer[dict[str, Any]]):
    """Refuses fields it does not know, by name: a misspelt option must not be ignored."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        unknown = [name for name in data if name not in self.fields] if isinstance(data, dict) else []
        if unknown:
            raise serializers.ValidationError(
                {key_path("", name): "This field is unknown." for name in unknown[:20]}, code="unknown"
            )
        return dict(super().to_internal_value(data))
