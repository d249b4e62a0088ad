"""The same over Ray itself, which is started once for all of these tests.

Nearly everything is tested without it, in `test_ray_cluster`; here is what Ray could spoil.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import harness
from harness import current_run
from harness.cluster import RayCluster
from harness.errors import ClusterError, JournalError
from harness.fanout import Results
from harness.journal import open_journal, read_journal
from harness.policies import Attempt, BestEffort, Retry
from harness.runs import Event
from tests.scale import FULL, PATIENCE_SECONDS, scaled

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.real_clock,
    pytest.mark.xdist_group("ray"),
    # Ray's own.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """The address of a cluster on this machine; skipped without Ray, but never where a gate runs.

    See ``HARNESS_POSTGRES`` in `tests.journal.conftest`; here it is ``HARNESS_RAY=required``.
    """
    if find_spec("ray") is None:
        says = "Ray is not installed; run: pip install 'trio-harness[ray]'"
        if os.environ.get("HARNESS_RAY") == "required" or os.environ.get("CI") == "true":
            pytest.fail(says)
        pytest.skip(says)
    from harness.cluster import _over_ray  # noqa: PLC0415

    _over_ray.keep_others_out()
    from harness.cluster._over_ray import _transport  # noqa: PLC0415

    _transport.start_here(cpus=2, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
    try:
        yield _transport.ray.get_runtime_context().gcs_address
    finally:
        _transport.ray.shutdown()


async def test_the_thread_that_starts_ray_lives_as_long_as_the_cluster(
    ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it, Linux would kill what Ray has started. A start that takes too long is made again."""
    from harness.cluster._over_ray import _transport  # noqa: PLC0415

    started_in: list[threading.Thread] = []
    shut_down: list[int] = []

    def init(address: str, **_: Any) -> None:
        started_in.append(threading.current_thread())
        if len(started_in) == 1:
            raise Exception("The current node timed out during startup.")

    fake = SimpleNamespace(
        is_initialized=lambda: False,
        init=init,
        shutdown=lambda: shut_down.append(len(started_in)),
        get_runtime_context=lambda: SimpleNamespace(gcs_address="127.0.0.1:1"),
        remote=lambda **_: lambda actor: actor,
        method=lambda **_: lambda function: function,
    )
    monkeypatch.setattr(_transport, "ray", fake)
    async with _transport.open_transport(None, workers=1, cpus_per_worker=1, runtime_env=None):
        monkeypatch.setattr("trio._core._thread_cache.IDLE_TIMEOUT", 0)
        others = {await trio.to_thread.run_sync(threading.current_thread) for _ in range(2)}
        assert shut_down == [1]
        _, starter = started_in
        assert starter not in others
        assert starter.is_alive()
    await trio.to_thread.run_sync(starter.join, PATIENCE_SECONDS)
    assert not starter.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cluster_that_is_started_here_listens_on_loopback_alone(ray_address: str) -> None:
    """Whoever reaches Ray runs any code there."""
    mine = processes_below(os.getpid())
    listening: set[str] = set()
    for pid in mine:
        with suppress(OSError):
            held = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
            for table in ("tcp", "tcp6"):
                for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                    _, local, _, state, *_, inode = line.split()[:10]
                    if state == "0A" and f"socket:[{inode}]" in held:
                        listening.add(local.split(":")[0])
    # 127.0.0.1, alone or in an address of IPv6, as the kernel writes it.
    assert listening
    assert listening <= {"0100007F", "0000000000000000FFFF00000100007F"}, listening


