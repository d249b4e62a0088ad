"""Real processes keep one limit through a file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from harness.cluster import FleetLimiter
from harness.limits import Rate
from tests.scale import FULL

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.skipif(sys.platform == "win32", reason="needs flock and shared memory"),
]

ASKS = """
    import sys, time, trio
    from harness.cluster import FleetLimiter
    from harness.limits import Rate

    async def main(file, seconds):
        sent = []

        async def ask(limiter):
            while True:
                async with limiter.reserve():
                    sent.append(time.monotonic())

        async with FleetLimiter(file, "p", requests=Rate(600, 6)) as limiter:
            with trio.move_on_after(float(seconds)):
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(ask, limiter)
        print(*sent)

    trio.run(main, *sys.argv[1:])
"""

HOLDS = """
    import sys, trio
    from harness.cluster import FleetLimiter

    async def main(file):
        async with FleetLimiter(file, "p", concurrent=8) as limiter:
            async with limiter.reserve(), trio.open_nursery() as nursery:
                async def hold():
                    async with limiter.reserve():
                        await trio.sleep_forever()
                for _ in range(4):
                    nursery.start_soon(hold)
                while limiter.statistics().in_flight < 5:
                    await trio.sleep(0.01)
                print("holds", flush=True)
                await trio.sleep_forever()

    trio.run(main, *sys.argv[1:])
"""

SHARES = """
    import os, sys, trio
    from harness.cluster import FleetLimiter

    async def main(file, folder, times):
        async with FleetLimiter(file, "p", concurrent=8) as limiter, trio.open_nursery() as nursery:
            async def work(name):
                for _ in range(int(times)):
                    async with limiter.reserve():
                        mark = os.path.join(folder, f"{os.getpid()}-{name}")
                        open(mark, "x").close()
                        held = len(os.listdir(folder))
                        if held > 8:
                            print(held)
                        await trio.sleep(0.002)
                        os.unlink(mark)
            for name in range(5):
                nursery.start_soon(work, name)

    trio.run(main, *sys.argv[1:])
"""


@contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.long
def test_four_processes_use_a_limit_of_600_in_6_seconds_and_no_more(tmp_path: Path) -> None:
    seconds = 14
    with ExitStack() as stack:
        processes = [
            stack.enter_context(python(ASKS, tmp_path / "limits", seconds)) for _ in range(4)
        ]
        sent = sorted(float(moment) for one in processes for moment in one.communicate()[0].split())
    # Who isn't given the processor between a grant and noting it, notes too late a moment.
    least = 6.0 if FULL else 5.75
    assert all(later - sooner >= least for sooner, later in zip(sent, sent[600:], strict=False))
    # A second's worth at once, and then the pace; what was sent after the first 6 s is steady.
    steady = [moment for moment in sent if sent[0] + 6 <= moment < sent[0] + 12]
    assert len(steady) >= 0.99 * 600


@pytest.mark.long
def test_four_processes_never_hold_more_than_the_8_places_there_are(tmp_path: Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    with ExitStack() as stack:
        processes = [
            stack.enter_context(python(SHARES, tmp_path / "limits", folder, 40)) for _ in range(4)
        ]
        assert [one.communicate()[0] for one in processes] == [""] * 4
        assert [one.returncode for one in processes] == [0] * 4


@pytest.mark.slow
def test_the_places_of_a_killed_process_are_free_at_once(tmp_path: Path) -> None:
    async def takes_all() -> float:
        async with FleetLimiter(tmp_path / "limits", "p", concurrent=8) as limiter:
            assert limiter.statistics().in_flight == 5
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            began = time.monotonic()
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(limiter.reserve().__aenter__)
            return time.monotonic() - began

    with python(HOLDS, tmp_path / "limits") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        assert trio.run(takes_all) < 5


WAITS = """
    import sys, time, trio
    from harness.cluster import FleetLimiter

    async def main(file):
        async with FleetLimiter(file, "p", requests_per_minute=60_000) as limiter:
            while True:
                async with limiter.reserve():
                    print(time.monotonic(), flush=True)
                await trio.sleep(0.005)

    trio.run(main, *sys.argv[1:])
"""


@pytest.mark.slow
def test_a_pause_reaches_the_others_at_once(tmp_path: Path) -> None:
    async def pauses() -> float:
        async with FleetLimiter(tmp_path / "limits", "p", requests_per_minute=60_000) as limiter:
            async with limiter.reserve() as reservation:
                reservation.settle(status=429, headers={"retry-after": "1"})
            return time.monotonic()

    with python(WAITS, tmp_path / "limits") as process:
        assert process.stdout is not None
        process.stdout.readline()
        paused_at = trio.run(pauses)
        # Ends: the first after the pause comes a second later.
        while (moment := float(process.stdout.readline())) < paused_at + 0.1:
            assert moment < paused_at + 0.1
        assert moment >= paused_at + 0.9


GRANTS = """
    import sys, time, trio
    from harness.cluster import FleetLimiter

    async def main(file, seconds):
        grants = 0
        async with FleetLimiter(file, "p", requests_per_minute=1e9, concurrent=64) as limiter:
            cpu = time.process_time()
            with trio.move_on_after(float(seconds)):
                while True:
                    async with limiter.reserve():
                        grants += 1
            print(grants, time.process_time() - cpu)

    trio.run(main, *sys.argv[1:])
