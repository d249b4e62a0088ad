"""The server for the tests: shared, not root's, on no port, and gone with what it was for."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.support import postgres

PROGRAM = """
import sys
from tests.support import postgres
postgres.name_this_run()
folder = postgres.folder_of_this_run()
print(folder, postgres.address_of(folder), flush=True)
sys.stdin.read()
if "stop" in sys.argv:
    postgres.stop(folder)
"""


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.parametrize("word", ["stop", "be killed"])
def test_it_goes_with_the_test_run(postgres_server: str, word: str) -> None:
    """What a test run starts it also ends, even if nobody is left to say so."""
    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, word],
        cwd=postgres.ROOT,
        env={name: value for name, value in os.environ.items() if name != postgres.RUN},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout is not None
        folder, address = run.stdout.readline().split()
        with psycopg.connect(address) as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
        if word == "be killed":
            run.kill()
    while Path(folder).exists():  # pytest-timeout ends what would never end.
        time.sleep(0.05)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)


def test_it_is_shared_and_no_other_user_reaches_it(postgres_server: str) -> None:
    if "HARNESS_POSTGRES_URL" not in os.environ:
        assert postgres.address_of(postgres.folder_of_this_run()) == postgres_server
        with psycopg.connect(postgres_server) as connection:
            rows = connection.execute(
                "SELECT current_setting('listen_addresses'), "
                "current_setting('unix_socket_directories')"
            )
            [(listens_on, sockets)] = rows.fetchall()
        assert listens_on == ""
        assert Path(sockets).stat().st_mode & 0o777 == 0o700
        assert Path(sockets).stat().st_uid != 0
