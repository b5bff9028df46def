"""Imported by the settings before all else: a third less CPU until a worker, a web process or a command is ready."""

import gc
import sys
from typing import Any

# Importing makes some hundred thousand objects that stay. The default looks at all new ones after every 700.
gc.set_threshold(20_000, 10, 10)

# structlog imports both for features that are not used here: coloured tracebacks, and logging by Twisted.
_modules: dict[str, Any] = sys.modules
_left_out = [name for name in ("rich", "twisted") if name not in _modules]
_modules.update(dict.fromkeys(_left_out))  # None: as if not installed
try:
    import structlog  # noqa: F401
finally:
    for _name in _left_out:
        del _modules[_name]
