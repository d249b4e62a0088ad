"""The two databases that a journal can be in, for tests that hold for both."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.journal import _sqlite

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / ".ci" / "postgres"
ADDRESS = "HARNESS_POSTGRES_URL"


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server: the one that runs for the tests, or one of our own.

    Where a gate runs the tests (``HARNESS_POSTGRES=required``) it is never skipped.
    """
    if address := os.environ.get(ADDRESS):
        yield address
        return
    # Not below pytest's folder, which no other user may enter, as the server's has to.
    directory = ROOT / "build" / f"postgres-{uuid.uuid4().hex[:8]}"
    started = subprocess.run(
        [SCRIPT, "start", directory], capture_output=True, text=True, check=False, timeout=100
    )
    if started.returncode and os.environ.get("HARNESS_POSTGRES") != "required":
        pytest.skip(f"no PostgreSQL server: {started.stderr.strip()}")
    try:
        assert not started.returncode, started.stderr
        yield started.stdout.strip()
    finally:
        subprocess.run([SCRIPT, "stop", directory], check=True, timeout=60)
        shutil.rmtree(directory, ignore_errors=True)


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
