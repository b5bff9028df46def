"""agentops/env.py: what each reader takes, and the sentence with which it refuses."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from agentops import env

NAME = "AGENTOPS_TEST_VALUE"


def test_a_file_names_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from the file\n")
    monkeypatch.setenv(NAME, "from the variable")
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "secret"))

    assert env.text(NAME) == "from the file"


def test_an_unreadable_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "absent"))

    with pytest.raises(ImproperlyConfigured, match=f"{NAME}_FILE: cannot read .*absent"):
        env.text(NAME)


@pytest.mark.parametrize(
    ("raw", "value"),
    [("1", True), ("TRUE", True), (" yes ", True), ("on", True), ("0", False), ("no", False), ("", False)],
)
def test_booleans(monkeypatch: pytest.MonkeyPatch, raw: str, value: bool) -> None:
    monkeypatch.setenv(NAME, raw)

    assert env.boolean(NAME, default=not value) is value


def test_a_boolean_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "maybe")

    with pytest.raises(ImproperlyConfigured, match=f"{NAME} must be 1 or 0, not 'maybe'"):
        env.boolean(NAME, default=True)


def test_defaults_without_the_variable() -> None:
    assert env.text(NAME, "x") == "x"
    assert env.boolean(NAME, default=True) is True
    assert env.integer(NAME, 7) == 7
    assert env.seconds(NAME, 1.5) == 1.5
    assert env.words(NAME, "a,b") == ["a", "b"]


def test_an_empty_number_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "")

    assert env.integer(NAME, 7) == 7


@pytest.mark.parametrize("raw", ["x", "1.5", "1e3", "0x10"])
def test_what_is_no_integer(monkeypatch: pytest.MonkeyPatch, raw: str) -> None:
    monkeypatch.setenv(NAME, raw)

    with pytest.raises(ImproperlyConfigured, match=f"{NAME} must be a number, not '{raw}'"):
        env.integer(NAME, 7)


@pytest.mark.parametrize("raw", ["-1", "0", "nan"])
def test_seconds_out_of_range(monkeypatch: pytest.MonkeyPatch, raw: str) -> None:
    monkeypatch.setenv(NAME, raw)

    with pytest.raises(ImproperlyConfigured, match=f"{NAME} must be at least 0.05, not {raw}"):
        env.seconds(NAME, 1.0)


def test_words_drop_what_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, " a, ,b ,")

    assert env.words(NAME) == ["a", "b"]


def test_database_of_a_file() -> None:
    assert env.database("sqlite:////data/a%20b%23/x.sqlite3") == {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "/data/a b#/x.sqlite3",
    }


def test_database_of_a_server() -> None:
    assert env.database("postgres://me:p%40ss@db.example:6432/ops") == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "ops",
        "USER": "me",
        "PASSWORD": "p@ss",
        "HOST": "db.example",
        "PORT": "6432",
        "OPTIONS": {},
    }


def test_tls_options_reach_the_driver() -> None:
    assert env.database("postgres://db/ops?sslmode=require")["OPTIONS"] == {"sslmode": "require"}
    assert env.database("mysql://db/ops?ssl-ca=%2Fca.pem")["OPTIONS"] == {"ssl_ca": "/ca.pem"}


def test_an_option_that_would_be_ignored_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="sslmod"):
        env.database("postgres://db/ops?sslmod=require")


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_database_behind_a_socket(scheme: str) -> None:
    entry = env.database(f"{scheme}://root@localhost/ops?host=/run/my.sock")

    assert entry["ENGINE"] == "django.db.backends.mysql"
    assert entry["HOST"] == "/run/my.sock"
    assert entry["PORT"] == ""


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("oracle://x/y", "starts with 'oracle'"),
        ("ops.sqlite3", "starts with ''"),
        ("postgres://host", "names no database"),
        ("sqlite://", "names no file"),
    ],
)
def test_a_database_that_cannot_be_meant(url: str, sentence: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=sentence):
        env.database(url)
