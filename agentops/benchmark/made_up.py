"""Made-up runs as a busy month leaves them behind: every state, with all the rows that belong to a run of that state.

The same numbers make the same runs. What ended is settled or released, what is open holds its estimate; a failed run
has its dead letter in a case. Open runs are the newest, and stay open: their waits and leases end in a month.
"""

import datetime as dt
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentops.benchmark.bulk import Row
from runs import states
from runs.archive import pack
from runs.events import Event
from runs.outcomes import ErrorClass
from runs.states import Edge, RunState
from workers.models import DeadLetter

MARK = "fill"  # what is made up begins with it: accounts, agents, workers; it is the queue, too
ACCOUNTS, AGENTS, WORKERS, CASES = 50, 20, 40, 300
DAYS = 30
TEXT_BYTES = 1_000_000
TEXT_EVERY = 100  # one run in a hundred has a text of a megabyte
ARCHIVE_EVERY = 20  # one ended run in twenty has its log; the others look as if retention had taken it
OPEN_SHARE = 0.004
OPEN_MIN = 10
OPEN = (RunState.QUEUED,) * 5 + (RunState.SCHEDULED,) * 2 + (RunState.RUNNING,) * 2 + (RunState.WAITING,)
ESTIMATE = 250_000
LETTER_OPEN_SHARE = 0.7
KINDS = (
    (DeadLetter.Reason.FATAL, ErrorClass.AGENT_BUG, "ValueError"),
    (DeadLetter.Reason.FATAL, ErrorClass.INPUT, "Fatal"),
    (DeadLetter.Reason.EXHAUSTED, ErrorClass.PROVIDER_TRANSIENT, "APIConnectionError"),
    (DeadLetter.Reason.EXHAUSTED, ErrorClass.PROVIDER_LIMIT, "RateLimitError"),
    (DeadLetter.Reason.EXHAUSTED, ErrorClass.BAD_OUTPUT, "ValidationError"),
    (DeadLetter.Reason.EXHAUSTED, ErrorClass.TIMEOUT, "TimeoutError"),
)
WORDS = ("ledger", "invoice", "order", "parcel", "ticket", "contract", "meter", "photo", "recipe", "train", "harbour")
VERBS = ("read", "write", "parse", "fetch", "merge", "split", "rank", "translate")
WAITS = states.Edge("run.waiting", frozenset({RunState.RUNNING}), RunState.WAITING, "the owner waits for something")
ENDS = {
    RunState.SUCCEEDED: states.SUCCEED,
    RunState.FAILED: states.FAIL,
    RunState.CANCELLED: states.CONFIRM_CANCEL,
    RunState.INTERRUPTED: states.INTERRUPT,
}


def long_text() -> str:
    """Return a megabyte of lines, as unlike each other as those of a traceback."""
    lines = (
        f'  File "/app/agents/{n % 97}.py", line {n * 7919 % 4001}, in step_{n * 31 % 1009}' for n in range(30_000)
    )
    return "\n".join(lines)[:TEXT_BYTES]


@dataclass(frozen=True, slots=True)
class Kind:
    """A case's failures. `words` tell it from the others with the same reason, class and type."""

    number: int
    agent: str
    reason: str
    error_class: str
    error_type: str
    words: str

    def error(self, n: int, rest: str = "") -> dict[str, str]:
        """Return the error of run n. Its number is not of what the case is known by."""
        traceback = f'Traceback (most recent call last):\n  File "/app/agents/{self.words[:4]}.py", line 7, in step\n'
        message = f"could not {self.words} number {n} of {n % 97 + 100}"
        facts = {"class": self.error_class, "type": self.error_type, "message": message, "cause": self.reason}
        return facts | {"traceback": f"{traceback}{self.error_type}: {message}\n{rest}"}


