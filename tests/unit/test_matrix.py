"""`./run test`: which invocations it makes of what is on the machine and of what the caller asked for."""

import argparse
import tempfile
from pathlib import Path

import pytest

from tests import matrix
from tests.conformance import PARTS
from tests.matrix import Leg
from tests.servers import REDIS_KINDS


def places(legs: list[Leg]) -> list[tuple[str, str]]:
    return [(leg.database, leg.redis) for leg in legs]


def test_every_database_and_both_servers_run_where_all_are_there():
    legs = matrix.whole_matrix({}, "2", [])

    assert places(legs) == [("sqlite", "valkey9"), ("postgres", "valkey9"), ("mariadb", "redis7")]
    assert legs[0].arguments == ["-n", "2"]


def test_only_parts_from_the_package_index_are_needed():
    legs = matrix.whole_matrix({"mariadb": "", "redis7": "", "chromium": ""}, "2", ["-x"])

    assert places(legs) == [("sqlite", "valkey9"), ("postgres", "valkey9")]
    assert legs[0].arguments == ["-n", "2", "-x", "-m", "not browser"]


def test_mariadb_runs_beside_valkey_where_redis_is_missing():
    assert places(matrix.whole_matrix({"redis7": ""}, "2", []))[-1] == ("mariadb", "valkey9")


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        (["tests/unit"], True),
        (["tests/unit/test_matrix.py::test_x"], True),
        (["-k", "name"], True),
        (["-x", "-q"], False),
        ([], False),
    ],
)
def test_a_path_or_an_expression_is_a_choice(arguments, chosen):
    assert matrix.selects(arguments) is chosen


def test_a_choice_runs_once_for_each_database():
    options = choice(db=["postgres", "sqlite"])

    legs = matrix.chosen_legs(options, ["tests/unit"])

    assert places(legs) == [("postgres", "valkey9"), ("sqlite", "valkey9")]
    assert legs[0].arguments == ["tests/unit"]


def choice(**fields) -> argparse.Namespace:
    return argparse.Namespace(**({"db": None, "redis": None, "workers": "", "conformance": False} | fields))


def test_the_whole_suite_and_the_cells_beside_it_are_every_pair_once():
    legs, cells = matrix.planned(choice(), [], {})

    assert (len(legs), len(cells)) == (3, 12)
    assert {leg.cell for leg in [*legs, *cells]} == {(db, kind) for db in matrix.DATABASES for kind in REDIS_KINDS}


def test_conformance_alone_is_every_pair_or_those_that_are_chosen():
    assert len(matrix.planned(choice(conformance=True), [], {})[1]) == 15

    options = choice(conformance=True, db=["mariadb"], redis=["redis", "redis7", "valkey8"])
    assert places(matrix.planned(options, [], {})[1]) == [("mariadb", "redis7"), ("mariadb", "valkey8")]


def test_a_server_that_is_not_here_takes_its_cells_with_it():
    legs, cells = matrix.planned(choice(conformance=True), [], {"redis6": "", "mariadb": ""})

    assert (legs, len(cells)) == ([], 8)


def test_the_parts_of_the_conformance_suite_are_there():
    assert [part for part in PARTS if not (matrix.ROOT / part).exists()] == []


@pytest.mark.parametrize(
    ("names", "counts", "conforms"),
    [
        (["Redis 7.0.15", "MariaDB 10.11.19"], {"passed": 9}, True),
        (["Redis 7.0.15", "MariaDB 10.11.19"], {"passed": 9, "skipped": 1}, False),
        (["Redis 7.0.15", "MariaDB 10.11.19"], {"passed": 9, "failed": 1}, False),
        (["Redis 7.0.15", "MariaDB 10.11.19"], {"passed": 0}, False),
        (["Redis 8.0.2", "MariaDB 10.11.19"], {"passed": 9}, False),
        (["Redis 7.0.15"], {"passed": 9}, False),
        ([], {}, False),
    ],
)
def test_a_cell_conforms_on_the_servers_it_is_about_with_nothing_left_out(names, counts, conforms):
    leg = Leg("mariadb", "redis", [], exit=0, servers=sorted(names), counts=counts, conformance=counts)

    assert leg.conforms is conforms


@pytest.mark.parametrize(
    ("exit_code", "counts", "failed"),
    [(0, {"passed": 3}, 0), (1, {"failed": 2, "error": 1}, 3), (4, {}, 1), (5, {}, 0), (2, {"passed": 1}, 1)],
)
def test_an_invocation_that_ended_badly_counts_as_failed(exit_code, counts, failed):
    assert Leg("sqlite", "valkey", [], exit=exit_code, counts=counts).failed == failed


ONCE = """
from pathlib import Path


def test_that_fails_at_its_first_try():
    mark = Path(__file__).with_name("tried")
    tried = mark.exists()
    mark.touch()
    assert tried


def test_that_always_fails():
    assert {fails}
"""


@pytest.mark.parametrize(("fails", "failed", "unsteady"), [("True", 0, 1), ("False", 1, 0)])
def test_what_failed_is_tried_once_more_and_told(fails, failed, unsteady):
    # Here, so that the settings of the suite hold; hidden, so that nobody else collects it.
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".") as folder:
        file = Path(folder, "test_once.py")
        file.write_text(ONCE.replace("{fails}", fails), encoding="utf-8")
        leg = Leg("sqlite", "valkey9", ["-n", "0", "-p", "no:cacheprovider", str(file)])
        leg.run(quiet=True)

    assert (leg.failed > 0, len(leg.unsteady)) == (failed > 0, unsteady), leg.output[-2000:]
