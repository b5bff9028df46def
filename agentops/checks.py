"""System checks of the settings: `manage.py check` names them by id, `check --deploy` adds those for production."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning  # noqa: A004
from django.core.checks import register as django_register
from django.db import connection

from quotas.prices import PriceTable
from runs.pricing import unpriced_models


def register() -> None:
    """Make the checks known to Django; called once by the console's app config."""
    django_register(secret_key, Tags.security)
    django_register(lease_times)
    django_register(drain_grace)
    django_register(prices, Tags.database)
    django_register(sqlite_and_workers, deploy=True)
    django_register(allowed_hosts, Tags.security, deploy=True)


def secret_key(**_options: Any) -> list[CheckMessage]:
    if not settings.SECRET_KEY.startswith("ephemeral-"):
        return []
    return [
        Warning(
            "No secret key is configured: every process makes its own, and sessions end with it.",
            hint="Set AGENTOPS_SECRET_KEY (or AGENTOPS_SECRET_KEY_FILE), or name the data folder of `up`"
            " with AGENTOPS_DATA_DIR.",
            id="agentops.W001",
        )
    ]


def lease_times(**_options: Any) -> list[CheckMessage]:
    if settings.SWEEP_SECONDS * 2 <= settings.LEASE_SECONDS:
        return []
    return [
        Warning(
            f"The sweep ({settings.SWEEP_SECONDS:g} s) is longer than half a lease ({settings.LEASE_SECONDS:g} s):"
            " takeover waits for the next sweep.",
            hint="Lower AGENTOPS_SWEEP_SECONDS or raise AGENTOPS_LEASE_SECONDS.",
            id="agentops.W002",
        )
    ]


def drain_grace(**_options: Any) -> list[CheckMessage]:
    if settings.DRAIN_GRACE_SECONDS >= settings.HANDLER_GRACE_SECONDS:
        return []
    return [
        Warning(
            "AGENTOPS_DRAIN_GRACE_SECONDS is shorter than AGENTOPS_HANDLER_GRACE_SECONDS: a drain interrupts runs"
            " that could have ended.",
            hint="Set it to the longest time limit of your agents and 30 seconds more.",
            id="agentops.W003",
        )
    ]


def sqlite_and_workers(**_options: Any) -> list[CheckMessage]:
    if connection.vendor != "sqlite":
        return []
    return [
        Warning(
            "SQLite serves one machine and its local disk.",
            hint="Set DATABASE_URL to a PostgreSQL server for more than one machine (docs/deploy.md).",
            id="agentops.W004",
        )
    ]


def allowed_hosts(**_options: Any) -> list[CheckMessage]:
    if "*" not in settings.ALLOWED_HOSTS:
        return []
    return [
        Warning(
            "AGENTOPS_ALLOWED_HOSTS is *: any Host header is believed.",
            hint="List the names this service is called by.",
            id="agentops.W005",
        )
    ]


def prices(**options: Any) -> list[CheckMessage]:
    """Name models of agents that have no price. With a database only: `check --database default`, `migrate`."""
    try:
        unpriced = unpriced_models() if options.get("databases") and PriceTable.current().version else {}
    except Exception:  # noqa: BLE001  no tables yet, a broken agent: others tell, and `migrate` must not end here
        return []
    return [
        Warning(
            f"The model {model} has no price; agents that may use it: {', '.join(agents) or 'those of the settings'}.",
            hint=f"Name one with `./run set_price {model} input=… output=…`: until then its runs are refused or fail.",
            id="agentops.W006",
        )
        for model, agents in unpriced.items()
    ]
