"""Real Redis servers keep a limit: one, one that dies, and a cluster of three.

What takes seconds, or several processes, runs with ``HARNESS_FULL=1``.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import coredis
import pytest
import trio

from harness.cli import main
from harness.cluster import FleetLimiter, FleetStore
from harness.cluster._redis import RedisLink
from harness.errors import HarnessWarning
from harness.limits import Rate
from tests.cluster.test_fleet_processes import HOLDS, SHARES, WAITS
from tests.support.redis_server import RedisServer

pytestmark = [
    pytest.mark.real_clock,
    # coredis leaves streams behind when a connection fails.
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]
full = pytest.mark.skipif(
    not os.environ.get("HARNESS_FULL"), reason="takes seconds; HARNESS_FULL=1"
)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Let what a test has left behind be found while its own filter of warnings holds."""
    yield
    gc.collect()


@pytest.mark.slow
def test_doctor_lists_the_limiters_on_a_server(
    redis_server: RedisServer, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def use() -> None:
        async with (
            FleetLimiter(redis_server.address, f"{name} a", requests_per_minute=60) as first,
            FleetLimiter(redis_server.address, f"{name} b", concurrent=2) as second,
            second.reserve(),
        ):
            first.change(requests_per_minute=30)
            first.pause(100)
            while await trio.to_thread.run_sync(look) != (30, 1):  # noqa: ASYNC110
                await trio.sleep(0.01)
            [one, other] = found()
            assert 90 < one["paused_seconds"] < 120
            assert other["concurrent"] == 2
            assert [holder["is_alive"] for holder in other["holders"]] == [True]

    def look() -> tuple[float, int]:
        assert main(["doctor", redis_server.address, "--json"]) == 0
        seen[:] = json.loads(capsys.readouterr().out)["looked_at"]
        one, other = found()
        return one["limits"][0]["amount"], other["in_flight"]

    def found() -> list[dict[str, Any]]:
        return [limiter for limiter in seen if limiter.get("name", "").startswith(name)]

    seen: list[dict[str, Any]] = []
    trio.run(use)
    assert look() == (30, 0)
    assert [limiter["holders"] for limiter in found()] == [[], []]


@pytest.mark.slow
async def test_a_limit_is_kept_on_a_server(redis_server: RedisServer, name: str) -> None:
    address = redis_server.address
    async with (
        FleetLimiter(address, name, requests=Rate(600, 6), concurrent=1, lease=0.6) as one,
        FleetLimiter(address, name, requests=Rate(600, 6), concurrent=1, lease=0.6) as other,
    ):
        async with one.reserve() as reservation:
            with trio.move_on_after(0.1) as too_early:
                async with other.reserve():
                    raise AssertionError
            assert too_early.cancelled_caught
            reservation.refund()
        async with other.reserve() as reservation:
            reservation.settle(status=429, headers={"retry-after": "60"})
        while one.statistics().paused_seconds < 59:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert one.statistics().dimensions["requests"].used == 1
        assert one.statistics().in_flight == 0


async def test_a_script_is_sent_to_a_server_that_doesnt_know_it(redis_server: RedisServer) -> None:
    async with RedisLink(redis_server.address) as link:
        for _ in range(2):
            script = f"return {{KEYS[1], ARGV[1]}} -- {time.time()}"
            assert await link.run(script, ["k"], ["a"]) == ["k", "a"]


async def test_a_wrong_password_is_said_and_not_shown(redis_server: RedisServer) -> None:
    address = f"redis://nobody:wrong-one@127.0.0.1:{redis_server.port}"
    with pytest.raises(ConnectionError, match=f"redis://127.0.0.1:{redis_server.port}: ") as caught:
        async with FleetLimiter(address, "p", requests_per_minute=60):
            pass
    assert "wrong-one" not in str(caught.value)


async def test_it_says_what_a_user_may_not_do_at_once(redis_server: RedisServer, name: str) -> None:
    """And what one must be allowed, as docs/how-to/fleets.md has it, is enough."""
    rights = "~{harness:* +@read +@write +@scripting +@connection +info +time"
    async with coredis.Redis.from_url(redis_server.address) as client:
        for user, rules in ((name, rights), (f"not-{name}", f"{rights} -@scripting")):
            await client.acl_setuser(user, *(rule.encode() for rule in f"on >xyz {rules}".split()))
    for user in (name, f"not-{name}"):
        address = f"redis://{user}:xyz@127.0.0.1:{redis_server.port}"
        for kept in (
            FleetLimiter(address, name, requests_per_minute=60),
            FleetStore(address, name),
        ):
            with (
                nullcontext()
                if user == name
                else pytest.raises(ConnectionError, match="no permissions to run the 'evalsha'")
            ):
                async with kept:
                    assert user == name


async def test_why_no_connection_can_be_made_is_said(name: str) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"-ERR this is no TLS\r\n" * 10)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        port = listener.socket.getsockname()[1]
        with pytest.raises(ConnectionError, match=rf"rediss://127.0.0.1:{port}: .*\(SSLError: "):
            async with FleetStore(f"rediss://:secret@127.0.0.1:{port}", name):
                pass
        nursery.cancel_scope.cancel()


