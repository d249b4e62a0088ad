"""However often a batch is killed or cut short, it comes to what an unbroken one comes to.

Small batches with made-up outcomes, killed at made-up moments, on a virtual clock.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from tests.fanout.probes import Boom
from tests.scale import scaled
from tests.support.checkpoints import cancel_at_every_checkpoint
from tests.support.memory_journal import MemoryJournal

OUTCOMES = st.lists(st.sampled_from(["ok", "ok", "fails", "fails once"]), min_size=1, max_size=9)

# What ends a session early: a kill, a cancel from outside, a stop, or the time that it has.
ENDS = st.lists(
    st.tuples(
        st.sampled_from(["kill", "kill", "cancel", "stop", "within"]),
        st.floats(0.0, 6.0, allow_nan=False).map(lambda seconds: round(seconds, 1)),
    ),
    max_size=4,
)


def key_of(item: int) -> int:
    return item


async def session(
    journal: MemoryJournal,
    outcomes: list[str],
    *,
    end: tuple[str, float] | None,
    limit: int,
    seed: int,
    ran: list[int],
) -> tuple[MemoryJournal, Any]:
    """Run until it ends or is ended; return what is in the file then, and the results."""
    draw = random.Random(seed)
    order = list(range(len(outcomes)))
    draw.shuffle(order)
    tries: Counter[int] = Counter()
    found: list[MemoryJournal] = []

    async def work(item: int) -> int:
        ran.append(item)
        tries[item] += 1
        await trio.sleep(round(draw.uniform(0, 3), 1))
        if outcomes[item] == "fails" or (outcomes[item] == "fails once" and tries[item] == 1):
            raise Boom(item)
        return item * 10

    async def end_it(kind: str, seconds: float) -> None:
        await trio.sleep(seconds)
        if kind == "kill":
            found.append(journal.after_a_crash())
        if kind in ("kill", "cancel"):
            outside.cancel()
        elif kind == "stop":
            outer.stop()

    results = None
    with trio.CancelScope() as outside:
        async with harness.open_run("outer") as outer, trio.open_nursery() as nursery:
            if end is not None and end[0] != "within":
                nursery.start_soon(end_it, *end)
            results = await harness.fan_out(
                work,
                order,
                policy=harness.BestEffort(),
                limit=limit,
                within=end[1] if end is not None and end[0] == "within" else None,
                each=harness.Attempt(retry=harness.Retry(2, first_delay=0.5, jitter=0)),
                key=key_of,
                journal=journal,
            )
            nursery.cancel_scope.cancel()
    if not found:
        assert journal.unended_of_session() == [], "a session that wasn't killed leaves none"
    return (found[0] if found else journal), results


@pytest.mark.slow
@settings(max_examples=scaled(40, full=1_000), deadline=None)
@given(outcomes=OUTCOMES, ends=ENDS, limit=st.integers(1, 4), seed=st.integers(0, 99))
def test_broken_sessions_come_to_what_an_unbroken_one_comes_to(
    outcomes: list[str], ends: list[tuple[str, float]], limit: int, seed: int
) -> None:
    async def main() -> None:
        journal, done = MemoryJournal(), set[int]()
        for number, end in enumerate([*ends, None]):
            ran: list[int] = []
            journal, results = await session(
                journal, outcomes, end=end, limit=limit, seed=seed + number, ran=ran
            )
            assert not done & set(ran), "what was durable ran again"
            done = {kept for (_, kept), item in journal.items.items() if item.ending is not None}
        assert results is not None
        assert len(results) == len(outcomes)
        for result in results:
            if outcomes[result.item] == "fails":
                assert result.status == "failed"
                assert "Boom" in (
                    type(result.error).__name__,
                    getattr(result.error, "type_name", ""),
                )
            else:
                assert (result.status, result.value) == ("ok", result.item * 10)
        # `Retry` counts per process, and what failed before a session ended counts too.
        assert all(1 <= result.attempts <= 2 + 2 * len(ends) for result in results)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["a list", "an async generator"])
async def test_cancelled_at_every_checkpoint_nothing_is_held_and_the_batch_can_be_resumed(
    source: str, autojump_clock: MockClock
) -> None:
    journals: list[MemoryJournal] = []
    running = 0

    async def work(item: int) -> int:
        nonlocal running
        running += 1
        try:
            await trio.sleep(item % 2)
        finally:
            running -= 1
        if item == 2:
            raise Boom(item)
        return item

    async def numbers() -> Any:
        for number in range(5):
            await trio.lowlevel.checkpoint()
            yield number

    async def once(journal: MemoryJournal) -> Any:
        return await harness.fan_out(
            work,
            range(5) if source == "a list" else numbers(),
            policy=harness.BestEffort(),
            limit=2,
            each=harness.Attempt(retry=harness.Retry(2, first_delay=1, jitter=0)),
            key=key_of,
            journal=journal,
        )

    async def make_and_run() -> None:
        journals.append(MemoryJournal())
        await once(journals[-1])

    async def check() -> None:
        assert running == 0
        journal = journals[-1]
        assert journal.unended() == []
        assert journal.open_batches == 0
        results = await once(journal)
        assert [result.status for result in results] == ["ok", "ok", "failed", "ok", "ok"]
        attempts = [result.attempts for result in results]
        assert attempts in ([1, 1, 2, 1, 1], [1, 1, 3, 1, 1]), "one may have failed before"

    tried = await cancel_at_every_checkpoint(make_and_run, check)
    assert tried > 20


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.slow
async def test_a_stream_may_be_cancelled_at_every_checkpoint(
    ordered: bool, autojump_clock: MockClock
) -> None:
    """Also while its journal is opened. There it broke trio's own books: nothing had begun yet."""
    journals: list[MemoryJournal] = []

    async def work(item: int) -> int:
        await trio.sleep(item % 2)
        return item

    async def make_and_run() -> None:
        journals.append(MemoryJournal())
        async with harness.open_fan_out(
            work, range(5), limit=2, key=key_of, journal=journals[-1], ordered=ordered
        ) as stream:
            async for _ in stream:
                pass

    def check() -> None:
        assert journals[-1].unended() == []
        assert journals[-1].open_batches == 0

    assert await cancel_at_every_checkpoint(make_and_run, check) > 10


@pytest.mark.parametrize("steps", range(6))
async def test_a_stream_may_be_left_at_once(steps: int, autojump_clock: MockClock) -> None:
    journal = MemoryJournal()

    async def work(item: int) -> None:
        await trio.sleep(1)

    async with harness.open_fan_out(
        work, range(3), limit=2, key=key_of, journal=journal, keep=True
    ) as stream:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
    assert {result.status for result in stream.results} <= {"skipped", "cancelled"}
    assert len(stream.results) == 3
    assert "the block that read the results was left" in str(stream.results[2].error)
    assert (journal.unended(), journal.open_batches) == ([], 0)
