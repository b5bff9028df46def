"""What the keys and the command palette of every page know: the pages of the user's menu, and where a run is."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.urls import reverse

KEYS = {
    "Agents": "a",
    "Run": "r",
    "DeadLetter": "d",
    "Case": "c",
    "BulkOperation": "b",
    "WorkerProcess": "w",
    "Streams": "q",
}  # after a g; o is the overview
ANY_RUN = UUID(int=0)  # the script puts the run's id in its place


def shell_facts(user: Any, menu: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `{user, root, run, runs, pages: [{name, group, address, key}]}`; no `run` for who may see none."""
    root = reverse("admin:index")
    pages = [{"name": "Overview", "group": "", "address": root, "key": "o"}]
    for group in menu:
        for model in group["models"]:
            if model.get("admin_url"):
                key = KEYS.get(str(model["object_name"]), "")
                name = str(model["name"])
                pages.append({"name": name, "group": str(group["name"]), "address": model["admin_url"], "key": key})
    pages.append({"name": "Change password", "group": "You", "address": reverse("admin:password_change"), "key": ""})
    sees_runs = user.has_perm("runs.view_run")
    return {
        "user": user.pk,
        "root": root,
        "run": reverse("admin:runs_run_change", args=[ANY_RUN]) if sees_runs else "",
        "runs": reverse("admin:runs_run_changelist") if sees_runs else "",
        "pages": pages,
    }
