"""Running a command as people do: arguments in, exit code and both outputs back."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from quotas.models import Account


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def default_account(db: None) -> Account:
    """The account that commands act for."""
    return Account.objects.get_or_create(name="default")[0]


@pytest.fixture
def manage(db: None) -> Callable[..., Ran]:
    """Return a function that runs a command in this process."""

    def run(*arguments: object) -> Ran:
        out, err, code = io.StringIO(), io.StringIO(), 0
        try:
            call_command(*map(str, arguments), stdout=out, stderr=err)
        except CommandError as error:
            code = error.returncode
            err.write(str(error))
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Ran(code, out.getvalue(), err.getvalue())

    return run
