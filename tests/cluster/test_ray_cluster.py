"""A fan-out over workers is the same as one without, whatever becomes of the workers."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness import current_run, open_run
from harness.budgets import budget_left, reserve_budget
from harness.cluster import RayCluster
from harness.cluster._spread import LOSSES_ALONE_AT_MOST, LOSSES_IN_COMPANY
from harness.errors import (
    ClusterError,
    ClusterGoneError,
    FanOutError,
    JournaledError,
    RunTimedOut,
    WorkerLostError,
)
from harness.limits import Limiter
from harness.policies import (
    Attempt,
    BestEffort,
    FirstSuccess,
    Hedge,
    Priority,
    Quorum,
    Retry,
)
from harness.runs import Event, RunBegan, RunOver, WaitBegan
from tests.cluster.fake_workers import FakeCluster, Unpicklable, here
from tests.scale import scaled
from tests.support.memory_journal import MemoryJournal

KEEP_GOING = BestEffort()


async def double(item: int) -> int:
    await trio.sleep(random.random())
    if item % 97 == 13:
        raise ValueError(f"not {item}")
    return 2 * item


def as_facts(results: Any) -> list[Any]:
    return [
        (one.index, one.key, one.item, one.status, one.attempts, repr(one.error or one.value))
        for one in results
    ]


@pytest.mark.slow
async def test_results_are_those_of_a_local_fan_out(autojump_clock: MockClock) -> None:
    items = range(scaled(300, full=2_000))
    each = Attempt(retry=Retry(2, first_delay=0.1), timeout=5)
    local = await harness.fan_out(double, items, policy=KEEP_GOING, each=each, key=str)
    async with FakeCluster() as cluster:
        spread = await cluster.fan_out(double, items, policy=KEEP_GOING, each=each, key=str)
        assert as_facts(spread) == as_facts(local)
        assert spread.name == local.name == "double"
        assert all(connection.calls > len(items) / 4 for connection in cluster.connections)


@pytest.mark.slow
async def test_items_and_answers_travel_in_batches(autojump_clock: MockClock) -> None:
    async def work(item: int) -> int:
        await trio.sleep(1)
        return item

    async with FakeCluster() as cluster:
        await cluster.fan_out(work, range(400), limit=100)
        for connection in cluster.connections:
            assert connection.calls == 200
            assert len(connection.sent) < 12
            assert connection.answers < 12
            calls = [sum(one[0] == "call" for one in sent) for sent in connection.sent]
            assert max(calls) <= 64


@pytest.mark.slow
async def test_a_slow_worker_gets_less(autojump_clock: MockClock) -> None:
    async def work(item: int) -> int:
        await trio.sleep(1)
        return item

    async with FakeCluster(delay=lambda number: 4.0 * number) as cluster:
        await cluster.fan_out(work, range(300), limit=20)
        by_number = sorted(cluster.connections, key=lambda connection: connection.number)
        fast, slow = (connection.calls for connection in by_number)
        assert fast + slow == 300
        assert fast > 2 * slow > 0


@pytest.mark.parametrize("ends", [SystemExit(3), KeyboardInterrupt()])
async def test_what_ends_a_program_ends_the_drivers(
    autojump_clock: MockClock, ends: BaseException
) -> None:
    """And not a worker, after which it would be tried again in the next."""

    async def work(item: int) -> int:
        if item:
            raise ends
        return item

    async with FakeCluster() as cluster:
        with pytest.raises(type(ends)):
            await cluster.fan_out(work, [1], policy=KEEP_GOING)
        assert (await cluster.fan_out(work, [0])).values() == [0]
        assert len(cluster.connections) == 2


async def test_what_a_dead_worker_had_runs_elsewhere(autojump_clock: MockClock) -> None:
    """And its attempt counts, while nothing that had ended runs again."""
    began: Counter[int] = Counter()
    ended: Counter[int] = Counter()

    async def work(item: int) -> tuple[int, int]:
        began[item] += 1
        attempt = current_run().attempt
        assert attempt >= began[item], "what was on its way counts, too"
        await trio.sleep(1 + item % 3)
        ended[item] += 1
        return item, attempt

    async with FakeCluster(workers=3) as cluster:
        async with trio.open_nursery() as nursery:

            async def kill() -> None:
                for number in range(5):
                    await trio.sleep(3.3)  # None is lost twice, or as it ends.
                    cluster.connections[-1 - number % 2].kill()

            nursery.start_soon(kill)
            results = await cluster.fan_out(work, range(100), limit=10)
    assert [one.value[0] for one in results] == list(range(100))
    assert [one.value[1] for one in results] == [one.attempts for one in results]
    assert all(one.attempts >= began[one.item] for one in results)
    assert ended == Counter(range(100))
    assert 100 < began.total() < 170
    assert cluster._spread is None


async def test_attempts_of_dead_workers_are_in_the_journal(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()
    keys: list[str] = []

    async def work(item: str) -> str:
        keys.append(current_run().idempotency_key)
        await trio.sleep(1)
        return item.upper()

    async with FakeCluster(workers=1) as cluster, trio.open_nursery() as nursery:

        async def kill() -> None:
            await trio.sleep(0.5)
            cluster.connections[0].kill()

        nursery.start_soon(kill)
        results = await cluster.fan_out(
            work, ["a"], journal=journal, key=lambda item: item, name="b"
        )
        assert results.values() == ["A"]
        assert results[0].attempts == 2
        assert len(keys) == 2
        assert len(set(keys)) == 1, "an effect would happen twice"
        again = await cluster.fan_out(work, ["a"], journal=journal, key=lambda item: item, name="b")
        assert again.values() == ["A"]
        assert len(keys) == 2
        assert cluster.connections[-1].calls == 1


@pytest.mark.parametrize("workers", [1, 3])
async def test_an_item_that_kills_its_workers_is_given_up_and_no_other(
    autojump_clock: MockClock, workers: int
) -> None:
    """Those that went down with it, however often, only wait until it has been found out."""
    company: list[int] = []
    running: Counter[Any] = Counter()

    async def work(item: int) -> int:
        worker = here.get()
        running[worker] += 1
        try:
            await trio.sleep(0.5 if item == 3 else 1)
            if item == 3:
                company.append(running[worker])
                worker.kill()
                await trio.sleep_forever()
        finally:
            running[worker] -= 1
        return item

    async with FakeCluster(workers=workers) as cluster:
        results = await cluster.fan_out(work, range(40), limit=12, policy=KEEP_GOING)
        again = await cluster.fan_out(work, range(4, 40), limit=12)
    assert [one.status for one in results if one.item != 3] == ["ok"] * 39
    assert len(again) == 36
    error = results[3].error
    assert isinstance(error, WorkerLostError)
    assert f"{LOSSES_ALONE_AT_MOST} times while it had nothing else" in str(error)
    assert all(others > 1 for others in company[:LOSSES_IN_COMPANY])
    assert company[LOSSES_IN_COMPANY:] == [1] * LOSSES_ALONE_AT_MOST
    assert results[3].attempts == len(company)


async def test_what_was_not_sent_yet_is_no_attempt(autojump_clock: MockClock) -> None:
    async def work(item: int) -> int:
        await trio.sleep(1)
        return item

    async with FakeCluster(workers=2) as cluster, trio.open_nursery() as nursery:
        spread = cluster._spread
        assert spread is not None
        # As on a machine so busy that nothing has been sent when the worker ends.
        for link in spread._links:
            link.connection.send = lambda messages: None  # type: ignore[method-assign]

        async def kill() -> None:
            await trio.sleep(0.5)
            for link in spread._links:
                link.outbox += [("call", number) for number in link.calls]
            for connection in cluster.connections[:2]:
                connection.kill()

        nursery.start_soon(kill)
        results = await cluster.fan_out(work, range(8))
    assert results.values() == list(range(8))
    assert [one.attempts for one in results] == [1] * 8


async def test_a_head_that_is_gone_ends_the_batch_soon(autojump_clock: MockClock) -> None:
    """Ray would hold up everything for a minute; what had ended is kept."""
    journal = MemoryJournal()
    calls: Counter[int] = Counter()

    async def work(item: int) -> int:
        calls[item] += 1
        if item >= 5 and calls[item] == 1:
            cluster.transport.head_answers = False
            await trio.sleep_forever()
        return item

    for _ in range(2):
        async with FakeCluster() as cluster:
            began_at = trio.current_time()
            options: Any = {"journal": journal, "key": str, "name": "b"}
            if not calls:
                with pytest.raises(ClusterGoneError, match=r"head .* hasn't answered for 6 s"):
                    await cluster.fan_out(work, range(9), **options)
                assert trio.current_time() < began_at + 9
            else:
                assert len(await cluster.fan_out(work, range(9), **options)) == 9
    assert calls == {item: 1 + (item >= 5) for item in range(9)}


async def test_a_cancel_reaches_items_in_their_workers(autojump_clock: MockClock) -> None:
    """Within a step: no virtual time passes."""
    cancelled: list[tuple[str, float]] = []

    async def work(item: int) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append((current_run().name, trio.current_time()))

    async with FakeCluster() as cluster:
        with trio.move_on_at(10):
            await cluster.fan_out(work, range(20), limit=6)
        assert trio.current_time() == 10
        assert [at for _, at in cancelled] == [10] * 6
        # A timeout of one attempt, and one item of a stream by its key, are cancels, too.
        results = await cluster.fan_out(
            work, range(4), each=Attempt(timeout=5), policy=KEEP_GOING, within=100
        )
    assert [one.status for one in results] == ["timed_out"] * 4
    assert all(isinstance(one.error, RunTimedOut) for one in results)
    assert trio.current_time() == 15
    assert len(cancelled) == 10


async def test_a_worker_that_ignores_a_cancel_is_not_waited_for(autojump_clock: MockClock) -> None:
    async def work(item: int) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1_000)

    async with FakeCluster() as cluster:
        with trio.move_on_at(10):
            await cluster.fan_out(work, range(20), limit=6)
        assert trio.current_time() == 11
    assert trio.current_time() == 1_000, "the fake workers are tasks here"


async def test_ctrl_c_keeps_what_has_ended(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()

    async def work(item: int) -> int:
        await trio.sleep(item)
        return item

    with pytest.raises(BaseExceptionGroup) as raised:
        async with FakeCluster() as cluster, trio.open_nursery() as nursery:

            async def interrupt() -> None:
                await trio.sleep(4.5)
                signal.raise_signal(signal.SIGINT)

            nursery.start_soon(interrupt)
            await cluster.fan_out(work, range(9), journal=journal, key=lambda item: item)
    assert raised.group_contains(KeyboardInterrupt)
    assert trio.current_time() < 7.5
    async with FakeCluster() as cluster:
        results = await cluster.fan_out(work, range(9), journal=journal, key=lambda item: item)
        assert results.values() == list(range(9))
        assert sum(connection.calls for connection in cluster.connections) == 4


async def test_a_stop_is_heard_in_the_workers(autojump_clock: MockClock) -> None:
    async def work(item: int) -> str:
        run = current_run()
        while not run.stopping:  # noqa: ASYNC110  # That is how a run asks.
            await trio.sleep(1)
        return "stopped"

    async with FakeCluster() as cluster, open_run("outer") as outer, trio.open_nursery() as nursery:

        async def stop() -> None:
            await trio.sleep(5.5)
            outer.stop()

        nursery.start_soon(stop)
        results = await cluster.fan_out(work, range(8), limit=3)
        assert [one.value for one in results if one.status == "ok"] == ["stopped"] * 3
        assert trio.current_time() == 6


class Seen:
    """An observer of everything."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.notices: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def notice(self, event: Event) -> None:
        self.notices.append(event)


