"""Structured logs: one line an event, `event` is an action name, ids are fields. JSON, or `console` for people.

Secrets are masked in every field, also of lines that others write through the standard library (Django, an agent).
"""

import logging.config

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from agentops.quiet import Repeats
from quotas.masking import mask_member

ERROR_MAX = 300  # characters
OUR_OWN = frozenset({"level", "logger", "timestamp"})  # written here: no text of anybody


def mask_fields(_logger: WrappedLogger, _method: str, fields: EventDict) -> EventDict:
    """Processor: mask secrets in the values of a line, exception included. `_…` are structlog's own objects.

    What an `error` says is cut here and nowhere before: of half a secret no pattern knows that it is one.
    """
    masked = {
        name: value if name in OUR_OWN or name.startswith("_") else mask_member(name, value)
        for name, value in fields.items()
    }
    if isinstance(masked.get("error"), str):
        masked["error"] = masked["error"][:ERROR_MAX]
    return masked


def configure_structlog(log_format: str, level: str) -> None:
    """Send structlog and the standard library through one formatter to stderr."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.format_exc_info,
        mask_fields,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer() if log_format == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "structured": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": shared,
                    "processors": [
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        renderer,
                    ],
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
            "root": {"handlers": ["stderr"], "level": level},
            "loggers": {
                "django.request": {"level": "ERROR"},
                "django.channels.server": {"level": "WARNING"},
                "daphne": {"level": "WARNING"},
                "axes": {"level": "WARNING"},
                "httpx": {"level": "WARNING"},
                "httpx2": {"level": "WARNING"},
                "watchfiles": {"level": "WARNING"},
                "openai": {"level": "WARNING"},
                "pypdf": {"level": "ERROR"},
            },
        }
    )
    structlog.configure(
        processors=[Repeats(), *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
