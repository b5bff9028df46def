"""The model of money: one account, a few runs with their holds, and everything that settles, expires or extends them.

Each step is one transaction as docs/money.md has it. RULES are what can be taken out. Amounts are small whole numbers:
what matters is whether there is room for none, one or two, not how much a unit is worth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step

RULES = {
    "account lock": "admission and extension read and write the account under its row lock (1.4, money 1, 6)",
    "settle's row count": "a hold is closed once: the ledger follows only if the UPDATE hit its row (money 3)",
    "expired once": "an expired hold has left `held` already: its settlement does not lower it again (money 3)",
    "hold row lock": "expiry changes only holds that are still lapsed when it writes (money 4)",
    "pinned by the claim": "the hold of a running run does not lapse (money 4)",
    "room at the re-arm": "an expired hold counts again only where there is room for it (money 4)",
    "room at the extension": "a hold grows only where there is room for it (money 6)",
    "stop at the hold": "a run that may not extend its hold is stopped (money 6)",
    "absolute totals": "the beat writes totals, so that repeating it changes nothing (money 5)",
    "one commit": "the hold is closed in the transaction that ends the run (money 3)",
}
ALL = frozenset(RULES)
OPEN_HOLD = frozenset({"active", "expired"})


class Run(NamedTuple):
    """A run and its hold. `burnt`: the attempt's real cost; `stored`: what the beat wrote; `told`: what it trusts."""

    state: str = "new"
    hold: str = ""
    amount: int = 0
    lapsed: bool = False  # expires_at is past; None while pinned, so never then
    pinned: bool = False
    burnt: int = 0
    stored: int = 0
    told: int = 0
    before: int = 0  # the cost of earlier attempts, as the run's row has it
    attempt: int = 1
    lines: int = 0  # ledger lines of the settle kind
    booked: int = 0
    seen: tuple[int, int] | None = None  # spent and held as read, where nothing locks them
    doomed: bool = False  # read as lapsed by an expiry that has not written yet


class Purse(NamedTuple):
    spent: int
    held: int
    runs: tuple[Run, ...]
    crashes: int
    repeats: int
    oops: str = ""


@dataclass(frozen=True)
class Scenario:
    """What is explored. `repeats`: calls that are made again although they were done (a lost answer, a late settle)."""

    name: str
    runs: int = 2
    limit: int = 4
    estimate: int = 2
    burn: int = 3  # units an attempt may cost
    attempts: int = 2
    crashes: int = 1
    repeats: int = 1


SCENARIOS = (
    Scenario("two runs, room for both"),
    Scenario("two runs, room for one", limit=3, burn=4),
    Scenario("three runs, room for two", runs=3, attempts=1),
    Scenario("three small runs", runs=3, limit=3, estimate=1, burn=2, attempts=1),
    Scenario("three runs that are tried twice", runs=3, crashes=0, repeats=0),
)
LARGE = (Scenario("large: three runs", runs=3, limit=5), Scenario("large: two crashes", burn=4, crashes=2, repeats=2))
SHOWN_BY = dict.fromkeys(RULES, SCENARIOS[0])