async def test_runs_events_and_spending_come_back_into_the_tree(autojump_clock: MockClock) -> None:
    seen = Seen()

    async def work(item: int) -> str:
        run = current_run()
        run.emit_nowait(("own", item))
        with reserve_budget(tokens=5) as spending:
            spending.settle(tokens=7)
        async with open_run("inner", tags={"item": item}) as inner:
            await trio.sleep(1)
            inner.emit_nowait(("inner", item))
            async with limiter.reserve():
                pass
        return run.id

    limiter = Limiter("p", concurrent=1)
    heard: list[Any] = []
    results: Any = None
    # The workers are outside of it, as they are in processes of their own.
    async with FakeCluster() as cluster:
        with harness.observing(seen):
            async with open_run("top", budget=harness.Budget(tokens=100)) as top:
                async with trio.open_nursery() as nursery:

                    async def listen() -> None:
                        async with top.subscribe(children=True) as events:
                            async for event in events:
                                heard.append(event.payload)

                    nursery.start_soon(listen)
                    await trio.testing.wait_all_tasks_blocked()
                    results = await cluster.fan_out(work, range(3), name="batch")
                    nursery.cancel_scope.cancel()
                assert budget_left().tokens == 100 - 21
    ids = [one.value for one in results]
    assert ids == [one.run_id for one in results]
    assert {(event.run_id, event.path, event.payload) for event in seen.events} >= {
        (ids[item], f"top/batch/{item}", ("own", item)) for item in range(3)
    }
    inner = [event for event in seen.events if event.payload[0] == "inner"]
    assert {(event.parent_id, event.path, event.depth) for event in inner} == {
        (ids[item], f"top/batch/{item}/inner", 3) for item in range(3)
    }
    assert sorted(heard) == sorted((kind, item) for kind in ("own", "inner") for item in range(3))
    began = Counter(event.path for event in seen.notices if isinstance(event.payload, RunBegan))
    over = Counter(event.path for event in seen.notices if isinstance(event.payload, RunOver))
    assert (
        began
        == over
        == Counter(
            [
                "top",
                "top/batch",
                *(f"top/batch/{item}" for item in range(3)),
                *(f"top/batch/{item}/inner" for item in range(3)),
            ]
        )
    )
    tags = [
        event.payload.tags
        for event in seen.notices
        if isinstance(event.payload, RunBegan) and event.path.endswith("inner")
    ]
    assert sorted(tag["item"] for tag in tags) == [0, 1, 2]
    waits = [event.payload.wait for event in seen.notices if isinstance(event.payload, WaitBegan)]
    assert len(waits) == len(set(waits))


