"""Every page of the console: which route it is, in which section of docs/console.md it is told, and its addresses.

A route that is neither here nor in NOT_PAGES fails the walk (tests/browser/test_every_page.py). Addresses are filled
with the rows of tests/browser/hostile.py.
"""

from collections.abc import Mapping
from string import Formatter
from typing import Any

from django.urls import get_resolver

from tests.access.rules import ADD, BARE, CHANGE, DELETE, HISTORY, LIST, MODELS, NEVER, PAGES, POSTS, routes

# The section of a model's pages; where the page of one row has a section of its own, it is the second.
SECTIONS: dict[str, tuple[str, ...]] = {
    "auth/group": ("Users and groups",),
    "auth/user": ("Users and groups",),
    "axes/accessattempt": ("Sign-in record",),
    "axes/accesslog": ("Sign-in record",),
    "axes/accessfailurelog": ("Sign-in record",),
    "quotas/account": ("Accounts",),
    "quotas/membership": ("Members",),
    "quotas/apikey": ("API keys",),
    "quotas/price": ("Prices",),
    "quotas/hold": ("Holds",),
    "quotas/ledgerentry": ("Ledger",),
    "quotas/auditentry": ("Audit log",),
    "runs/run": ("Runs", "Run"),
    "workers/bulkoperation": ("Bulk operations",),
    "workers/case": ("Cases", "Case"),
    "workers/deadletter": ("Dead letters", "Dead letter"),
    "workers/workerprocess": ("Workers",),
}

KINDS = (
    "cancel&source=runs&state=queued",
    "requeue&source=letters&state_is=open",
    "discard&source=letters&state_is=open",
)
BY = ("agent", "session", "tag", "day", "run", "attempt")
# Pages of our own, and queries of lists that show something else: route -> (section, addresses).
OWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "": ("Overview", ("",)),
    "submit/": ("Submit a run", ("submit/", "submit/?agent=probe.ret", "submit/?agent=no.such")),
    "agents/": ("Agents", ("agents/", "agents/?agent={agent}")),
    "streams/": ("Streams", ("streams/",)),
    "spending/": (
        "Spending",
        tuple(f"spending/?by={by}" for by in ("agent", "session", "tag", "day", "run", "attempt")),
    ),
    "requeue-plan/": (
        "Requeue",
        tuple(f"requeue-plan/?{one}" for one in ("letter={workers/deadletter}", "run={planned}")),
    ),
    "bulk-plan/": ("Bulk operations", tuple(f"bulk-plan/?kind={kind}" for kind in KINDS)),
    "password_change/": ("Users and groups", ("password_change/",)),
    "password_change/done/": ("Users and groups", ("password_change/done/",)),
    "auth/user/<id>/password/": ("Users and groups", ("auth/user/{auth/user}/password/",)),
    "^(?P<app_label>axes|quotas|runs|workers|auth)/$": ("Overview", ("quotas/", "workers/")),
    "runs/run/<uuid:run_id>/change/": (
        "Run",
        tuple(f"runs/run/{{{name}}}/change/" for name in ("runs/run", "running")),
    ),
    "quotas/account/<int:pk>/line/<slug:kind>/": ("Accounts", ("quotas/account/{quotas/account}/line/grant/",)),
    "quotas/price/set/": ("Prices", ("quotas/price/set/",)),
}
QUERIES = {
    "runs/run/": ("?state=failed", "?q={hostile}", "?state=nonsense"),
    "workers/deadletter/": ("?q={hostile}",),
    "quotas/ledgerentry/": ("?from=2020-01-01",),
}

# What answers a script or a program, ends in another page, or is there before anybody is signed in (walked there).
NOT_PAGES = {"login/", "logout/", "jsi18n/"} | {f"{model}/{BARE}" for model in MODELS}
NOT_PAGES |= {page for page in PAGES if "." in page.split("/")[-1] or page.endswith("artifacts/<int:pk>/")}
NOT_PAGES |= {f"runs/run/{CHANGE}"}  # our page of a run has its address


def console_routes() -> set[str]:
    """Return the routes of the console that show a page to somebody."""
    known = (address for address, _ in routes(get_resolver().url_patterns) if address.startswith("admin/"))
    admin = {address.removeprefix("admin/") for address in known}
    return {page for page in admin - NOT_PAGES - POSTS if PAGES.get(page) != NEVER}


def catalogue() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return route -> (section, addresses) of every page we know."""
    known = dict(OWN)
    for model, sections in SECTIONS.items():
        one = f"{{{model}}}"
        lists = tuple(f"{model}/{query}" for query in ("", *QUERIES.get(f"{model}/", ())))
        known[f"{model}/{LIST}"] = (sections[0], lists)
        known[f"{model}/{ADD}"] = (sections[0], (f"{model}/add/",))
        for route, end in ((CHANGE, "change/"), (HISTORY, "history/"), (DELETE, "delete/")):
            known.setdefault(f"{model}/{route}", (sections[-1], (f"{model}/{one}/{end}",)))
    return {route: entry for route, entry in known.items() if PAGES.get(route) != NEVER and route not in NOT_PAGES}


def addresses(rows: Mapping[str, Any], *, only_known: bool = False) -> list[str]:
    """Return the address of every page, filled with rows. `only_known`: without those that need a row not given."""
    found = []
    for route in sorted(console_routes()):
        for address in catalogue()[route][1]:
            if only_known and any(name not in rows for _, name, _, _ in Formatter().parse(address) if name):
                continue
            found.append("/admin/" + address.format_map(rows))
    return found
