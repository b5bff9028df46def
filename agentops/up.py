"""Everything on one machine, in order: folder, broker, database, model, web, workers; then watched until a signal."""

import json
import os
import shlex
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from agentops import embedded, env, instance
from agentops.model_server import MODEL_NAME
from agentops.reload import SourceWatch
from workers.config import PORT_MAX
from workers.supervisor import Child, ChildFailed, ChildSpec, Interrupted, Supervisor

FAILED, PORT_TAKEN, FOLDER_IN_USE = 1, 2, 3  # exit codes
STOP_AFTER_FAILURE_SECONDS = 10.0  # with the broker gone nothing can drain
REPAIR_SECONDS = 600
DEFAULT_FOLDER = "data"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `up`."""

    host: str
    port: int
    data_dir: str
    workers: int
    use_model: bool
    as_json: bool
    reload: bool


class CannotListen(Exception):
    """The web address cannot be had. The message says why."""


def say(sentence: str) -> None:
    """Tell the operator, on stderr; stdout belongs to the JSON line."""
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201


def start(options: Options) -> int:
    """Run the instance until a signal or a failure and return the exit code."""
    os.umask(0o077)  # the folder holds secrets and people's inputs
    folder = instance.open_folder(Path(options.data_dir))
    try:
        descriptor = instance.lock(folder)
    except instance.FolderInUse as error:
        say(str(error))
        return FOLDER_IN_USE
    try:
        port = choose_port(options.host, options.port)
        machine = Machine(options, folder, port, descriptor)
    except CannotListen as error:
        say(str(error))
        return PORT_TAKEN
    except embedded.UnsafeFolder as error:
        say(str(error))
        return FAILED
    return machine.run()


def choose_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0. Raises CannotListen."""
    if not 0 <= port <= PORT_MAX:
        raise CannotListen(f"--port must be 0 to {PORT_MAX}, not {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            return int(trial.getsockname()[1])
    except OSError as error:
        raise CannotListen(
            f"Cannot listen on {host} port {port}: {error.strerror}. Choose another with --port or --host."
        ) from error


class Machine:
    """One run of `up`: what it starts and what it knows of it."""

    def __init__(self, options: Options, folder: Path, port: int, lock_descriptor: int) -> None:
        self.options = options
        self.folder = folder
        self.port = port
        self.lock_descriptor = lock_descriptor
        self.given_redis_url = env.text("REDIS_URL")
        self.socket_path = None if self.given_redis_url else embedded.socket_path(folder)
        self.listener = embedded.model_listener() if self._wants_embedded_model() else None
        # Of the environment alone: our own settings may come from what an earlier `up` wrote.
        self.apps = instance.absolute_apps(env.words("AGENTOPS_APPS"))
        self.env = {**os.environ, "AGENTOPS_DATA_DIR": str(folder), "PYTHONUNBUFFERED": "1"}
        self.supervisor = Supervisor(
            folder / "logs", cwd=settings.BASE_DIR, say=say, changed=self._write_instance, reaped=self._reaped
        )
        self.facts: dict[str, Any] = {}

    # -- the whole way -----------------------------------------------------------------------------
    def run(self) -> int:
        code, grace = 0, None
        try:
            self._start_all()
            self.supervisor.watch(self._on_pass())
        except ChildFailed as error:
            say(str(error))
            code, grace = FAILED, STOP_AFTER_FAILURE_SECONDS
        except Interrupted:
            pass
        say(self._farewell())
        self.supervisor.stop(at_most=grace)
        self._tidy()
        return code

    def _start_all(self) -> None:
        instance.ensure_secret_key(self.folder)
        self.facts = self._addresses()
        self._write_instance()
        if self.socket_path is not None:
            self.supervisor.spawn(self._broker(self.socket_path))
            self.supervisor.await_ready("broker")
        if self.listener is not None:
            self.supervisor.spawn(embedded.model(self.listener, env=self.env))
        setup = self.supervisor.begin(self._setup())
        self.supervisor.ask(setup, "prepare")
        self.supervisor.spawn(self._web())
        names = [f"worker-{number}" for number in range(1, self.options.workers + 1)]
        for number, name in enumerate(names, start=1):
            self.supervisor.spawn(self._worker(name, f"w{number}"))
        if self.listener is not None:
            self.supervisor.await_ready("model")
        pids = self.supervisor.pids()
        wanted = {"web": self.url, "host": _an_allowed_host(), "workers": [pids.get(name, 0) for name in names]}
        # Last, so that nothing can fail between the making of the credentials and their being shown.
        first = json.loads(self.supervisor.ask(setup, json.dumps(wanted), needs=["web", *names]))
        self._write_instance()
        self._announce(first)

    def _tidy(self) -> None:
        if self.facts:
            instance.write(self.folder, {**self.facts, "running": False, "pids": {}})
        if self.socket_path is not None:
            embedded.remove_socket(self.folder, self.socket_path)
        os.close(self.lock_descriptor)

    # -- what is started ---------------------------------------------------------------------------
    def _broker(self, path: Path) -> ChildSpec:
        return embedded.broker(self.folder, path, lock_descriptor=self.lock_descriptor, env=self.env)

    def _setup(self) -> ChildSpec:
        """Describe the process that does what needs the database: ours may have other settings."""
        return ChildSpec("setup", [sys.executable, "manage.py", "bootstrap_instance"], self.env, stop_rank=0)

    def _web(self) -> ChildSpec:
        command = [sys.executable, "-m", "daphne", "-b", self.options.host, "-p", str(self.port)]
        if env.boolean("AGENTOPS_BEHIND_HTTPS_PROXY", default=False):
            command.append("--proxy-headers")
        return ChildSpec(
            name="web",
            command=[*command, "agentops.asgi:application"],
            env={**self.env, "AGENTOPS_DATABASE_POOL": "1"},
            stop_rank=embedded.WEB_RANK,
        )

    def _worker(self, name: str, short_name: str) -> ChildSpec:
        return ChildSpec(
            name=name,
            command=[sys.executable, "manage.py", "runworker_streams", "--name", short_name],
            env=self.env,
            stop_rank=embedded.WORKER_RANK,
            stop_seconds=settings.DRAIN_GRACE_SECONDS + settings.HANDLER_GRACE_SECONDS + 15,
            may_end=True,
        )

    def _reaped(self, child: Child) -> None:
        """Have a dead worker's runs repaired at once, in a process that has the instance's settings."""
        if child.spec.stop_rank == embedded.WORKER_RANK and child.process.returncode:
            command = [sys.executable, "manage.py", "repair_workers", "--wait", str(REPAIR_SECONDS)]
            self.supervisor.send(ChildSpec("repair", command, self.env, stop_rank=0))

    def _on_pass(self) -> Callable[[], None]:
        if not self.options.reload:
            return lambda: None
        watch = SourceWatch(settings.BASE_DIR, self.apps)
        reloaded = [name for name in self.supervisor.children if name.startswith(("web", "worker-"))]

        def reload_on_change() -> None:
            if watch.changed():
                say("Python files changed: web and workers start again.")
                self.supervisor.reload(reloaded)

        return reload_on_change

    # -- what is known -----------------------------------------------------------------------------
    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.options.host, self.options.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def _wants_embedded_model(self) -> bool:
        if env.text("OPENAI_BASE_URL") or env.text("OPENAI_API_KEY") or not self.options.use_model:
            return False
        return embedded.model_is_installed()

    def _addresses(self) -> dict[str, Any]:
        embedded_url = f"{embedded.model_address(self.listener)}/v1" if self.listener else None
        redis_url = self.given_redis_url or (embedded.redis_url(self.socket_path) if self.socket_path else "")
        return {
            "url": self.url,
            "database_url": env.text("DATABASE_URL") or instance.sqlite_url(self.folder),
            "redis_url": redis_url,
            "openai_base_url": env.text("OPENAI_BASE_URL") or embedded_url,
            "model": env.text("AGENTOPS_MODEL") or (MODEL_NAME if self.listener else None),
            "apps": self.apps,
            "probe_agents": env.boolean("AGENTOPS_PROBE_AGENTS", default=False),
        }

    def _pids(self) -> dict[str, int]:
        return {"up": os.getpid(), **self.supervisor.pids()}

    def _write_instance(self) -> None:
        instance.write(self.folder, {**self.facts, "running": True, "pids": self._pids()})

    # -- what is said ------------------------------------------------------------------------------
    def _announce(self, first: dict[str, str | None]) -> None:
        ready = {
            "url": self.url,
            **first,
            "redis_url": self.facts["redis_url"],
            "database_url": self.facts["database_url"],
            "data_dir": str(self.folder),
            "pids": self._pids(),
        }
        for sentence in self._sentences(first):
            say(sentence)
        if self.options.as_json:  # last: whoever reads this line finds everything else said
            print(json.dumps(ready), flush=True)  # noqa: T201

    def _sentences(self, first: dict[str, str | None]) -> list[str]:
        lines = [f"AgentOps is ready at {self.url}"]
        if first["admin_password"] is None:
            lines.append("  New credentials: ./run changepassword admin, ./run create_api_key")
        elif not self.options.as_json:
            lines += [
                f"  user      {first['admin_user']}",
                f"  password  {first['admin_password']}",
                f"  API key   {first['api_key']}",
                "  (shown this once; later: ./run changepassword admin, ./run create_api_key)",
            ]
        lines.append(f"  model     {self._model_sentence()}")
        if not self.options.workers:
            lines.append("  workers   none: runs are accepted and wait until `./run runworker_streams` takes them.")
        if self.folder != Path(DEFAULT_FOLDER).absolute():
            lines.append(f"export AGENTOPS_DATA_DIR={shlex.quote(str(self.folder))}")
        if self.options.host not in {"127.0.0.1", "localhost", "::1"} and not env.text("AGENTOPS_ALLOWED_HOSTS"):
            lines.append("Other machines are refused until AGENTOPS_ALLOWED_HOSTS names how they call this one.")
        if sys.platform != "linux":
            lines.append("On this system the children outlive a kill -9 of `up`: end them by the pids above.")
        lines.append("Ctrl+C stops everything in order.")
        return lines

    def _farewell(self) -> str:
        names = self.supervisor.names_in_stop_order()
        sentence = f"Stopping: {', '.join(names)}." if names else "Stopping."
        if any(name.startswith("worker-") for name in names):
            sentence += (
                f" Runs that are being worked on may end first, for at most {settings.DRAIN_GRACE_SECONDS:.0f} s;"
                " the workers' lines say how many. A second signal ends them at once."
            )
        return sentence

    def _model_sentence(self) -> str:
        if self.listener is not None:
            return f"{MODEL_NAME} on this machine"
        if env.text("OPENAI_BASE_URL") or env.text("OPENAI_API_KEY"):
            model = env.text("AGENTOPS_MODEL") or "not chosen: set AGENTOPS_MODEL to one of its models"
            return f"{model}, at {env.text('OPENAI_BASE_URL') or 'api.openai.com'}"
        reason = "left out" if not self.options.use_model else "its packages are not installed"
        return f"none ({reason}); agents that need one answer with an error. Set OPENAI_BASE_URL to give them one."


def _an_allowed_host() -> str:
    first = next(iter(settings.ALLOWED_HOSTS), "localhost")
    return "localhost" if first == "*" else first.removeprefix(".")