class MoneyModel:
    """Money under a scenario, without the rules named in `without`."""

    def __init__(self, scenario: Scenario, without: frozenset[str] = frozenset()) -> None:
        self.scenario = scenario
        self.rules = ALL - without
        self.name = f"money/{scenario.name}"

    def initial(self) -> Purse:
        made = self.scenario
        return Purse(0, 0, (Run(),) * made.runs, made.crashes, made.repeats)

    def steps(self, state: Purse) -> Iterator[Step]:
        for number, run in enumerate(state.runs):
            name = f"run {number + 1}"
            match run.state:
                case "new":
                    yield from self._submit(state, number, run, name)
                case "queued":
                    yield from self._queued(state, number, run, name)
                case "running" | "extending":
                    yield from self._running(state, number, run, name)
                case "ending":
                    yield Step(f"{name}: its hold is closed", self._closed(state, number, run, started=True))
            yield from self._expiry(state, number, run, name)
            if state.repeats and run.state == "ended" and run.lines:
                late = self._closed(state, number, run, started=True)._replace(repeats=state.repeats - 1)
                yield Step(f"{name}: a late settlement comes once more", late, fault=True)

    # -- admission and extension ---------------------------------------------------------------------------------------
    def _submit(self, purse: Purse, number: int, run: Run, name: str) -> Iterator[Step]:
        """Reserve at the door: expired holds leave the sum first, then there must be room (money 1)."""
        if "account lock" not in self.rules and run.seen is None:
            seen = run._replace(seen=(purse.spent, purse.held))
            yield Step(f"{name}: submit reads the account", _put(purse, number, seen))
            return
        if run.seen is None:
            purse = self._expire_lapsed(purse)
        spent, held = run.seen or (purse.spent, purse.held)
        if spent + held + self.scenario.estimate > self.scenario.limit:
            yield Step(f"{name}: 402, no room", _put(purse, number, run._replace(state="refused", seen=None)))
            return
        amount = self.scenario.estimate
        queued = run._replace(state="queued", hold="active", amount=amount, seen=None)
        after = _put(purse, number, queued)._replace(held=held + amount)
        yield Step(f"{name}: accepted, {amount} held", self._admitted(after))

    def _extend(self, purse: Purse, number: int, run: Run, name: str) -> Iterator[Step]:
        """Extend the hold by one unit, account first, without what lapsed; no room: the run is stopped (money 6)."""
        if "account lock" not in self.rules and run.seen is None:
            seen = run._replace(seen=(purse.spent, purse.held))
            yield Step(f"{name}: extension reads the account", _put(purse, number, seen))
            return
        if run.seen is None:
            purse = self._expire_lapsed(purse)
        spent, held = run.seen or (purse.spent, purse.held)
        run = run._replace(seen=None)
        if spent + held + 1 <= self.scenario.limit or "room at the extension" not in self.rules:
            after = _put(purse, number, run._replace(amount=run.amount + 1))._replace(held=held + 1)
            yield Step(f"{name}: its hold is extended to {run.amount + 1}", self._admitted(after))
        elif "stop at the hold" in self.rules:
            yield self._end(_put(purse, number, run), number, run, f"{name}: budget_exceeded, stopped")
        else:
            yield Step(f"{name}: no room to extend", _put(purse, number, run._replace(state="extending")))

    def _admitted(self, purse: Purse) -> Purse:
        """Admission and extension never make spent + held exceed the limit (P3). Counted from rows, not from caches."""
        counted = sum(run.booked for run in purse.runs) + _active(purse)
        if counted > self.scenario.limit and not purse.oops:
            return purse._replace(oops="P3: an admission or extension made spent + held exceed the limit")
        return purse

    # -- the life of a run ---------------------------------------------------------------------------------------------
    def _queued(self, purse: Purse, number: int, run: Run, name: str) -> Iterator[Step]:
        started = run.attempt > 1
        if run.hold == "active":
            pinned = run._replace(state="running", pinned="pinned by the claim" in self.rules)
            pinned = pinned._replace(lapsed=run.lapsed and not pinned.pinned)
            yield Step(f"{name}: claimed, its hold is pinned", _put(purse, number, pinned))
        elif self._has_room(fresh := self._expire_lapsed(purse), run.amount):
            armed = run._replace(state="running", hold="active", lapsed=False, pinned=True)
            after = _put(fresh, number, armed)._replace(held=fresh.held + run.amount)
            yield Step(f"{name}: claimed, its expired hold counts again", self._admitted(after))
        else:
            refused = self._closed(_put(fresh, number, run._replace(state="ended")), number, None, started=started)
            yield Step(f"{name}: failed quota_exceeded at the claim", refused)
        cancelled = self._closed(_put(purse, number, run._replace(state="ended")), number, None, started=started)
        yield Step(f"{name}: cancelled while it waits", cancelled)

    def _has_room(self, purse: Purse, amount: int) -> bool:
        room = purse.spent + purse.held + amount <= self.scenario.limit
        return room or "room at the re-arm" not in self.rules

    def _running(self, purse: Purse, number: int, run: Run, name: str) -> Iterator[Step]:
        over = run.before + run.burnt > run.amount
        if over and run.state == "running":
            yield from self._extend(purse, number, run, name)
        elif run.burnt < self.scenario.burn:
            burnt = run._replace(burnt=run.burnt + 1)
            yield Step(f"{name}: costs one more unit", _put(purse, number, burnt))
        if run.stored != run.burnt or run.told != run.burnt:
            yield from self._beat(purse, number, run, name)
        if run.seen is None:
            yield self._end(purse, number, run, f"{name}: ends")
            if run.attempt < self.scenario.attempts:
                yield Step(f"{name}: fails, to be tried again", self._again(purse, number, run, run.burnt))
        if purse.crashes:
            purse = purse._replace(crashes=purse.crashes - 1)
            if run.attempt < self.scenario.attempts:
                lost = self._again(purse, number, run, run.stored)
                yield Step(f"{name}: its worker dies, it is taken over to run again", lost, fault=True)
            else:
                lost = run._replace(burnt=run.stored, seen=None)  # what came after the last beat is not booked
                step = self._end(_put(purse, number, lost), number, lost, f"{name}: its worker dies, it is taken over")
                yield step._replace(fault=True)

    def _beat(self, purse: Purse, number: int, run: Run, name: str) -> Iterator[Step]:
        total = run.burnt if "absolute totals" in self.rules else run.stored + run.burnt - run.told
        stored = run._replace(stored=total, told=run.burnt)
        yield Step(f"{name}: the beat stores {total}", _put(purse, number, stored))
        if purse.repeats:
            unsure = _put(purse, number, run._replace(stored=total))._replace(repeats=purse.repeats - 1)
            yield Step(f"{name}: the beat stores {total}, its answer is lost", unsure, fault=True)

    def _again(self, purse: Purse, number: int, run: Run, cost: int) -> Purse:
        """Back to the queue with another attempt: what was spent stays on the row, and the hold may lapse again."""
        back = run._replace(
            state="queued",
            attempt=run.attempt + 1,
            before=run.before + cost,
            burnt=0,
            stored=0,
            told=0,
            pinned=False,
            seen=None,
        )
        return _put(purse, number, back)

    # -- settle and expire ---------------------------------------------------------------------------------------------
    def _end(self, purse: Purse, number: int, run: Run, label: str) -> Step:
        if "one commit" not in self.rules:
            return Step(label, _put(purse, number, run._replace(state="ending")))
        ended = _put(purse, number, run._replace(state="ended"))
        return Step(f"{label}, settled at {run.before + run.burnt}", self._closed(ended, number, None, started=True))

    def _closed(self, purse: Purse, number: int, run: Run | None, *, started: bool) -> Purse:
        """Settle by what was really spent, or release what never started (money 3)."""
        run = purse.runs[number] if run is None else run
        if run.hold not in OPEN_HOLD and "settle's row count" in self.rules:
            return purse
        cost, held, spent = run.before + run.burnt, purse.held, purse.spent
        if run.hold != "expired" or "expired once" not in self.rules:
            held -= run.amount
        closed = run._replace(state="ended", hold="released", pinned=False, lapsed=False)
        if started:
            spent += cost
            closed = closed._replace(hold="settled", lines=run.lines + 1, booked=run.booked + cost)
        return _put(purse, number, closed)._replace(held=held, spent=spent)

    def _expiry(self, purse: Purse, number: int, run: Run, name: str) -> Iterator[Step]:
        """Time passes a hold nobody looks after; the sweeper moves it from active to expired (money 4)."""
        if run.hold != "active":
            return
        if not run.pinned and not run.lapsed:
            yield Step(f"{name}: the time of its hold passes", _put(purse, number, run._replace(lapsed=True)))
        if "hold row lock" in self.rules:
            if run.lapsed:
                yield Step(f"{name}: the sweeper expires its hold", _expired(purse, number))
        elif run.lapsed and not run.doomed:
            yield Step(f"{name}: the sweeper reads a lapsed hold", _put(purse, number, run._replace(doomed=True)))
        elif run.doomed:
            yield Step(f"{name}: the sweeper writes that the hold expired", _expired(purse, number))

    def _expire_lapsed(self, purse: Purse) -> Purse:
        for number, run in enumerate(purse.runs):
            if run.hold == "active" and run.lapsed:
                purse = _expired(purse, number)
        return purse

    # -- what has to hold ----------------------------------------------------------------------------------------------
    def broken(self, state: Purse) -> str:
        if state.oops:
            return state.oops
        if state.held != _active(state):
            return f"money: held is {state.held}, the active holds are {_active(state)}"
        if state.spent != sum(run.booked for run in state.runs):
            return "money: spent is not the sum of the ledger"
        for run in state.runs:
            wrong = self._wrong(run)
            if wrong:
                return wrong
        return ""

    def _wrong(self, run: Run) -> str:
        if run.lines > 1:
            return "P3: a run was settled twice"
        if run.state in {"ended", "ending"} and run.hold in OPEN_HOLD:
            return "P3: an ended run has an open hold"
        if run.state in {"running", "extending"} and run.hold != "active":
            return "money 4: the hold of a running run lapsed"
        if run.stored > run.burnt:
            return "money 5: more is stored than was spent"
        if run.lines and run.booked != run.before + run.burnt:
            return "money 3: a run was not settled at what its attempts cost"
        if run.before + run.burnt > run.amount + 1:
            return "money 6: a run goes on spending beyond its hold"
        return ""

    def is_settled(self, state: Purse) -> bool:
        return all(run.state in {"ended", "refused"} for run in state.runs)

    def canonical(self, state: Purse) -> Purse:
        """All runs have the same estimate, so they are interchangeable. What an ended run was is blanked."""
        blanked = [run._replace(attempt=1, stored=0, told=0) if run.state == "ended" else run for run in state.runs]
        return state._replace(runs=tuple(sorted(blanked, key=repr)))

    def describe(self, state: Purse) -> dict[str, str]:
        told = {"account": f"limit {self.scenario.limit}, spent {state.spent}, held {state.held}"}
        for number, run in enumerate(state.runs, 1):
            marks = " ".join(name for name in ("pinned", "lapsed") if getattr(run, name))
            hold = f", hold of {run.amount} {run.hold} {marks}".rstrip() if run.hold else ""
            cost = f", cost {run.before + run.burnt}, stored {run.before + run.stored}" if run.hold else ""
            lines = f", {run.lines} ledger lines of {run.booked}" if run.lines else ""
            told[f"run {number}"] = f"{run.state} attempt {run.attempt}{hold}{cost}{lines}"
        return told


def _put(purse: Purse, number: int, run: Run) -> Purse:
    return purse._replace(runs=(*purse.runs[:number], run, *purse.runs[number + 1 :]))


def _active(purse: Purse) -> int:
    return sum(run.amount for run in purse.runs if run.hold == "active")


def _expired(purse: Purse, number: int) -> Purse:
    run = purse.runs[number]
    expired = run._replace(hold="expired", lapsed=False, doomed=False)
    return _put(purse, number, expired)._replace(held=purse.held - run.amount)
