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
RUN += "?metadata={metadata}", "?from=2020-01-01&to=2100-01-01", "?fingerprint={fingerprint}"
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
    "dead-letters": {"GET": Call("admin", "own", queries=("?after=999999999", "?state=open", "?case={case_id}"))},
    "dead-letters/<int:letter_id>": {"GET": Call("admin", "thing")},
    "dead-letters/<int:letter_id>/requeue": {"POST": Call("admin", "thing", REASON)},
    "dead-letters/<int:letter_id>/discard": {"POST": Call("admin", "thing", REASON)},
    "cases": {"GET": Call("admin", "own", queries=("?after=999999999", "?state=open"))},
    "cases/<int:case_id>": {"GET": Call("admin", "thing")},
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
    "workers/bulkoperation": "workers.{verb}_bulkoperation",
    "workers/case": "workers.{verb}_case",
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
    "overview/charts.json": "runs.view_run",
    "overview/parts.json": ANY_STAFF,  # each part by its permission: tests/console/test_overview.py
    "agents/": "runs.view_run",
    "autocomplete/": NEVER,  # without the names of a field; with them, by the permission on its model
    "r/<path:content_type_id>/<path:object_id>/": NEVER,  # none of our models has a page elsewhere
    "^(?P<app_label>axes|quotas|runs|workers|auth)/$": "runs.view_run",
    "(?P<url>.*)$": NEVER,
    "auth/user/<id>/password/": "auth.change_user",
    "queues/pause/": "runs.pause_queue",
    "queues/resume/": "runs.pause_queue",
    "maintenance/begin/": "runs.set_maintenance",
    "maintenance/end/": "runs.set_maintenance",
    "requeue-plan/": "runs.requeue_run",  # of a dead letter: workers.requeue_deadletter
    "bulk-plan/": "workers.run_bulkoperation",  # each act by its own too
    "workers/bulkoperation/<int:pk>/progress.json": "workers.view_bulkoperation",
    "workers/bulkoperation/<int:pk>/abort/": "workers.run_bulkoperation",
    "workers/bulkoperation/<int:pk>/again/": "workers.run_bulkoperation workers.requeue_deadletter",
    "streams/": "workers.view_workerprocess",
    "streams/repair/": "workers.repair_streams",
    "workers/workerprocess/<int:pk>/drain/": "workers.drain_workerprocess",
    "workers/workerprocess/<int:pk>/undrain/": "workers.drain_workerprocess",
    "workers/workerprocess/<int:pk>/take-over/": "workers.drain_workerprocess",
    "spending/": "quotas.view_ledgerentry",
    "spending.csv": "quotas.view_ledgerentry",
    "submit/": "runs.submit_run",
    "runs/run/rows.json": "runs.view_run",
    "runs/run/views/save/": "runs.view_run runs.save_view",
    "runs/run/views/<int:pk>/rename/": "runs.view_run runs.save_view",
    "runs/run/views/<int:pk>/delete/": "runs.view_run runs.save_view",
    "runs/run/<uuid:run_id>/change/": "runs.view_run",
    "runs/run/<uuid:run_id>/facts.json": "runs.view_run",
    "runs/run/<uuid:run_id>/raw.json": "runs.view_run",
    "runs/run/<uuid:run_id>/events.json": "runs.view_run runs.view_payload",
    "runs/run/<uuid:run_id>/ticket/": "runs.view_run runs.view_payload",
    "runs/run/<uuid:run_id>/cancel/": "runs.cancel_run",
    "runs/run/<uuid:run_id>/priority/": "runs.reprioritise_run",
    "runs/run/<uuid:run_id>/artifacts/<int:pk>/": "runs.view_run runs.view_payload",
    "quotas/account/<int:pk>/line/<slug:kind>/": "quotas.grant quotas.view_account",  # each kind by its own
    "quotas/ledgerentry/export.csv": "quotas.view_ledgerentry",
    "quotas/auditentry/export.csv": "quotas.view_auditentry quotas.export_audit",
    "quotas/auditentry/export.jsonl": "quotas.view_auditentry quotas.export_audit",
    "quotas/apikey/<int:pk>/rotate/": "quotas.add_apikey",
    "quotas/apikey/<int:pk>/revoke/": "quotas.change_apikey",
    "quotas/price/set/": "quotas.add_price",
    "workers/case/<int:pk>/assign/": "workers.triage_case",
    "workers/case/<int:pk>/ignore/": "workers.triage_case",
    "workers/case/<int:pk>/resolve/": "workers.triage_case",
    "workers/case/<int:pk>/reopen/": "workers.triage_case",
    "workers/case/<int:pk>/note/": "workers.triage_case",
    "workers/deadletter/<int:pk>/discard/": "workers.discard_deadletter",
    "workers/deadletter/<int:pk>/restore/": "workers.discard_deadletter",
}
POSTS = {page for page in PAGES if page.endswith(("/rotate/", "/revoke/", "/discard/", "/cancel/", "/ticket/"))}
POSTS |= {page for page in PAGES if page.endswith(("/priority/", "/abort/", "/again/", "/restore/"))}
POSTS |= {page for page in PAGES if page.startswith(("queues/", "maintenance/"))} | {"streams/repair/"}
POSTS |= {page for page in PAGES if page.startswith(("workers/workerprocess/<int:pk>/", "runs/run/views/"))}
POSTS |= {page for page in PAGES if page.startswith("workers/case/<int:pk>/")}
# Pages that show a form and take it: visited with GET, and by who must be refused with POST too.
FORMS = {"requeue-plan/", "bulk-plan/", "submit/", "quotas/account/<int:pk>/line/<slug:kind>/", "quotas/price/set/"}
FORMS |= {"auth/user/<id>/password/"}
NEWEST = "newer_than=00000000000000000000000000000000"
OF_LETTER = "?letter={letter}"
# What a page is asked beside its bare address; `{names}` as in the queries of the API.
ASKED: dict[str, tuple[str, ...]] = {
    "requeue-plan/": ("?run={run_id}", OF_LETTER),
    "bulk-plan/": (
        "?kind=requeue&source=letters",
        "?kind=requeue&source=runs&ids={run_id}",
        "?kind=discard&source=letters&case={case_id}",
        "?kind=cancel&source=runs&state=queued",
        "?kind=reprioritise&source=runs&session={session}",
    ),
    "submit/": ("?agent=probe.ret",),
    "spending/": tuple(f"?account={{account}}&by={by}" for by in ("agent", "session", "run", "attempt", "tag")),
    "runs/run/": ("?q={run_id}", "?q={session}", "?state=failed", "?case={case_id}"),
    "runs/run/rows.json": (f"?ids={{run_id}}&{NEWEST}", f"?q={{session}}&{NEWEST}"),
    "workers/deadletter/": ("?q={run_id}", "?case={case_id}"),
    "workers/case/": ("?q={case_id}", "?q=agent_bug"),
    "quotas/auditentry/": ("?q={run_id}",),
    "quotas/ledgerentry/": ("?q={run_id}",),
    "quotas/hold/": ("?q={run_id}",),
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
