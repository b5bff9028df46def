"""Whether a Python file of the project or of the user's agents changed: `up --reload`."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import watchfiles

LOOK_MS = 20
PACKAGES = ("agentops", "workers", "runs", "quotas")


class SourceWatch:
    """Watches the folders; `changed()` looks for a moment and never waits longer."""

    def __init__(self, base: Path, apps: Iterable[str]) -> None:
        places = {str(base / name) for name in PACKAGES} | {place for app in apps if (place := _place(app))}
        self._changes = watchfiles.watch(
            *sorted(places),
            watch_filter=watchfiles.PythonFilter(),
            debounce=200,
            step=LOOK_MS,
            rust_timeout=LOOK_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
        )

    def changed(self) -> bool:
        return bool(next(self._changes, None))


def _place(app: str) -> str | None:
    """Return the folder or file of an `AGENTOPS_APPS` entry; None for what cannot be found."""
    path = Path(app).expanduser()
    if path.exists():
        return str(path.resolve())
    local = Path.cwd() / app.partition(".")[0]
    for candidate in (local, local.with_suffix(".py")):
        if candidate.exists():
            return str(candidate)
    spec = importlib.util.find_spec(app.partition(".")[0])
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return str(origin.parent if origin.name == "__init__.py" else origin)