async def test_no_call_is_sent_once_the_budget_is_used_up(autojump_clock: MockClock) -> None:
    async def work(item: int) -> int:
        with reserve_budget(tokens=10):
            await trio.sleep(1)
        return item

    results: Any = None
    async with FakeCluster() as cluster:
        async with open_run("top", budget=harness.Budget(tokens=35)):
            results = await cluster.fan_out(work, range(20), limit=2, policy=KEEP_GOING)
    assert Counter(one.status for one in results) == {"ok": 4, "failed": 16}
    assert {type(one.error).__name__ for one in results if one.error} == {"BudgetExceeded"}


async def test_deps_are_made_once_in_each_worker(autojump_clock: MockClock) -> None:
    made: list[object] = []

    async def connect() -> object:
        await trio.sleep(1)
        made.append(object())
        return made[-1]

    async def work(item: int) -> int:
        await trio.sleep(1)
        return made.index(current_run().deps)

    async with FakeCluster(workers=3, deps=connect) as cluster:
        results = await cluster.fan_out(work, range(30), limit=9)
    assert Counter(results.values()) == {0: 10, 1: 10, 2: 10}
    assert len(made) == 3


async def test_what_cannot_be_sent_is_refused_in_words(autojump_clock: MockClock) -> None:
    connection = Unpicklable()

    async def uses_it(item: int) -> object:
        return connection

    async def returns_it(item: int) -> object:
        return Unpicklable()

    async def uses_nothing(item: object) -> int:
        return 1

    async def raises_it(item: int) -> object:
        raise StrangeError(Unpicklable())

    async with FakeCluster() as cluster:
        with pytest.raises(ClusterError, match=r"the function, .*uses_it.*can't be sent.*deps="):
            await cluster.fan_out(uses_it, [1])
        assert not any(connection.calls for connection in cluster.connections)
        one: Any
        [one] = await cluster.fan_out(uses_nothing, [Unpicklable()], policy=KEEP_GOING)
        assert isinstance(one.error, ClusterError)
        assert "the item '0'" in str(one.error)
        [one] = await cluster.fan_out(returns_it, [1], policy=KEEP_GOING)
        assert isinstance(one.error, ClusterError)
        assert "value of item '0' can't be sent back" in str(one.error)
        [one] = await cluster.fan_out(raises_it, [1], policy=KEEP_GOING)
        assert isinstance(one.error, JournaledError)
        assert one.error.type_name == "StrangeError"
    with pytest.raises(ClusterError, match=r"deps=.*can't be sent"):
        async with FakeCluster(deps=lambda: connection):
            pass


