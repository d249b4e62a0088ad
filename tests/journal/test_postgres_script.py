"""The server for the tests: found again while it runs, not root's, and gone when it is stopped."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / ".ci" / "postgres"


@pytest.fixture
def directory(postgres_server: str) -> Iterator[Path]:
    """A folder for a server of this test's own; asked for only where there can be one."""
    path = ROOT / "build" / f"postgres-{uuid.uuid4().hex[:8]}"
    yield path
    subprocess.run([SCRIPT, "stop", path], check=True, timeout=60)
    shutil.rmtree(path, ignore_errors=True)


def run(command: str, directory: Path) -> str:
    ended = subprocess.run(
        [SCRIPT, command, directory], capture_output=True, text=True, check=True, timeout=60
    )
    return ended.stdout.strip()


@pytest.mark.real_clock
def test_it_is_there_from_start_to_stop(directory: Path) -> None:
    """What a test run starts it also ends, and no other user reaches it meanwhile."""
    address = run("start", directory)
    assert run("start", directory) == address
    with psycopg.connect(address) as connection:
        rows = connection.execute("SELECT pg_backend_pid(), current_setting('listen_addresses')")
        [(pid, listens_on)] = rows.fetchall()
        assert listens_on == ""
        if Path("/proc/self").exists():
            assert Path(f"/proc/{pid}").stat().st_uid == os.geteuid() or os.geteuid() == 0
            assert Path(f"/proc/{pid}").stat().st_uid != 0
    run("stop", directory)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)
    run("stop", directory)  # What isn't there is stopped.


def test_a_wrong_word_is_refused() -> None:
    ended = subprocess.run([SCRIPT, "restart"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "usage: .ci/postgres start | stop" in ended.stderr
