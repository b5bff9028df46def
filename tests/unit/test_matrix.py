"""`./run test`: which invocations it makes of what is on the machine and of what the caller asked for."""

import argparse

import pytest

from tests import matrix
from tests.matrix import Leg


def places(legs: list[Leg]) -> list[tuple[str, str]]:
    return [(leg.database, leg.redis) for leg in legs]


def test_every_database_and_both_servers_run_where_all_are_there():
    legs = matrix.whole_matrix({}, "2", [])

    assert places(legs) == [("sqlite", "valkey"), ("postgres", "valkey"), ("mariadb", "redis")]
    assert legs[0].arguments == ["-n", "2"]


def test_only_parts_from_the_package_index_are_needed():
    legs = matrix.whole_matrix({"mariadb": "", "redis": "", "chromium": ""}, "2", ["-x"])

    assert places(legs) == [("sqlite", "valkey"), ("postgres", "valkey")]
    assert legs[0].arguments == ["-n", "2", "-x", "-m", "not browser"]


def test_mariadb_runs_beside_valkey_where_redis_is_missing():
    assert places(matrix.whole_matrix({"redis": ""}, "2", []))[-1] == ("mariadb", "valkey")


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
    options = argparse.Namespace(db=["postgres", "sqlite"], redis="valkey", workers="")

    legs = matrix.chosen_legs(options, ["tests/unit"])

    assert places(legs) == [("postgres", "valkey"), ("sqlite", "valkey")]
    assert legs[0].arguments == ["tests/unit"]


@pytest.mark.parametrize(
    ("exit_code", "counts", "failed"),
    [(0, {"passed": 3}, 0), (1, {"failed": 2, "error": 1}, 3), (4, {}, 1), (5, {}, 0), (2, {"passed": 1}, 1)],
)
def test_an_invocation_that_ended_badly_counts_as_failed(exit_code, counts, failed):
    assert Leg("sqlite", "valkey", [], exit=exit_code, counts=counts).failed == failed