class StrangeError(Exception):
    """Can't be pickled."""


class OneWay:
    """Can be pickled, and not be read."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


async def test_what_cannot_be_read_back_spoils_nothing_else(autojump_clock: MockClock) -> None:
    """An event did: it ended the cluster with all that ran there."""

    async def emits_it(item: object) -> object:
        current_run().emit_nowait(OneWay())
        await trio.sleep(1)
        return item

    async def returns_it(item: int) -> object:
        await trio.sleep(1)
        return OneWay() if item == 3 else item

    seen = Seen()
    async with FakeCluster() as cluster:
        with harness.observing(seen):
            assert len(await cluster.fan_out(emits_it, range(4))) == 4
        results: Any = await cluster.fan_out(returns_it, range(5), policy=KEEP_GOING)
        [one] = await cluster.fan_out(emits_it, [OneWay()], policy=KEEP_GOING)
    assert ["can't be read here" in event.payload for event in seen.events] == [True] * 4
    assert [one.status for one in results] == ["ok"] * 3 + ["failed", "ok"]
    assert "the value of item '3' can't be read here" in str(results[3].error)
    assert "the item of '0' can't be read in a worker" in str(one.error)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"policy": FirstSuccess()},
        {"policy": Quorum(4)},
        {"policy": BestEffort(max_failures=2)},
        {"policy": KEEP_GOING, "within": 4.5},
        {"policy": KEEP_GOING, "priority": lambda item: item},
        {"policy": KEEP_GOING, "priority": Priority(serial_by=lambda item: item % 2)},
        {"policy": KEEP_GOING, "each": Attempt(timeout=4.5, fallback=lambda item, error: -1)},
        {"policy": KEEP_GOING, "each": Attempt(hedge=Hedge(after=2.5))},
    ],
)
async def test_every_option_means_what_it_means_without_workers(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    async def work(item: int) -> int:
        await trio.sleep(1 + item)
        if item % 3 == 0:
            raise ValueError(f"not {item}")
        return item

    async def facts(fan_out: Any) -> list[Any]:
        began_at = trio.current_time()
        try:
            results = await fan_out(work, range(8), limit=4, **options)
        except FanOutError as error:
            results = error.results
        came_to = [
            (one.item, one.status, one.attempts, str(one.error), one._ended_with is None)
            for one in results
        ]
        return [*came_to, trio.current_time() - began_at]

    async with FakeCluster() as cluster:
        assert await facts(cluster.fan_out) == await facts(harness.fan_out)


async def test_deps_may_last_as_long_as_their_worker(autojump_clock: MockClock) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def connect() -> AsyncGenerator[str]:
        await trio.sleep(1)
        log.append("opened")
        yield "connection"
        await trio.sleep(0.5)
        log.append("closed")

    async def work(item: int) -> str:
        return str(current_run().deps)

    async with FakeCluster(deps=connect) as cluster:
        assert set((await cluster.fan_out(work, range(6))).values()) == {"connection"}
        assert log == ["opened"] * 2
    assert log == ["opened"] * 2 + ["closed"] * 2


async def test_workers_that_cannot_start_are_an_error_of_the_whole(
    autojump_clock: MockClock,
) -> None:
    def broken() -> None:
        raise OSError("no database")

    with pytest.raises(ClusterError, match="deps= raised OSError"):
        async with FakeCluster(deps=broken):
            pass
    with pytest.raises(ClusterError, match="3 workers in a row ended as they started"):
        async with FakeCluster(workers=1, die_at_start=3):
            pass
    async with FakeCluster(workers=1) as cluster:
        cluster.transport.die_at_start = 3
        cluster.connections[0].kill()
        with pytest.raises(ClusterError, match="in a row"):
            await cluster.fan_out(double, range(5), policy=KEEP_GOING)
        with pytest.raises(ClusterError, match="in a row"):
            await cluster.fan_out(double, range(5))
        async with open_run("alone"):
            with pytest.raises(ClusterError, match="in a row"):
                await cluster.remote(double)(1)
    async with FakeCluster(workers=1, die_at_start=2) as cluster:
        assert len(await cluster.fan_out(double, range(5))) == 5


async def test_errors_of_a_fan_out_come_out_bare(autojump_clock: MockClock) -> None:
    async def fail(item: int) -> None:
        raise ValueError("no")

    cluster = FakeCluster()
    with pytest.raises(FanOutError):
        async with cluster:
            await cluster.fan_out(fail, [1])
    with pytest.raises(ClusterError, match="not open"):
        await cluster.fan_out(fail, [1])
    async with FakeCluster() as cluster:
        with pytest.raises(ClusterError, match="open already"):
            async with cluster:
                pass


async def test_a_hedge_runs_beside_in_another_worker(autojump_clock: MockClock) -> None:
    workers: list[int] = []

    async def work(item: int) -> int:
        workers.append(current_run().deps)
        await trio.sleep(100 if len(workers) == 1 else 1)
        return item

    numbers = iter(range(2))
    async with FakeCluster(deps=lambda: next(numbers)) as cluster:
        results = await cluster.fan_out(work, [7], each=Attempt(hedge=Hedge(after=2)))
        assert results.values() == [7]
        assert trio.current_time() == 3
        assert sorted(workers) == [0, 1]


async def test_a_run_that_ends_itself_in_a_worker_ends_here(autojump_clock: MockClock) -> None:
    async def work(item: int) -> None:
        current_run().cancel("enough")
        await trio.sleep_forever()

    async with FakeCluster() as cluster:
        [result] = await cluster.fan_out(work, [1], policy=KEEP_GOING)
    assert result.status == "cancelled"


async def test_a_stream_or_a_stage_can_call_a_worker(autojump_clock: MockClock) -> None:
    workers: set[int] = set()

    async def work(item: int) -> int:
        workers.add(current_run().deps)
        await trio.sleep(1)
        return item

    numbers = iter(range(2))
    async with FakeCluster(deps=lambda: next(numbers)) as cluster:
        async with harness.open_fan_out(cluster.remote(work), range(10)) as stream:
            values = sorted([result.value async for result in stream])
        assert values == list(range(10))
        assert workers == {0, 1}


async def test_the_first_worker_waits_for_the_others(autojump_clock: MockClock) -> None:
    """It would be given everything; but one that never comes must not hold up all."""

    async def late() -> int:
        number = next(numbers)
        await trio.sleep(3 * number)
        return number

    async def work(item: int) -> int:
        return int(current_run().deps)

    numbers = iter([0, 1])
    async with FakeCluster(deps=late) as cluster:
        assert trio.current_time() == 3
        assert Counter((await cluster.fan_out(work, range(10))).values()) == {0: 5, 1: 5}
    numbers = iter([0, 100])
    async with FakeCluster(deps=late) as cluster:
        assert trio.current_time() == 13
        assert Counter((await cluster.fan_out(work, range(10))).values()) == {0: 10}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers"),
        ({"deps": 3}, "deps=...\\) takes a function"),
        ({"address": 3}, "takes a string"),
    ],
)
def test_bad_options_are_refused_at_once(options: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        RayCluster(**options)