def processes_below(pid: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below: set[int] = set()
    while further := {one for one, above in parents.items() if above in {pid, *below}} - below:
        below |= further
    return below


async def double(item: int) -> int:
    await trio.sleep(0.001)
    if item % 97 == 13:
        raise ValueError(f"not {item}")
    return 2 * item


async def where(item: int) -> tuple[int, str]:
    await trio.sleep(0.02)
    run = current_run()
    run.emit_nowait(("here", item))
    return item, run.idempotency_key


async def wait_for_a_cancel(folder: str) -> None:
    await trio.Path(folder, "began").touch()
    try:
        await trio.sleep_forever()
    finally:
        # In one step: a cancelled task can't wait.
        Path(folder, "cancelled").write_text(str(time.time()))  # noqa: ASYNC240


async def test_ray_changes_nothing(ray_address: str, tmp_path: Path) -> None:
    """One test, since each worker takes a second to start."""
    async with RayCluster(workers=2, deps=os.getpid) as cluster:
        await two_thousand_items_are_those_of_a_local_fan_out(cluster)
        await what_cannot_be_pickled_is_refused_first(cluster)
        await a_cancel_reaches_a_running_item(cluster, tmp_path)
        await killed_workers_lose_nothing(cluster, tmp_path / "run.db")


async def two_thousand_items_are_those_of_a_local_fan_out(cluster: RayCluster) -> None:
    options: dict[str, Any] = {
        "policy": BestEffort(),
        "each": Attempt(retry=Retry(2, first_delay=0)),
        "key": str,
        "limit": 200,
    }

    def facts(results: Results[int]) -> list[Any]:
        return [
            (one.index, one.key, one.item, one.status, one.attempts, repr(one.error or one.value))
            for one in results
        ]

    local = await harness.fan_out(double, range(2_000), **options)
    assert facts(await cluster.fan_out(double, range(2_000), **options)) == facts(local)


async def what_cannot_be_pickled_is_refused_first(cluster: RayCluster) -> None:
    lock = threading.Lock()

    async def with_a_lock(item: int) -> None:
        lock.acquire()

    async def returns_a_lock(item: int) -> object:
        return threading.Lock()

    with pytest.raises(ClusterError, match=r"the function, .*with_a_lock.*can't be sent"):
        await cluster.fan_out(with_a_lock, [1])
    [result] = await cluster.fan_out(returns_a_lock, [1], policy=BestEffort())
    assert isinstance(result.error, ClusterError)


async def a_cancel_reaches_a_running_item(cluster: RayCluster, folder: Path) -> None:
    """Though Ray's own has no effect on a call that runs."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.fan_out, wait_for_a_cancel, [str(folder)])
            await until(folder / "began")
            asked_at = time.time()
            nursery.cancel_scope.cancel()
        await until(folder / "cancelled")
    seconds = float(await trio.Path(folder / "cancelled").read_text()) - asked_at
    print(f"a cancel took {1_000 * seconds:.1f} ms")


async def until(file: Path) -> None:
    while not await trio.Path(file).exists():  # noqa: ASYNC110  # Of another process.
        await trio.sleep(0.01)


async def killed_workers_lose_nothing(cluster: RayCluster, journal_file: Path) -> None:
    """SIGKILL at random moments: each key once, and the events of its runs come here."""
    kills, at_least = scaled(1, full=20), scaled(200, full=2_000)
    chance = random.Random(7)
    events: list[Event] = []
    spread = cluster._spread
    assert spread is not None

    async def items() -> AsyncIterator[int]:
        for item in itertools.count():
            if item >= at_least and spread.lost >= kills:
                return
            yield item

    async def kill() -> None:
        for number in range(kills):
            # Moments in the work, since a worker that lives for less than an item ends nothing.
            ready = len(events) + chance.randrange(50)
            while spread.lost < number or len(events) < ready or not spread.processes:  # noqa: ASYNC110
                await trio.sleep(0.01 * chance.random())
            words = chance.choice(spread.processes)  # Such as "process 17 on here".
            os.kill(int(words.split()[1]), signal.SIGKILL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        with harness.observing(events.append):
            async with open_journal(journal_file) as journal:
                results = await cluster.fan_out(
                    where, items(), journal=journal, key=lambda item: item, limit=16
                )
    count = len(results)
    assert spread.lost == kills
    assert [result.value[0] for result in results] == list(range(count))
    assert len({result.value[1] for result in results}) == count
    with read_journal(journal_file) as reader:
        assert reader.counts("where") == {"ok": count}
    assert {event.payload[1] for event in events} == set(range(count))
    assert {event.path for event in events} == {f"where/{item}" for item in range(count)}


DRIVER = """
import sys, trio
from harness.cluster import RayCluster
from harness.fanout import Results
from harness.journal import open_journal

async def work(item):
    await trio.sleep(0.005 if item < 20 else 1_000)
    return item

async def main():
    async with RayCluster(sys.argv[1] or None, workers=1) as cluster:
        async with open_journal(sys.argv[2]) as journal:
            await cluster.fan_out(work, range(100), limit=10, journal=journal, key=lambda i: i)

trio.run(main)
"""


@pytest.mark.parametrize("own", [False, True] if FULL else [False])
def test_ctrl_c_ends_a_driver(ray_address: str, tmp_path: Path, own: bool) -> None:
    """What had ended is in the journal."""
    program, journal = tmp_path / "driver.py", tmp_path / "run.db"
    program.write_text(DRIVER)
    driver = subprocess.Popen(
        [sys.executable, program, "" if own else ray_address, journal],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )

    def ended() -> int:
        try:
            with read_journal(journal) as reader:
                return reader.counts("work").get("ok", 0)
        except (JournalError, KeyError):
            return 0

    give_up_at = time.monotonic() + PATIENCE_SECONDS
    try:
        while ended() < 20 and driver.poll() is None and time.monotonic() < give_up_at:
            time.sleep(0.05)
        asked_at = time.monotonic()
        driver.send_signal(signal.SIGINT)
        _, words = driver.communicate(timeout=PATIENCE_SECONDS)
        print(f"Ctrl-C took {time.monotonic() - asked_at:.2f} s")
    finally:
        driver.kill()
        driver.wait()
        if driver.stderr is not None:
            driver.stderr.close()
    assert b"KeyboardInterrupt" in words, words
    assert ended() == 20
