"""Every interleaving of the protocol, of money and of a session: they hold, and each rule is needed (docs/model.md)."""

import pytest

from tests.model.__main__ import main
from tests.model.explorer import explore, render
from tests.model.models import KINDS
from tests.model.run_model import NOT_BUILT, SCENARIOS, RunModel, Scenario
from tests.model.world import Left

INTACT = [(kind, made) for kind, of in KINDS.items() for made in of.scenarios]
RULES = [(kind, rule) for kind, of in KINDS.items() for rule in of.rules]

# What the shortest way to the bug ends in, where one rule is missing.
FOUND = {
    "fence check": "P2: a fenced attempt wrote the row of another attempt",
    "hand-over script": "6.7: a queued run has two entries",
    "close duty": "liveness: nobody has anything left to do",
    "relay": "liveness: nobody has anything left to do",
    "dispatch looks first": "6.7: a queued run has two entries",
    "deliverable check": "4.6: a queued run was dispatched and has no entry",
    "dispatch's fence check": "4.6: a queued run was dispatched and has no entry",
    "takeover memory": "8.2: a run was taken over from an owner that never stood still",
    "takeover's lease check": "8.2: a run was taken over while its lease was live",
    "cancel mark": "12.1: a run went on after its cancel mark",
    "named check": "6.7: a running run has no entry",
    "owner's prev": "P4: event 2-2 is gone",
    "unknown end": "P4: event 2-2 is gone",
    "ack's fence": "6.7: a running run has no entry",
    "mended end": "P4: event 2-2 is gone",
    "settle's row count": "money: held is -2",
    "expired once": "money: held is 0, the active holds are 2",
    "hold row lock": "money 4: the hold of a running run lapsed",
    "pinned by the claim": "money 4: the hold of a running run lapsed",
    "room at the re-arm": "P3: an admission or extension made spent + held exceed the limit",
    "room at the extension": "P3: an admission or extension made spent + held exceed the limit",
    "stop at the hold": "money 6: a run goes on spending beyond its hold",
    "absolute totals": "money 5: more is stored than was spent",
    "one commit": "P3: an ended run has an open hold",
    "session slot hand-on": "P6: the slot is free, and a run is still blocked by it",
    "oldest first": "4.3: a younger run overtook an older one",
    "slot to the end": "P6: a run of the session runs without its slot",
    "place in line": "P6: two runs hold the slot of one session",
    "cancel hands on": "P6: the slot is free, and a run is still blocked by it",
}
FOUND_IN = {
    ("money", "account lock"): "money: held is 2, the active holds are 4",
    ("session", "account lock"): "P6: two runs hold the slot of one session",
}
# What has to happen somewhere, or the model would hold because nothing is in it.
DONE = (
    "API commits the run",
    "API dispatches",
    "client cancels",
    "takes entry",
    "reclaims stale entry",
    "leaves entry",
    "claims: fence",
    "may not hand back",
    "hands back: queued",
    "appends 2-1: OK",
    "appends 2-1: FENCED",
    "its event 2-2: OK",
    "its event 2-2: GAP",
    "opens the log again",
    "renews its lease",
    "the lease lapses",
    "same lapsed lease for half a lease",
    "takes over: scheduled",
    "finds the owner's process dead",
    "retry later",
    "retry now",
    "hands entry",
    "promotes",
    "reads the queued row",
    "but it is fenced",
    "its handler returns: succeeded",
    "its handler returns: cancelled",
    "acks entry",
    "acks what the index names",
    "finds an open log",
    "stores the archive",
    "deletes dead entries",
    "dies",
    "stands still",
    "wakes up",
    "FLUSHALL",
    "the call fails",
    "the answer is lost",
    "lost in a failover",
)


@pytest.mark.parametrize(("kind", "scenario"), [pytest.param(k, made, id=f"{k}: {made.name}") for k, made in INTACT])
def test_the_protocol_holds(kind, scenario):
    model = KINDS[kind].make(scenario, KINDS[kind].not_built)

    report = explore(model)

    assert report.violation is None, render(model, report.violation)
    assert report.complete
    assert report.states > (5_000 if kind == "run" else 500)
    assert report.depth >= 10
    assert report.settled > 0


@pytest.mark.parametrize(("kind", "rule"), [pytest.param(k, rule, id=f"{k}: {rule}") for k, rule in RULES])
def test_without_a_rule_the_bug_is_found(kind, rule):
    if rule == "relay" and kind == "session":
        wanted = "liveness: nobody has anything left to do"
    else:
        wanted = FOUND_IN.get((kind, rule)) or FOUND[rule]
    model = KINDS[kind].make(*KINDS[kind].without(rule))

    report = explore(model)

    assert report.violation is not None
    assert report.violation.message.startswith(wanted), render(model, report.violation)


@pytest.mark.parametrize("rule", sorted(NOT_BUILT))
def test_what_is_not_built_would_mend_what_is_found_without_it(rule):
    scenario, missing = KINDS["run"].without(rule)
    model = RunModel(scenario, missing - {rule})

    report = explore(model)

    assert report.violation is None, render(model, report.violation)


def test_everything_that_can_happen_does():
    scenarios = (
        Scenario("crash", Left(crashes=1, cancels=1), workers=1, retries="now"),
        Scenario("pause", Left(pauses=1), retries="", emits=False, late_api=False),
        Scenario("slow", Left(pauses=1, slips=1), workers=1, retries="later", emits=False, late_api=False),
        Scenario("loss", Left(calls=1, losses=1), workers=1, retries="", late_api=False),
    )
    labels = set().union(*(explore(RunModel(made)).labels for made in scenarios))

    assert [what for what in DONE if not any(what in label for label in labels)] == []


def test_by_hand_a_counterexample_is_printed_step_by_step(capsys):
    code = main(["run", "--without", "close duty"])

    lines = capsys.readouterr().out.splitlines()
    assert code == 1
    assert lines[0].startswith("BROKEN")
    assert "run/a crash: liveness: nobody has anything left to do, and it is not done" in lines
    assert any("API commits the run" in line for line in lines)
    assert any("dies: it was about to close" in line for line in lines)


def test_by_hand_what_holds_is_told_with_its_size(capsys):
    code = main(["session", "--scenario", "enqueue"])

    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("holds   session/enqueue: ")
    assert "states" in out


def test_by_hand_everything_can_be_listed_and_nonsense_is_refused(capsys):
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert main(["money", "--without", "gravity"]) == 2

    assert all(made.name in listed for made in SCENARIOS)
    assert all(rule in listed for _, rule in RULES)
