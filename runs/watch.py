"""Watching a run in a terminal: its text as it comes, its progress as a bar, and how it ended."""

import datetime as dt
import json
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from quotas.command import as_line
from quotas.display import credits_of, moment
from quotas.models import Account
from runs.command import EXIT_OF_STATE, run_facts, usage_line
from runs.models import Run
from runs.outcomes import ErrorClass
from runs.reader import read_events
from runs.selectors import get_run
from runs.states import RunState
from runs.why import why_not_moving

POLL_SECONDS = 0.25
LINE_SECONDS = 5.0  # between two lines of progress where there is no terminal
WHY_SECONDS = 3.0  # without an event, before it is asked why, and between two questions
QUIET = frozenset({"output.delta", "run.progress", "usage"})
SAID_ON_PURPOSE = frozenset(
    {"Fatal", "InvalidInput", "Retryable", "BadOutput"}
)  # how an agent says it: the message is all there is to know
_pause = threading.Event()  # never set: an interruptible wait


class Bar:
    """The progress bar on stderr; where that is no terminal, a line every few seconds if there is progress."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._said_at = -LINE_SECONDS
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            disable=not self._is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, data: dict[str, Any]) -> None:
        """Show a `run.progress` event's data: {done, total, message}."""
        total, done = data.get("total") or None, data.get("done", 0)
        text = clean(str(data.get("message", ""))[:60])
        if not self._is_terminal:
            self._say(f"{done} of {total}" if total else str(done), text)
            return
        if self._task is None:
            self._task = self._progress.add_task(text, total=total)
        self._progress.update(self._task, completed=done, total=total, description=text)

    def _say(self, count: str, text: str) -> None:
        now = time.monotonic()
        if now - self._said_at >= LINE_SECONDS:
            self._said_at = now
            sys.stderr.write(f"{count} {text}".rstrip() + "\n")
            sys.stderr.flush()


class Watcher:
    """Prints a run's events until it ends. `write` prints text as it is, without a line end."""

    def __init__(
        self, run_id: UUID, *, account: Account | None, write: Callable[[str], None], as_json: bool = False
    ) -> None:
        self.run_id = run_id
        self.account = account
        self.write = write
        self.as_json = as_json
        self._at_line_start = True
        self._has_text = False
        self._asked_at = time.monotonic()
        self._why = ""

    def watch(self, after: str = "") -> int:
        """Follow the run to its end and return the command's exit code. Raises NoSuchRun, InvalidCursor."""
        get_run(self.run_id, self.account)
        cursor = after
        with Bar() as bar:
            while True:
                page = read_events(self.run_id, cursor)
                for event in page.events:
                    self._show(dict(event), bar)
                if page.ended:
                    break
                cursor = page.next
                if page.events:
                    self._asked_at, self._why = time.monotonic(), ""
                else:
                    self._explain()
                    _pause.wait(POLL_SECONDS)
        return self._finish(get_run(self.run_id, self.account))

    def _show(self, event: dict[str, Any], bar: Bar) -> None:
        if self.as_json:
            self.write(as_line(event) + "\n")
            return
        data = event["data"]
        if event["kind"] == "output.delta":
            self._text(str(data.get("text", "")))
        elif event["kind"] == "run.progress":
            bar.show(data)
        elif event["kind"] == "output.rollback":
            self._rollback(data)
        elif event["kind"] not in QUIET:
            self._line(f"[{event['kind']}] {told(event['kind'], data)}".rstrip())

    def _explain(self) -> None:
        """Say why nothing comes: each reason once. With `--json` only events are lines."""
        if self.as_json or time.monotonic() - self._asked_at < WHY_SECONDS:
            return
        self._asked_at = time.monotonic()
        why = why_not_moving(get_run(self.run_id, self.account))
        if why is not None and why.code != self._why:
            self._why = why.code
            self._line(f"[{why.code}] {why.text}")

    def _text(self, text: str) -> None:
        if text:
            self.write(clean(text))
            self._at_line_start = text.endswith("\n")
            self._has_text = True

    def _rollback(self, data: dict[str, Any]) -> None:
        """Say that text which cannot be taken back from a terminal does not count, if any was shown."""
        if self._has_text:
            since = f" since {data['after']}" if data.get("after") else ""
            self._line(f"[output.rollback] the text above{since} is void: this attempt begins anew")
            self._has_text = False

    def _line(self, text: str) -> None:
        start = "" if self._at_line_start else "\n"
        self.write(f"{start}{clean(text)}\n")
        self._at_line_start = True

    def _finish(self, run: Run) -> int:
        if self.as_json:
            self.write(as_line(run_facts(run)) + "\n")
            return EXIT_OF_STATE[RunState(run.state)]
        if run.error:
            if run.error.get("traceback") and run.error.get("type") not in SAID_ON_PURPOSE:
                self._line(str(run.error["traceback"]).rstrip())
            cause = f" ({run.error['cause']})" if run.error.get("cause") else ""
            self._line(f"error: {run.error.get('class')}: {run.error.get('message')}{cause}")
            if run.result is not None:
                name = "partial output" if run.error_class == ErrorClass.BUDGET else "answer"
                self._line(f"{name}: " + json.dumps(run.result, ensure_ascii=False, indent=2))
        elif run.result is not None:
            self._line("result: " + json.dumps(run.result, ensure_ascii=False, indent=2))
        self._line(f"{run.state}: run {run.id}")
        self._line(usage_line(run))
        return EXIT_OF_STATE[RunState(run.state)]


def clean(text: str) -> str:
    """Return text that may go to a terminal: a model's output must not move the cursor or set the title."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)


def told(kind: str, data: dict[str, Any]) -> str:
    """Return a lifecycle event as a sentence where its parts are for people, else its data in short."""
    match kind:
        case "run.scheduled":
            return f"begins {_when(data)}"
        case "run.retrying" | "run.retaken":
            error = data.get("error") or {}
            next_one = f"attempt {data.get('attempt')} of {data.get('of')} begins {_when(data)}"
            return f"{next_one}, because of {error.get('class')}: {error.get('message')}"
        case "budget.warning":
            return f"{credits_of(data.get('spent'))} of {credits_of(data.get('budget'))} reserved credits are spent"
        case "budget.extended":
            now, before = credits_of(data.get("budget")), credits_of(data.get("from"))
            return f"{now} credits are reserved now, not {before}; {credits_of(data.get('spent'))} are spent"
        case "run.handed_back":
            return f"{data.get('reason')}; the attempt does not count"
        case _:
            return _short(data)


def _when(data: dict[str, Any]) -> str:
    at, session = data.get("not_before"), data.get("blocked_by_session")
    parts = [f"not before {moment(dt.datetime.fromisoformat(str(at)))}"] if at else []
    parts += [f"when its session {session} is free"] if session else []
    return " and ".join(parts) or "at once"


def _short(data: dict[str, Any]) -> str:
    shown = {name: value for name, value in data.items() if value not in ("", None, {}, [])}
    text = json.dumps(shown, ensure_ascii=False, default=str) if shown else ""
    return text if len(text) <= 160 else text[:157] + "..."
