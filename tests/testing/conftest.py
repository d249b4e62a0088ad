"""What the tests of the objects that runs share have in common."""

from pathlib import Path

import pytest

from harness.runs._frames import is_user_code
from tests.testing.isolation import library


@pytest.fixture(autouse=True)
def _library_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take `library` for an installed package, which it would be if it weren't here."""
    foreign = Path(library.__file__).name

    def is_users(filename: str) -> bool:
        return is_user_code(filename) and Path(filename).name != foreign

    monkeypatch.setattr("harness.testing._users_code.is_user_code", is_users)
