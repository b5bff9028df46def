"""The stated rule of every route and socket: a new one without a line here fails tests/access/test_routes.py.

An API route has, for each method, the scope that it needs and what another account gets to see there:

- `thing`  one row of an account: for another account it is not there (404)
- `own`    a list, or figures: of the caller's account, whatever the query asks for
- `all`    the same for every account: nothing in it belongs to one

A page of the console has the permission its staff needs; ANY_STAFF needs none, PUBLIC not even a sign-in.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver

API = "api/v1/"
PUBLIC = "public"
ANY_STAFF = "any staff"


@dataclass(frozen=True)
class Call:
    """How an API route's method is called: `body` is JSON, `queries` are tried beside the empty one.

    `{names}` in them are filled from what the other account has (tests/access/world.py).
    """

    scope: str
    seen: str
    body: Any = None
    queries: tuple[str, ...] = ()
    upload: bool = False


RUN = "?session={session}", "?tag={tag}", "?after={run_id}", "?agent=probe.ret&state=failed"
LEDGER = "?after={ledger_id}", "?after=999999999", "?run={run_id}", "?session={session}", "?format=csv"
SPENDING = tuple(f"?by={by}" for by in ("agent", "session", "tag", "day", "run", "attempt"))
SPENDING += ("?by=run&session={session}", "?by=run&tag={tag}", "?by=session&format=csv", "?by=run&run={run_id}")
REASON = {"reason": "x"}
SUBMIT = {"agent": "probe.ret", "input": {"value": 1}}

CALLS: dict[str, dict[str, Call]] = {
    "quota": {"GET": Call("read", "own")},
    "ledger": {"GET": Call("read", "own", queries=LEDGER)},
    "spending": {"GET": Call("read", "own", queries=SPENDING)},
    "runs": {"GET": Call("read", "own", queries=RUN), "POST": Call("submit", "own", SUBMIT, ("?dry_run=1",))},
    "runs/<uuid:run_id>": {"GET": Call("read", "thing")},
    "runs/<uuid:run_id>/cancel": {"POST": Call("cancel", "thing", REASON)},
    "runs/<uuid:run_id>/retry": {"POST": Call("submit", "thing", REASON)},
    "runs/<uuid:run_id>/ticket": {"POST": Call("read", "thing", {})},
    "runs/<uuid:run_id>/events": {"GET": Call("read", "thing", queries=("?after=1-1", "?limit=1"))},
    "runs/<uuid:run_id>/artifacts": {"GET": Call("read", "thing")},
    "runs/<uuid:run_id>/artifacts/<path:name>": {"GET": Call("read", "thing")},
    "sessions/<path:key>/events": {"GET": Call("read", "own", queries=("?after=0/", "?after=1/1-1"))},
    "files": {"POST": Call("submit", "own", upload=True)},
    "agents": {"GET": Call("read", "own")},
    "agents/<path:name>": {"GET": Call("read", "own")},
    "dead-letters": {"GET": Call("admin", "own", queries=("?after=999999999", "?state=open"))},
    "dead-letters/<int:letter_id>": {"GET": Call("admin", "thing")},
    "dead-letters/<int:letter_id>/requeue": {"POST": Call("admin", "thing", REASON)},
    "dead-letters/<int:letter_id>/discard": {"POST": Call("admin", "thing", REASON)},
    "queue/status": {"GET": Call("admin", "all")},
    "workers": {"GET": Call("admin", "all")},
}

# Django's pages of a model, by what they need. "" is not served to anybody: nothing of ours is added or deleted there.
LIST, ADD, CHANGE, DELETE = "", "add/", "<path:object_id>/change/", "<path:object_id>/delete/"
HISTORY, BARE = "<path:object_id>/history/", "<path:object_id>/"
MODELS = {
    "auth/group": "auth.{verb}_group",
    "auth/user": "auth.{verb}_user",
    "axes/accessattempt": "axes.{verb}_accessattempt",
    "axes/accesslog": "axes.{verb}_accesslog",
    "axes/accessfailurelog": "axes.{verb}_accessfailurelog",
    "quotas/account": "quotas.{verb}_account",
    "quotas/membership": "quotas.{verb}_membership",
    "quotas/apikey": "quotas.{verb}_apikey",
    "quotas/price": "quotas.{verb}_price",
    "quotas/hold": "quotas.{verb}_hold",
    "quotas/ledgerentry": "quotas.{verb}_ledgerentry",
    "quotas/auditentry": "quotas.{verb}_auditentry",
    "runs/run": "runs.{verb}_run",
    "workers/deadletter": "workers.{verb}_deadletter",
    "workers/workerprocess": "workers.{verb}_workerprocess",
}
NEVER = "nobody"
ADDED = {
    "auth/group",
    "auth/user",
    "quotas/account",
    "quotas/apikey",
    "quotas/membership",
}  # models with a page to add one
DELETED = {"auth/group", "auth/user", "quotas/membership"} | {name for name in MODELS if name.startswith("axes/")}

PAGES: dict[str, str] = {
    "": ANY_STAFF,
    "login/": PUBLIC,
    "logout/": PUBLIC,  # a POST; it ends whatever session there is
    "jsi18n/": PUBLIC,
    "password_change/": ANY_STAFF,
    "password_change/done/": ANY_STAFF,
    "overview.json": ANY_STAFF,  # each number by its permission: tests/console/test_pages.py
    "autocomplete/": NEVER,  # without the names of a field; with them, by the permission on its model
    "r/<path:content_type_id>/<path:object_id>/": NEVER,  # none of our models has a page elsewhere
    "^(?P<app_label>auth|axes|quotas|runs|workers)/$": "runs.view_run",
    "(?P<url>.*)$": NEVER,
    "auth/user/<id>/password/": "auth.change_user",
    "spending/": "quotas.view_ledgerentry",
    "spending.csv": "quotas.view_ledgerentry",
    "submit/": "runs.submit_run",
    "runs/run/<uuid:run_id>/change/": "runs.view_run",
    "runs/run/<uuid:run_id>/facts.json": "runs.view_run",
    "runs/run/<uuid:run_id>/raw.json": "runs.view_run",
    "runs/run/<uuid:run_id>/events.json": "runs.view_run runs.view_payload",
    "runs/run/<uuid:run_id>/ticket/": "runs.view_run runs.view_payload",
    "runs/run/<uuid:run_id>/cancel/": "runs.cancel_run",
    "runs/run/<uuid:run_id>/requeue/": "runs.requeue_run",
    "runs/run/<uuid:run_id>/artifacts/<int:pk>/": "runs.view_run runs.view_payload",
    "quotas/account/<int:pk>/line/<slug:kind>/": "quotas.grant quotas.view_account",  # each kind by its own
    "quotas/ledgerentry/export.csv": "quotas.view_ledgerentry",
    "quotas/apikey/<int:pk>/rotate/": "quotas.add_apikey",
    "quotas/apikey/<int:pk>/revoke/": "quotas.change_apikey",
    "quotas/price/set/": "quotas.add_price",
    "workers/deadletter/<int:pk>/requeue/": "workers.requeue_deadletter",
    "workers/deadletter/<int:pk>/discard/": "workers.discard_deadletter",
}
POSTS = {
    page for page in PAGES if page.endswith(("/rotate/", "/revoke/", "/requeue/", "/discard/", "/cancel/", "/ticket/"))
}
for model, permission in MODELS.items():
    view, change = permission.format(verb="view"), permission.format(verb="change")
    PAGES |= {
        f"{model}/{LIST}": view,
        f"{model}/{HISTORY}": view,
        f"{model}/{CHANGE}": view,
        f"{model}/{BARE}": ANY_STAFF,  # leads to the page above, whatever the id
        f"{model}/{ADD}": permission.format(verb="add") if model in ADDED else NEVER,
        f"{model}/{DELETE}": permission.format(verb="delete") if model in DELETED else NEVER,
    }
PAGES["auth/user/add/"] += " auth.change_user"  # who may add users only could make themselves a superuser, Django says

OTHERS = {  # beside the API and the console
    "api/v1/schema/": PUBLIC,
    "api/v1/docs/": PUBLIC,
    "^api(/.*)?$": PUBLIC,  # what is nowhere
    "metrics": PUBLIC,  # sums over all accounts; a proxy keeps it inside (docs/deploy.md)
    "healthz": PUBLIC,
    "readyz": PUBLIC,
    "": PUBLIC,  # leads to the console
}

# Sockets: what a key needs there; None where no key is let in.
SOCKETS: dict[str, str | None] = {
    "ws/runs/<uuid:run_id>/": "read",
    "ws/sessions/<str:key>/": "read",
    "ws/ops/": None,
}


def routes(patterns: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (address, view) of every route below, included ones too."""
    for entry in patterns:
        address = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from routes(entry.url_patterns, address)
        else:
            assert isinstance(entry, URLPattern)
            yield address, entry.callback


