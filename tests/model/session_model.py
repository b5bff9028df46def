"""The model of a session: several runs, one slot, and whoever empties the slot hands it on (protocol 4.3).

A step is one transaction or one dispatch. What the run model shows of a single run (fence, log, streams) is left out:
here a run has an entry or has none. RULES are what can be taken out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step

RULES = {
    "session slot hand-on": "whoever empties the slot gives it to the oldest blocked run in the same commit (4.3)",
    "account lock": "a submit reads the session and writes its place under the account's lock (1.4, 4.3)",
    "oldest first": "of several blocked runs the oldest gets the slot (4.3)",
    "slot to the end": "a run keeps its slot until it has ended, also between two attempts (4.3)",
    "place in line": "a run that finds the session busy is blocked until the slot is its own (4.3)",
    "cancel hands on": "a cancel of the holder empties the slot and hands it on as well (4.3, 12.1)",
    "relay": "a successor whose dispatch was lost is dispatched by the sweeper (9, 10)",
}
ALL = frozenset(RULES)
OPEN = frozenset({"scheduled", "queued", "running"})


class Run(NamedTuple):
    """A run of the session. `line` is its number there; `due`: not before that time, False while it is to come."""

    state: str = "new"
    line: int = 0
    slot: bool = False
    blocked: bool = False
    due: bool = True
    marked: bool = False
    entry: bool = False
    attempt: int = 1
    seen: str = ""  # what a submit read, where nothing locks it: busy or free


class Session(NamedTuple):
    runs: tuple[Run, ...]
    taken: int  # the highest number in line that was given
    crashes: int
    cancels: int
    oops: str = ""


@dataclass(frozen=True)
class Scenario:
    """What is explored. `on_busy` says for each run how it is submitted; `delayed` runs have a time to wait for."""

    name: str
    on_busy: tuple[str, ...] = ("enqueue", "enqueue", "enqueue")
    delayed: frozenset[int] = frozenset()
    attempts: int = 2
    crashes: int = 1
    cancels: int = 1


SCENARIOS = (
    Scenario("enqueue"),
    Scenario("enqueue and replace", ("enqueue", "enqueue", "replace")),
    Scenario("replace twice", ("enqueue", "replace", "replace")),
    Scenario("replace and reject", ("enqueue", "replace", "reject")),
    Scenario("two of them delayed", delayed=frozenset({0, 1})),
    Scenario("four runs", ("enqueue",) * 4, attempts=1),
)
LARGE = (
    Scenario("large: four runs, two faults", ("enqueue", "replace", "enqueue", "replace"), crashes=2, cancels=2),
    Scenario("large: five runs", ("enqueue",) * 5, crashes=2, cancels=2),
)
SHOWN_BY = dict.fromkeys(RULES, SCENARIOS[0])


class SessionModel:
    """One session under a scenario, without the rules named in `without`."""

    def __init__(self, scenario: Scenario, without: frozenset[str] = frozenset()) -> None:
        self.scenario = scenario
        self.rules = ALL - without
        self.name = f"session/{scenario.name}"

    def initial(self) -> Session:
        made = self.scenario
        runs = tuple(Run(due=number not in made.delayed) for number in range(len(made.on_busy)))
        return Session(runs, 0, made.crashes, made.cancels)

    def steps(self, state: Session) -> Iterator[Step]:
        for number, run in enumerate(state.runs):
            name = f"run {number + 1}"
            if run.state == "new":
                yield from self._submit(state, number, run, name)
            elif run.state == "scheduled":
                yield from self._scheduled(state, number, run, name)
            elif run.state == "queued":
                yield from self._queued(state, number, run, name)
            elif run.state == "running":
                yield from self._running(state, number, run, name)
            if state.cancels and run.state in OPEN and not run.marked:
                yield self._cancel(state._replace(cancels=state.cancels - 1), number, run, name)
        yield from self._session_duty(state)

    # -- submit --------------------------------------------------------------------------------------------------------
    def _submit(self, session: Session, number: int, run: Run, name: str) -> Iterator[Step]:
        busy = any(other.slot or other.blocked for other in session.runs)
        if "account lock" not in self.rules:
            if not run.seen:
                seen = run._replace(seen="busy" if busy else "free")
                yield Step(f"{name}: submit finds the session {seen.seen}", _put(session, number, seen))
                return
            busy = run.seen == "busy"
        on_busy = self.scenario.on_busy[number]
        if busy and on_busy == "reject":
            yield Step(f"{name}: 409, the session is busy", _put(session, number, run._replace(state="refused")))
            return
        if busy and on_busy == "replace":
            session = self._replaced(session)
            busy = any(other.slot or other.blocked for other in session.runs)
        session = session._replace(taken=session.taken + 1)
        blocked = busy and "place in line" in self.rules
        state = "scheduled" if blocked or not run.due else "queued"
        placed = run._replace(state=state, line=session.taken, blocked=blocked, slot=not blocked, seen="")
        where = "blocked" if blocked else "holds the slot"
        yield from self._dispatched(_put(session, number, placed), number, f"{name}: submitted ({on_busy}), {where}")

    def _replaced(self, session: Session) -> Session:
        """Cancel whoever waits; a running holder is only marked, and the new run waits for its end."""
        for number, run in enumerate(session.runs):
            if run.state == "running":
                session = _put(session, number, run._replace(marked=True))
            elif run.state in OPEN:
                session = _put(session, number, _over(run))
        return session

    def _dispatched(self, session: Session, number: int, label: str) -> Iterator[Step]:
        """After the commit a run that is queued now gets its entry, unless the process dies before that."""
        queued = session.runs[number].state == "queued"
        after = _put(session, number, session.runs[number]._replace(entry=True)) if queued else session
        yield Step(label, after)
        if queued and session.crashes:
            dead = session._replace(crashes=session.crashes - 1)
            yield Step(f"{label}, and the process dies before the dispatch", dead, fault=True)

    # -- the life of a run ---------------------------------------------------------------------------------------------
    def _scheduled(self, session: Session, number: int, run: Run, name: str) -> Iterator[Step]:
        if not run.due:
            yield Step(f"{name}: its time has come", _put(session, number, run._replace(due=True)))
        elif not run.blocked:
            promoted = _put(session, number, run._replace(state="queued"))
            yield from self._dispatched(promoted, number, f"{name}: promoted")

    def _queued(self, session: Session, number: int, run: Run, name: str) -> Iterator[Step]:
        if run.entry:
            yield Step(f"{name}: claimed", _put(session, number, run._replace(state="running", entry=False)))
        elif "relay" in self.rules:
            yield Step(f"{name}: relayed", _put(session, number, run._replace(entry=True)))

    def _running(self, session: Session, number: int, run: Run, name: str) -> Iterator[Step]:
        yield from self._ended(session, number, f"{name}: ends")
        again = run.attempt < self.scenario.attempts and not run.marked
        if again:
            yield from self._again(session, number, run, f"{name}: fails, to be tried again")
        if session.crashes:
            session = session._replace(crashes=session.crashes - 1)
            if again:
                lost = self._again(session, number, run, f"{name}: its worker dies, taken over to run again")
            else:
                lost = self._ended(session, number, f"{name}: its worker dies, taken over")
            yield from (step._replace(fault=True) for step in lost)

    def _again(self, session: Session, number: int, run: Run, label: str) -> Iterator[Step]:
        keeps = "slot to the end" in self.rules
        back = run._replace(state="scheduled", attempt=run.attempt + 1, due=False, slot=keeps)
        session = _put(session, number, back)
        if keeps:
            yield Step(label, session)
        else:
            yield from self._handed_on(session, label)

    def _cancel(self, session: Session, number: int, run: Run, name: str) -> Step:
        if run.state == "running":
            return Step(f"{name}: marked for cancel", _put(session, number, run._replace(marked=True)))
        after = _put(session, number, _over(run))
        if run.slot and "cancel hands on" in self.rules:
            after, _ = self._hand_on(after)
        return Step(f"{name}: cancelled while it waits", after)

    def _ended(self, session: Session, number: int, label: str) -> Iterator[Step]:
        yield from self._handed_on(_put(session, number, _over(session.runs[number])), label)

    # -- the slot ------------------------------------------------------------------------------------------------------
    def _handed_on(self, session: Session, label: str) -> Iterator[Step]:
        after, heir = self._hand_on(session)
        if heir is None:
            yield Step(label, after)
        else:
            yield from self._dispatched(after, heir, f"{label}, run {heir + 1} gets the slot")

    def _hand_on(self, session: Session) -> tuple[Session, int | None]:
        if "session slot hand-on" not in self.rules:
            return session, None
        return self._given(session)

    def _given(self, session: Session) -> tuple[Session, int | None]:
        """Give the empty slot to the next in line: queued, or scheduled still if its own time is to come."""
        line = [(run.line, number) for number, run in enumerate(session.runs) if run.blocked]
        if not line:
            return session, None
        heir = (min(line) if "oldest first" in self.rules else max(line))[1]
        run = session.runs[heir]
        oops = "4.3: a younger run overtook an older one of its session" if heir != min(line)[1] else ""
        state = "queued" if run.due else "scheduled"
        after = _put(session, heir, run._replace(state=state, blocked=False, slot=True))
        return after._replace(oops=after.oops or oops), heir

    def _session_duty(self, session: Session) -> Iterator[Step]:
        """The sweeper's second look: a blocked run while nobody holds the slot."""
        if not any(run.slot for run in session.runs) and any(run.blocked for run in session.runs):
            after, heir = self._given(session)
            if heir is not None:
                yield from self._dispatched(after, heir, f"the sweeper gives the slot to run {heir + 1}")

    # -- what has to hold ----------------------------------------------------------------------------------------------
    def broken(self, state: Session) -> str:
        holders = [run for run in state.runs if run.slot]
        blocked = [run for run in state.runs if run.blocked]
        if state.oops:
            return state.oops
        if len(holders) > 1:
            return "P6: two runs hold the slot of one session"
        if sum(run.state == "running" for run in state.runs) > 1:
            return "P6: two runs of one session run at once"
        if any(run.state in {"queued", "running"} and not run.slot for run in state.runs):
            return "P6: a run of the session runs without its slot"
        if blocked and not holders:
            return "P6: the slot is free, and a run is still blocked by it"
        if any(run.line < holder.line for run in blocked for holder in holders):
            return "4.3: a younger run overtook an older one of its session"
        return ""

    def is_settled(self, state: Session) -> bool:
        return all(run.state in {"ended", "refused"} for run in state.runs)

    def canonical(self, state: Session) -> Session:
        return state

    def describe(self, state: Session) -> dict[str, str]:
        told = {}
        for number, run in enumerate(state.runs, 1):
            marks = [name for name in ("slot", "blocked", "marked", "entry") if getattr(run, name)]
            marks += [] if run.due else ["not due"]
            place = f"place {run.line}, " if run.line else ""
            told[f"run {number}"] = f"{run.state}, {place}attempt {run.attempt} {' '.join(marks)}".rstrip()
        return told


def _put(session: Session, number: int, run: Run) -> Session:
    return session._replace(runs=(*session.runs[:number], run, *session.runs[number + 1 :]))


def _over(run: Run) -> Run:
    return run._replace(state="ended", slot=False, blocked=False, marked=False, entry=False, due=True, attempt=1)
