"""The agent registry: `@agent(...)`, the specification of an agent, and discovery of the modules that declare them.

An agent's module is `agents.py` (or the package `agents`) of an installed app, or whatever `AGENTOPS_APPS` names:
an import path or a folder. No file of ours has to change for a new agent.
"""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules
from jsonschema import Draft202012Validator, FormatChecker

from quotas.models import Priority
from runs.estimates import Estimate, declared
from runs.outcomes import ErrorClass
from runs.retry import Backoff

Json = Any
Handler = Callable[..., Any]
FailureKind = type[BaseException] | ErrorClass
NAME_MAX = 120
RERUN_ATTEMPTS = 3
ATTEMPTS_MAX = 1000
RUNNING_MAX = 1_000_000
LIMIT_MAX_SECONDS = 24 * 3600.0
OVERRIDES = frozenset({"time_limit", "max_attempts", "on_lost"})


@dataclass(frozen=True)
class AgentSpec:
    """Everything AgentOps knows about an agent. `docs/agents.md` explains each field to authors."""

    name: str
    handler: Handler
    version: str = "1"
    description: str = ""
    input_schema: Json = field(default_factory=lambda: {"type": "object"})
    output_schema: Json | None = None
    queue: str = "default"
    priority: str = Priority.NORMAL
    estimate: Estimate = field(default_factory=Estimate)
    extend: bool | None = None  # more is reserved for a run that needs it; None: see may_extend
    time_limit_seconds: float = 600.0
    queue_wait_seconds: float | None = None  # None: the setting QUEUE_WAIT_SECONDS
    wall_clock_seconds: float | None = None  # over all attempts, from the first start; None: WALL_CLOCK_SECONDS
    no_progress_seconds: float | None = None  # without any event of the handler; None: no such limit
    policy: str = "interrupt"  # what becomes of a run whose worker is lost: "interrupt" or "rerun"
    on_drain: str | None = None  # "interrupt" or "hand_back" a run that a drain cannot wait for; None: DRAIN_POLICY
    max_attempts: int | None = None  # None: 3 by the policy "rerun", else 1
    backoff: Backoff = field(default_factory=Backoff)
    retry_on: tuple[FailureKind, ...] = ()  # exception types and error classes; empty: whatever may pass by itself
    fatal_on: tuple[FailureKind, ...] = ()  # never retried, whatever retry_on says
    max_running: int | None = None  # runs of this agent at work at once, over all workers; None: no limit
    isolation: str = "loop"  # "process": a child process of its own, which can be killed
    dedupe_seconds: float = 0.0  # the same input again within this window is a 409
    models: Callable[[Json], Iterable[str]] | None = None  # models the input names: must have a price at submit
    allow: frozenset[str] = frozenset()  # what a submit may override: some of OVERRIDES
    sample: Json = None  # an example input, shown in the form and the docs

    def attempts_by(self, policy: str) -> int:
        """Return how many attempts a run under a policy has, unless its submit says otherwise."""
        return self.max_attempts or (RERUN_ATTEMPTS if policy == "rerun" else 1)

    @property
    def may_extend(self) -> bool:
        """Whether a run that spends more than is reserved for it gets more, or is stopped (money 6)."""
        if self.extend is not None:
            return self.extend
        # Nothing was promised: none is declared, or what recent runs cost, which one in twenty exceeds by its nature.
        return self.estimate.recent is not None or self.estimate == Estimate()

    @cached_property
    def validator(self) -> Draft202012Validator:
        return Draft202012Validator(self.input_schema, format_checker=FormatChecker())

    @cached_property
    def output_validator(self) -> Draft202012Validator | None:
        return None if self.output_schema is None else Draft202012Validator(self.output_schema)

    @cached_property
    def file_fields(self) -> tuple[str, ...]:
        """Top-level input fields of format `file`: they name an uploaded file's id."""
        properties = self.input_schema.get("properties", {})
        return tuple(name for name, rule in properties.items() if rule.get("format") == "file")


_registry: dict[str, AgentSpec] = {}
_discovered: list[str] = []
_discovering = threading.RLock()


class AgentNotRegistered(LookupError):
    """No agent of that name is registered in this process."""


def agent(
    name: str, *, estimate: int | Callable[[Json], int] | Estimate = 0, **fields: Any
) -> Callable[[Handler], Handler]:
    """Register the decorated handler as the agent `name`.

    `estimate` is an amount in micro-units, a function of the input that returns one, or `runs.estimates.recent(…)`;
    the other fields are those of AgentSpec. Raises ImproperlyConfigured for a bad schema, a bad name, a name taken by
    another handler or an amount that is none.
    """

    def register(handler: Handler) -> Handler:
        text = fields.pop("description", None) or (handler.__doc__ or "").strip().split("\n\n")[0]
        spec = AgentSpec(name=name, handler=handler, estimate=declared(estimate), description=text, **fields)
        _check(spec)
        _registry[name] = spec
        return handler

    return register


