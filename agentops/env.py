"""Typed readers of the environment. They refuse nonsense with a sentence that says what to do.

Each reader also accepts `NAME_FILE`: the path of a file that holds the value (for secrets).
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

T = TypeVar("T", int, float)

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off", ""})


def text(name: str, default: str = "") -> str:
    """Return the variable, or the stripped contents of the file named by `NAME_FILE`."""
    path = os.environ.get(f"{name}_FILE")
    if path:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{name}_FILE: cannot read {path}: {error}") from error
    return os.environ.get(name, default)


def boolean(name: str, *, default: bool) -> bool:
    raw = text(name, "1" if default else "0").strip().lower()
    if raw in TRUE:
        return True
    if raw in FALSE:
        return False
    raise ImproperlyConfigured(f"{name} must be 1 or 0, not {raw!r}.")


def _number(name: str, default: T, kind: Callable[[str], T], least: T) -> T:
    raw = text(name)
    if not raw:
        return default
    try:
        value = kind(raw)
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a number, not {raw!r}.") from None
    if not value >= least:
        raise ImproperlyConfigured(f"{name} must be at least {least}, not {raw}.")
    return value


def integer(name: str, default: int, *, least: int = 0) -> int:
    return _number(name, default, int, least)


def seconds(name: str, default: float, *, least: float = 0.05) -> float:
    return _number(name, default, float, least)


def choice(name: str, default: str, *, of: Sequence[str]) -> str:
    """Return one of a few words."""
    value = text(name, default)
    if value not in of:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(of)}, not {value!r}.")
    return value


def words(name: str, default: str = "") -> list[str]:
    """Return a comma-separated list, empty parts dropped."""
    return [part.strip() for part in text(name, default).split(",") if part.strip()]


POSTGRES = frozenset({"postgres", "postgresql"})
MYSQL = frozenset({"mysql", "mariadb"})


def database(url: str) -> dict[str, Any]:
    """Translate `DATABASE_URL` into Django's DATABASES entry (engine, names, no options).

    Shapes: `sqlite:////absolute/path`, `postgres://user:password@host:port/name`,
    `mysql://…`, `mariadb://…`. A `?host=/folder` query names a Unix socket's folder.
    """
    parts = urlsplit(url)
    name = unquote(parts.path.removeprefix("/"))
    if parts.scheme == "sqlite":
        if not name:
            raise ImproperlyConfigured("DATABASE_URL=sqlite:////path/to/file names no file.")
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name}
    if parts.scheme in POSTGRES:
        engine = "django.db.backends.postgresql"
    elif parts.scheme in MYSQL:
        engine = "django.db.backends.mysql"
    else:
        raise ImproperlyConfigured(
            f"DATABASE_URL starts with {parts.scheme!r}; use sqlite://, postgres:// or mysql://."
        )
    if not name:
        raise ImproperlyConfigured(f"DATABASE_URL={parts.scheme}://… names no database.")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    host = query.pop("host", "")
    return {
        "ENGINE": engine,
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host or parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": _tls(parts.scheme, query),
    }


TLS = {
    "postgres": {"sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey"},
    "mysql": {"ssl-ca": "ssl_ca", "ssl-cert": "ssl_cert", "ssl-key": "ssl_key"},
}


def _tls(scheme: str, query: dict[str, str]) -> dict[str, str]:
    """Return the driver's options for the query of a URL; refuse what would be ignored, least of all about TLS."""
    known = TLS["postgres" if scheme in POSTGRES else "mysql"]
    unknown = sorted(set(query) - set(known))
    if unknown:
        raise ImproperlyConfigured(
            f"DATABASE_URL: the option {unknown[0]!r} is unknown; known are host, {', '.join(known)}."
        )
    return {known[name]: value for name, value in query.items()}