"""


def grants_and_cpu(file: Path, *, processes: int) -> tuple[int, float]:
    with ExitStack() as stack:
        running = [stack.enter_context(python(GRANTS, file, 2)) for _ in range(processes)]
        counts = [one.communicate()[0].split() for one in running]
    return sum(int(grants) for grants, _ in counts), sum(float(cpu) for _, cpu in counts)


@pytest.mark.speed
def test_a_grant_takes_at_most_100_microseconds_of_the_processor(tmp_path: Path) -> None:
    grants, cpu = grants_and_cpu(tmp_path / "limits", processes=1)
    assert cpu / grants <= 100e-6


@pytest.mark.speed
def test_four_processes_get_5000_grants_a_second(tmp_path: Path) -> None:
    grants, _ = grants_and_cpu(tmp_path / "limits", processes=4)
    assert grants / 2 >= 5_000


FORKS = """
    import os, sys, time, trio
    from harness.cluster import FleetLimiter

    async def main(file):
        async with FleetLimiter(file, "p", concurrent=8) as limiter, limiter.reserve():
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            print(child, flush=True)
            await trio.sleep_forever()

    trio.run(main, *sys.argv[1:])
"""


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_places_of_its_dead_parent(tmp_path: Path) -> None:
    async def places_taken() -> int:
        async with FleetLimiter(tmp_path / "limits", "p", concurrent=8) as limiter:
            return limiter.statistics().in_flight

    with python(FORKS, tmp_path / "limits") as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert trio.run(places_taken) == 1
            parent.kill()
            parent.wait()
            assert trio.run(places_taken) == 0
        finally:
            os.kill(child, signal.SIGKILL)


KILLED = """
    import os, random, sys, trio
    from harness.cluster import FleetLimiter
    from harness.limits import Rate

    async def main(file, log):
        sent = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

        async def ask(limiter):
            while True:
                async with limiter.reserve(tokens=20) as reservation:
                    # Not the time now, which is later if the machine is busy.
                    granted_at = reservation.granted_at + limiter._shared._shift
                    os.write(sent, b"%.6f\\n" % granted_at)
                    await trio.sleep(random.random() * 0.004)
                    reservation.settle(tokens=random.choice([5, 20, 35]))

        limits = {"requests": Rate(400, 1), "tokens": Rate(16_000, 1), "concurrent": 6}
        async with FleetLimiter(file, "p", headroom=0.5, **limits) as limiter:
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(ask, limiter)

    trio.run(main, *sys.argv[1:])
"""


def wait_for_lines(log: Path, count: int) -> None:
    """Wait until the file has this many lines more."""
    lines = 0
    have = log.read_text().count("\n") if log.exists() else 0
    deadline = time.monotonic() + 30
    while lines < have + count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        lines = log.read_text().count("\n") if log.exists() else 0


@pytest.mark.long
def test_processes_killed_under_load_leave_no_window_over_and_no_place_taken(
    tmp_path: Path,
) -> None:
    chance = random.Random(1)
    file, log = tmp_path / "limits", tmp_path / "log"

    async def all_places() -> None:
        limits = {"requests": Rate(400, 1), "tokens": Rate(16_000, 1), "concurrent": 6}
        async with FleetLimiter(file, "p", headroom=0.5, **limits) as limiter:  # type: ignore[arg-type]
            assert limiter.statistics().in_flight == 0
            assert limiter.statistics().dimensions["tokens"].unsettled == 0
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    for _ in range(6):
                        nursery.start_soon(limiter.reserve(tokens=1).__aenter__)

    with ExitStack() as stack:
        running = [stack.enter_context(python(KILLED, file, log)) for _ in range(3)]
        for _ in range(200 if os.environ.get("HARNESS_FULL") else 12):
            wait_for_lines(log, 40)  # In which it may be found that everybody hangs.
            time.sleep(chance.random() / 10)
            victim = running.pop(0)
            assert victim.poll() is None
            if chance.random() < 0.3:
                victim.send_signal(signal.SIGSTOP)
                time.sleep(0.05)
            victim.kill()
            victim.wait()
            running.append(stack.enter_context(python(KILLED, file, log)))
    sent = sorted(map(float, log.read_text().split()))
    assert len(sent) > 400
    assert all(later - sooner >= 1 for sooner, later in zip(sent, sent[200:], strict=False))
    trio.run(all_places)