def _check(spec: AgentSpec) -> None:
    known = _registry.get(spec.name)
    if known is not None and known.handler.__module__ != spec.handler.__module__:
        raise ImproperlyConfigured(
            f"Agent {spec.name!r} is declared in {known.handler.__module__} and {spec.handler.__module__}."
        )
    if not spec.name or len(spec.name) > NAME_MAX or not spec.name.isprintable() or " " in spec.name:
        raise ImproperlyConfigured(f"Agent name {spec.name!r}: 1 to {NAME_MAX} printable characters, no space.")
    if spec.priority not in Priority.values:
        raise ImproperlyConfigured(f"Agent {spec.name}: priority {spec.priority!r} is not in {Priority.values}.")
    _check_choices(spec)
    for what, seconds in (
        ("time_limit_seconds", spec.time_limit_seconds),
        ("queue_wait_seconds", spec.queue_wait_seconds),
        ("wall_clock_seconds", spec.wall_clock_seconds),
        ("no_progress_seconds", spec.no_progress_seconds),
    ):
        if seconds is not None and not 0 < seconds <= LIMIT_MAX_SECONDS:
            raise ImproperlyConfigured(
                f"Agent {spec.name}: {what} must be above 0 and at most {LIMIT_MAX_SECONDS:.0f}, not {seconds!r}."
            )
    if spec.max_attempts is not None and not 1 <= spec.max_attempts <= ATTEMPTS_MAX:
        raise ImproperlyConfigured(
            f"Agent {spec.name}: max_attempts must be 1 to {ATTEMPTS_MAX}, not {spec.max_attempts!r}."
        )
    if spec.max_running is not None and not 1 <= spec.max_running <= RUNNING_MAX:
        raise ImproperlyConfigured(
            f"Agent {spec.name}: max_running must be 1 to {RUNNING_MAX}, not {spec.max_running!r}."
        )
    for schema in filter(None, (spec.input_schema, spec.output_schema)):
        Draft202012Validator.check_schema(schema)


def _check_choices(spec: AgentSpec) -> None:
    for what, value, known in (
        ("policy", spec.policy, ("interrupt", "rerun")),
        ("on_drain", spec.on_drain, (None, "interrupt", "hand_back")),
        ("isolation", spec.isolation, ("loop", "process")),
    ):
        if value not in known:
            choices = " or ".join(repr(choice) for choice in known if choice)
            raise ImproperlyConfigured(f"Agent {spec.name}: {what} {value!r} is unknown; use {choices}.")
    unknown = sorted(spec.allow - OVERRIDES)
    if unknown:
        raise ImproperlyConfigured(
            f"Agent {spec.name}: allow names {', '.join(unknown)}; known are {', '.join(sorted(OVERRIDES))}."
        )
    for cause in (*spec.retry_on, *spec.fatal_on):
        is_type = isinstance(cause, type) and issubclass(cause, BaseException)
        if not is_type and not isinstance(cause, ErrorClass):
            raise ImproperlyConfigured(
                f"Agent {spec.name}: retry_on and fatal_on take exception types and error classes, not {cause!r}."
            )


def discover() -> None:
    """Import every module that declares agents, once a process."""
    if "done" in _discovered:
        return
    # Other threads wait until all agents are known. This one may come back from within a module that is imported.
    with _discovering:
        if _discovered:
            return
        _discovered.append("begun")
        try:
            autodiscover_modules("agents")
            if settings.AGENTOPS_PROBE_AGENTS:
                importlib.import_module("workers.agents.probe")
            for place in settings.AGENTOPS_APPS:
                _import(place)
            _discovered.append("done")
        except BaseException:
            _discovered.clear()  # the next call tries again, and fails as clearly
            raise


def _import(place: str) -> None:
    """Import an `AGENTOPS_APPS` entry: an import path, or the path of a folder or a .py file."""
    path = Path(place).expanduser()
    if not path.exists():
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ImproperlyConfigured(
                f"AGENTOPS_APPS names {place!r}: neither an importable module nor a folder ({error})."
            ) from error
        return
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    folder = str(path.resolve() if path.is_dir() else path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that its files can import each other
    for file in files:
        if file.name != "__init__.py":
            _import_file(file)


def _import_file(file: Path) -> None:
    name = file.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(file.resolve()):
        return
    found: ModuleSpec | None = importlib.util.spec_from_file_location(name, file.resolve())
    if found is None or found.loader is None:
        raise ImproperlyConfigured(f"AGENTOPS_APPS: {file} is not a Python file.")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # as `import` does: half a module must not look like a whole one the next time
        raise


def get_agent(name: str) -> AgentSpec:
    """Return the agent's specification; raises AgentNotRegistered."""
    discover()
    try:
        return _registry[name]
    except KeyError:
        raise AgentNotRegistered(name) from None


def find_agent(name: str) -> AgentSpec | None:
    """Return the agent if its module has been imported by now."""
    return _registry.get(name)


def list_agents() -> list[AgentSpec]:
    """Return all agents of this process, by name."""
    discover()
    return sorted(_registry.values(), key=lambda spec: spec.name)
