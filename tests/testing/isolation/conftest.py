"""What the tests of the isolation check share."""

from pathlib import Path

import pytest

from harness.testing.isolation import _code
from tests.testing.isolation import library

_is_user_code = _code.is_user_code


@pytest.fixture(autouse=True)
def _library_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take `library` for an installed package, which it would be if it weren't here."""
    foreign = Path(library.__file__).name

    def is_user_code(filename: str) -> bool:
        return _is_user_code(filename) and Path(filename).name != foreign

    monkeypatch.setattr(_code, "is_user_code", is_user_code)