def methods_of(view: Any) -> set[str]:
    """Return the methods of an API view, as its class has them; of an event stream, which is a function, GET."""
    made = getattr(view, "cls", None)
    names = ("get", "post", "put", "patch", "delete")
    return {"GET"} if made is None else {name.upper() for name in names if hasattr(made, name)}


def unstated(patterns: Any) -> set[str]:
    """Return the routes and methods that no rule above speaks of."""
    missing = set()
    for address, view in routes(patterns):
        if address in OTHERS:
            continue
        if address.startswith("admin/"):
            missing |= {address} - {f"admin/{page}" for page in PAGES}
        else:
            stated = set(CALLS.get(address.removeprefix(API), {}))
            missing |= {f"{method} {address}" for method in methods_of(view) - stated}
            missing |= set() if stated else {address}
    return missing


def unserved(patterns: Any) -> set[str]:
    """Return the rules that speak of nothing that is there."""
    known = {address: methods_of(view) for address, view in routes(patterns)}
    rules = {f"{method} {API}{path}" for path, calls in CALLS.items() for method in calls}
    rules = {rule for rule in rules if rule.split(" ")[0] not in known.get(rule.split(" ")[1], set())}
    return rules | {f"admin/{page}" for page in PAGES if f"admin/{page}" not in known} | (set(OTHERS) - set(known))