def kinds(count: int) -> list[Kind]:
    """Return the kinds of failure, at most CASES."""
    made = []
    for number in range(count):
        reason, error_class, error_type = KINDS[number % len(KINDS)]
        verb, first = VERBS[number % len(VERBS)], WORDS[number // len(VERBS) % len(WORDS)]
        words = f"{verb} the {first} of {WORDS[number // len(VERBS) // len(WORDS)]}"
        made.append(Kind(number, agent_name(number % AGENTS), str(reason), str(error_class), error_type, words))
    return made


def agent_name(number: int) -> str:
    return f"{MARK}.agent{number:02}"


@dataclass
class Rows:
    """What is to be written of some runs, by table."""

    runs: list[Row] = field(default_factory=list)
    transitions: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    archives: list[Row] = field(default_factory=list)
    holds: list[Row] = field(default_factory=list)
    lines: list[Row] = field(default_factory=list)
    letters: list[Row] = field(default_factory=list)


class Maker:
    """Makes the rows of run after run."""

    def __init__(
        self, *, runs: int, dead: int, until: dt.datetime, account_ids: Sequence[int], failures: Sequence[Kind]
    ) -> None:
        self.total, self.dead = runs, dead
        self._until, self._accounts, self._kinds = until, account_ids, failures
        self._first = until - dt.timedelta(days=DAYS)
        self._step = dt.timedelta(days=DAYS) / (runs + 1)
        self._open_from = runs - min(runs // 2, max(OPEN_MIN, int(runs * OPEN_SHARE)))
        self._later = until + dt.timedelta(days=DAYS)
        self._random = random.Random(7)  # noqa: S311  the same rows again, no secrecy
        self._text = long_text()
        self._long_input = '{"text": "' + self._text.replace("\\", "").replace('"', "'").replace("\n", " ") + '"}'

    def add(self, rows: Rows, n: int) -> None:
        """Add run n, counted from 0 for the oldest."""
        state = self._state(n)
        path = self._path(n, state)
        at = self._first + self._step * (n + 1)
        life = _Life(n, path, at, self._moments(at, path), self._cost(n, path))
        life.text = self._text if n % TEXT_EVERY == 7 else ""
        account = self._accounts[self._account(n)]
        letter = self._kinds[int(len(self._kinds) * self._random.random() ** 2)] if state == RunState.FAILED else None
        row = self._columns(life, account, letter)
        rows.runs.append(row)
        rows.transitions += life.transitions()
        rows.attempts += life.attempts(row)
        self._add_money(rows, life, row)
        if row["log_closed_at"] is not None and n % ARCHIVE_EVERY == 0:
            rows.archives.append(life.archive())
        if letter is not None:
            rows.letters.append(self._letter(life, row, letter))

    def _state(self, n: int) -> RunState:
        if n >= self._open_from:
            return OPEN[n % len(OPEN)]
        if n * self.dead // self._open_from != (n + 1) * self.dead // self._open_from:
            return RunState.FAILED
        chance = self._random.random()
        if chance < 0.02:
            return RunState.CANCELLED
        return RunState.INTERRUPTED if chance < 0.03 else RunState.SUCCEEDED

    def _path(self, n: int, state: RunState) -> list[Edge]:
        begun = [states.SUBMIT, states.CLAIM]
        if state in {RunState.QUEUED, RunState.SCHEDULED}:
            return [states.SUBMIT if state == RunState.QUEUED else states.SUBMIT_LATER]
        if state == RunState.CANCELLED and n % 2:
            return [states.SUBMIT, states.CANCEL]
        if state == RunState.FAILED and n % 3 == 0:
            return [*begun, states.RETRY_NOW, states.CLAIM, states.FAIL]
        if state == RunState.RUNNING:
            return begun
        return [*begun, WAITS if state == RunState.WAITING else ENDS[state]]

    def _moments(self, at: dt.datetime, path: list[Edge]) -> list[dt.datetime]:
        """Return when each edge was taken: seconds of waiting, up to minutes of work."""
        moments = [at]
        for edge in path[1:]:
            most = 8 if edge is states.CLAIM else 240
            moments.append(
                min(moments[-1] + dt.timedelta(seconds=0.1 + most * self._random.random() ** 3), self._until)
            )
        return moments

    def _cost(self, n: int, path: list[Edge]) -> int:
        if states.CLAIM not in path:
            return 0
        return 5_000_000 + n % 977 * 40_000 if n % 10_000 == 77 else int(1_000 + 200_000 * self._random.random() ** 2)

    def _account(self, n: int) -> int:
        """Return an account's place: a few have most of the runs; those of a session have the same."""
        return (n // 8 * 31 % ACCOUNTS) if n % 24 < 8 else int(ACCOUNTS * self._random.random() ** 2)

    def _columns(self, life: "_Life", account: int, letter: Kind | None) -> dict[str, Any]:
        n, state, text = life.n, life.state, life.text
        agent = letter.agent if letter else agent_name(int(AGENTS * self._random.random() ** 1.5))
        has_session = n % 24 < 8 and n < self._open_from
        row: dict[str, Any] = {
            "id": life.id, "account_id": account, "agent": agent, "queue": MARK if n % 2_000 else f"{MARK}-rare",
            "priority": _priority(n), "state": str(state), "fence": len(life.path), "attempt": life.attempt,
            "max_attempts": 3, "input_json": self._long_input if text and n % 3 == 0 else f'{{"number": {n}}}',
            "usage": {"made-up": {"input": n % 4096, "output": n % 512}} if life.started_at else {}, "cost": life.cost,
            "budget": ESTIMATE, "metadata": {"customer": f"c{n % 5000}", "plan": "pro"} if n % 5 == 0 else {},
            "tags": ["vip"] if n % 10_000 == 99 else (["nightly"] if n % 5 == 1 else []),
            "session": f"{MARK}-session-{n // 8}" if has_session else "",
            "session_number": n % 8 + 1 if has_session else 0, "time_limit_seconds": 600.0,
            "queue_wait_seconds": 1800.0, "submitted_by": MARK, "submitted_at": life.at, "queued_at": life.queued_at,
            "started_at": life.started_at, "finished_at": life.ended_at,
            "log_closed_at": life.ended_at, "worker": life.worker,
        }  # fmt: skip
        if state == RunState.SUCCEEDED:
            row["result_json"] = self._long_input if text and n % 3 else f'{{"answer": {n * 17 % 101}}}'
        if letter is not None:
            row |= {"error": letter.error(n, text), "error_class": letter.error_class}
        if state == RunState.QUEUED:
            row["waits_until"] = self._later
        if state == RunState.SCHEDULED:
            row["not_before"] = self._later
        if state == RunState.RUNNING:
            row |= {"claim_token": life.id.hex, "lease_expires_at": self._later, "stop_at": self._later}
        return row

    def _add_money(self, rows: Rows, life: "_Life", run: Row) -> None:
        hold: dict[str, Any] = {"run_id": life.id, "account_id": run["account_id"], "amount": ESTIMATE}
        hold |= {"created_at": life.at, "closed_at": life.ended_at}
        if life.ended_at is None:
            waits = life.state in {RunState.QUEUED, RunState.SCHEDULED}
            rows.holds.append(hold | {"state": "active", "expires_at": self._later if waits else None})
            return
        state = "released" if life.started_at is None else "settled"
        rows.holds.append(hold | {"state": state, "actual": life.cost})
        if life.started_at is not None:
            line = {"account_id": run["account_id"], "run_id": life.id, "settle_key": life.id, "kind": "settle"}
            rows.lines.append(line | {"amount": life.cost, "agent": run["agent"], "at": life.ended_at})

    def _letter(self, life: "_Life", run: Row, kind: Kind) -> dict[str, Any]:
        row = {"run_id": life.id, "reason": kind.reason, "error_class": kind.error_class, "version": "1.0"}
        row |= {"message": run["error"]["message"], "buried_at": life.ended_at, "published_at": life.ended_at}
        row |= {"case_id": kind.number, "account_id": run["account_id"], "cost": life.cost}
        if self._random.random() < LETTER_OPEN_SHARE:
            return row | {"state": "open"}
        return row | {"state": "discarded", "resolved_at": self._until, "resolved_by": MARK, "resolved_reason": MARK}


@dataclass
class _Life:
    """A run's way through the states; `moments` has the time of each edge of the `path`."""

    n: int
    path: list[Edge]
    at: dt.datetime
    moments: list[dt.datetime]
    cost: int
    text: str = ""

    def __post_init__(self) -> None:
        self.state = self.path[-1].target
        self.id = _id_of(self.n, self.at)
        claims = [at for edge, at in zip(self.path, self.moments, strict=True) if edge is states.CLAIM]
        waits = [at for edge, at in zip(self.path, self.moments, strict=True) if edge.target == RunState.QUEUED]
        self.attempt = max(1, len(claims))
        self.started_at = claims[0] if claims else None
        self.queued_at = waits[-1] if waits else self.at
        self.ended_at = self.moments[-1] if self.state in states.TERMINAL else None
        self.worker = f"{MARK}-worker-{self.n % WORKERS:02}" if claims else ""

    def transitions(self) -> list[Row]:
        pairs = enumerate(zip(self.path, self.moments, strict=True), start=1)
        return [
            {"run_id": self.id, "fence": fence, "kind": edge.event, "at": at, "actor": MARK, "prev": _prev(fence)}
            for fence, (edge, at) in pairs
        ]

    def attempts(self, run: Row) -> list[Row]:
        """Return a row for each claim; what the run cost is that of all of them together."""
        made: list[Row] = []
        for place, edge in enumerate(self.path):
            if edge is not states.CLAIM:
                continue
            is_last = len(made) + 1 == self.attempt
            following = self.path[place + 1] if place + 1 < len(self.path) else None
            share = self.cost // self.attempt
            made.append({
                "run_id": self.id, "fence": place + 1, "number": len(made) + 1, "worker": self.worker,
                "started_at": self.moments[place], "ended_at": self.moments[place + 1] if following else None,
                "outcome": following.event.removeprefix("run.") if following else "",
                "error": run.get("error") if is_last and not self.text else None,
                "error_class": run.get("error_class", ""),
                "cost": self.cost - share * (self.attempt - 1) if is_last else share,
            })  # fmt: skip
        return made

    def archive(self) -> Row:
        pairs = [
            (Event(id=f"{fence}-1", run=str(self.id), at=at.isoformat(), kind=edge.event, data={}), _prev(fence))
            for fence, (edge, at) in enumerate(zip(self.path, self.moments, strict=True), start=1)
        ]
        last = f"{len(pairs)}-1"
        return {
            "run_id": self.id,
            "body": pack(pairs),
            "event_count": len(pairs),
            "last_id": last,
            "archived_at": self.at,
        }


def _prev(fence: int) -> str:
    return f"{fence - 1}-1" if fence > 1 else ""


def _priority(n: int) -> str:
    if n % 1_000 == 500:
        return "critical"
    return {3: "high", 8: "low"}.get(n % 20, "normal")


def _id_of(n: int, at: dt.datetime) -> uuid.UUID:
    """Return the id of run n: of version 7, like a real one, with n where those have chance."""
    return uuid.UUID(int=int(at.timestamp() * 1000) << 80 | 7 << 76 | (n % 4096) << 64 | 2 << 62 | n)