async def test_an_address_where_nobody_answers_is_named(name: str) -> None:
    with pytest.raises(ConnectionError, match=r"can't be used at redis://127\.0\.0\.1:1: "):
        async with FleetLimiter("redis://127.0.0.1:1", name, requests_per_minute=60):
            pass


@pytest.mark.slow
async def test_a_server_killed_and_started_again_is_used_again(
    own_redis_server: RedisServer,
) -> None:
    server = own_redis_server
    with pytest.warns(HarnessWarning, match="can't reach Redis"):  # noqa: PT031
        async with FleetLimiter(server.address, "p", requests=Rate(600, 6)) as limiter:
            async with limiter.reserve():
                server.kill()
            async with limiter.reserve():
                pass
            server.start()
            assert limiter._server is not None
            while limiter._server._alone:  # noqa: ASYNC110
                await trio.sleep(0.01)
            async with limiter.reserve():
                pass


@pytest.mark.slow
def test_batches_that_name_a_server_share_their_limits(
    redis_server: RedisServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches side by side each kept to --rpm 60, and made 188 calls a minute."""
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text("async def echo(record):\n    return record\n")
    Path("in.txt").write_text("a\nb\nc\n")
    arguments = ["batch", "agent.py:echo", "--input", "in.txt", "--output", "out.jsonl"]
    arguments += ["--rpm", "6000", "--fleet", f"{redis_server.address}#{name}", "--overwrite"]
    for used in (3, 6):
        assert main([*arguments, "--summary", "sum.json"]) == 0
        assert json.loads(Path("sum.json").read_text())["limits"]["requests"]["used"] == used


# With several processes --------------------------------------------------------------------------

ASKS = """
    import sys, time, trio
    skew = float(sys.argv[3])
    real_time = time.time
    time.time = lambda: real_time() + skew
    from harness.cluster import FleetLimiter
    from harness.limits import Rate

    async def main(where, seconds, _):
        sent = []

        async def ask(limiter):
            while True:
                async with limiter.reserve():
                    sent.append(time.monotonic())

        async with FleetLimiter(where, "asks", requests=Rate(600, 6)) as limiter:
            print("ready", flush=True)
            with trio.move_on_after(float(seconds)):
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(ask, limiter)
        print(*sent)

    trio.run(main, *sys.argv[1:])
"""


@contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def four_ask(address: str, seconds: float) -> Iterator[list[float]]:
    """Let four processes with clocks up to 10 s apart use a limit; fill the list at the end."""
    sent: list[float] = []
    with ExitStack() as stack:
        processes = [
            stack.enter_context(python(ASKS, address, seconds, skew)) for skew in (-5, 0, 5, 2)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield sent
        for process in processes:
            sent += map(float, process.communicate()[0].split())
            assert process.returncode == 0
    sent.sort()


def most_in_six_seconds(sent: list[float]) -> int:
    return max(bisect_left(sent, moment + 6) - i for i, moment in enumerate(sent))


@full
@pytest.mark.long
def test_four_processes_use_a_limit_of_600_in_6_seconds_and_no_more(
    own_redis_server: RedisServer,
) -> None:
    with four_ask(own_redis_server.address, 14) as sent:
        pass
    assert most_in_six_seconds(sent) <= 600
    steady = [moment for moment in sent if sent[0] + 6 <= moment < sent[0] + 12]
    assert len(steady) >= 0.99 * 600


@full
@pytest.mark.long
@pytest.mark.parametrize("kept", [[], ["--appendonly", "yes", "--appendfsync", "always"]])
def test_a_server_killed_under_load_breaks_the_limit_by_no_more_than_the_burst(
    tmp_path: Path, kept: list[str]
) -> None:
    server = RedisServer(tmp_path, *kept)
    server.start()
    try:
        with four_ask(server.address, 20) as sent:
            for _ in range(2):
                time.sleep(4)
                server.kill()
                time.sleep(3)
                server.start()
    finally:
        server.stop()
    assert most_in_six_seconds(sent) <= 700
    for second in range(19):
        assert [moment for moment in sent if second <= moment - sent[0] < second + 1], second


@full
@pytest.mark.long
def test_four_processes_never_hold_more_than_the_8_places_there_are(
    own_redis_server: RedisServer, tmp_path: Path
) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    with ExitStack() as stack:
        processes = [
            stack.enter_context(python(SHARES, own_redis_server.address, folder, 20))
            for _ in range(4)
        ]
        assert [one.communicate()[0] for one in processes] == [""] * 4
        assert [one.returncode for one in processes] == [0] * 4


@full
@pytest.mark.long
def test_the_places_of_a_killed_process_are_free_after_its_lease(
    own_redis_server: RedisServer,
) -> None:
    async def takes_all() -> float:
        async with FleetLimiter(own_redis_server.address, "p", concurrent=8) as limiter:
            assert limiter.statistics().in_flight == 5
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            began = time.monotonic()

            async def hold() -> None:
                async with limiter.reserve():
                    held.append(1)
                    await trio.sleep_forever()

            held: list[int] = []
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(hold)
                while len(held) < 8:
                    await trio.sleep(0.01)
                    assert len(held) <= 3 or time.monotonic() - began > 5
                nursery.cancel_scope.cancel()
            return time.monotonic() - began

    with python(HOLDS, own_redis_server.address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        assert 5 <= trio.run(takes_all) < 60


@full
@pytest.mark.long
def test_a_pause_reaches_the_others_within_100_milliseconds(own_redis_server: RedisServer) -> None:
    async def pauses() -> float:
        address = own_redis_server.address
        async with FleetLimiter(address, "p", requests_per_minute=60_000) as limiter:
            async with limiter.reserve() as reservation:
                reservation.settle(status=429, headers={"retry-after": "1"})
                return time.monotonic()

    with python(WAITS, own_redis_server.address) as process:
        assert process.stdout is not None
        process.stdout.readline()
        paused_at = trio.run(pauses)
        # Ends: the first after the pause comes a second later.
        while (moment := float(process.stdout.readline())) < paused_at + 0.9:
            assert moment < paused_at + 0.1


# A cluster ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[RedisServer]]:
    """Three nodes that share the slots."""
    with ExitStack() as stack:
        nodes = []
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            node = RedisServer(folder, "--cluster-enabled", "yes")
            node.start()
            stack.callback(node.stop)
            nodes.append(node)
        trio.run(_join_up, nodes)
        yield nodes


async def _join_up(nodes: list[RedisServer]) -> None:
    share = 16_384 // 3 + 1
    for number, node in enumerate(nodes):
        async with coredis.Redis.from_url(node.address, decode_responses=True) as client:
            slots = range(number * share, min((number + 1) * share, 16_384))
            await client.cluster_addslots(slots)
            await client.cluster_set_config_epoch(number + 1)
            if number:
                await client.cluster_meet("127.0.0.1", nodes[0].port)
    for node in nodes:
        async with coredis.Redis.from_url(node.address, decode_responses=True) as client:
            while (await client.cluster_info())["cluster_state"] != "ok":  # noqa: ASYNC110
                await trio.sleep(0.05)


@full
@pytest.mark.long
def test_a_limit_is_kept_on_a_cluster_of_three(cluster: list[RedisServer]) -> None:
    async def uses() -> None:
        for name in ("a", "b", "c", "d", "e", "f"):  # Whose slots are on different nodes.
            async with (
                FleetLimiter(cluster[0].address, name, requests=Rate(6, 6), concurrent=1) as one,
                FleetLimiter(cluster[1].address, name, requests=Rate(6, 6), concurrent=1) as other,
            ):
                async with one.reserve(), trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep, 0)
                async with other.reserve():
                    assert other.statistics().dimensions["requests"].used == 2

    trio.run(uses)
