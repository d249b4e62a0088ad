"""Pipelines and routers with a journal: what is done isn't done again, a changed step is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness import Attempt, BestEffort, Retry
from harness.agents import Agent, tool
from harness.budgets import reserve_budget
from harness.cli import main
from harness.errors import (
    ApprovalPending,
    FanOutError,
    JournaledError,
    JournalError,
    JournalMismatchError,
    JournalValueError,
)
from harness.fanout import DROP
from harness.fanout._waiting_room import READ_AHEAD_AT_LEAST
from harness.flow import Batch, Pipeline, Router, failed_at, stage, track
from harness.journal import edit_journal, open_journal, read_journal
from harness.journal._sqlite import SqliteBackend
from harness.models import ScriptedModel
from tests.agents.fakes import calls
from tests.scale import FULL
from tests.support.checkpoints import cancel_at_every_checkpoint
from tests.support.random_pipelines import check, line_of
from tests.support.random_pipelines import flow_of as flow_of_seed

BEST = BestEffort()
TOGETHER_AND_SEVERAL = 163
"""The seed of a pipeline with both."""

Made = list[tuple[str, Any]]


def key_of(item: Any) -> Any:
    return item


def doubling(made: Made, name: str) -> Callable[[int], Any]:
    """A stage; each has code of its own if its name differs, and all with one name are equal."""

    async def double(item: int) -> int:
        made.append((name, item))
        await trio.sleep(1)
        return 2 * item

    double.__name__ = double.__qualname__ = name
    return double


async def fails_on_three(item: int) -> int:
    await trio.sleep(1)
    if item % 3 == 0:
        raise ValueError(f"no {item}")
    return item


class Socket:
    """What can't be recorded: it has no fields."""


def names(made: Made) -> list[str]:
    return sorted({name for name, _ in made})


async def session(
    path: Any,
    flow: Any,
    items: Sequence[Any] = range(4),
    *,
    key: Callable[[Any], Any] = key_of,
    options: dict[str, Any] | None = None,
    **more: Any,
) -> harness.Results[Any]:
    async with open_journal(path, **(options or {})) as journal:
        results: harness.Results[Any] = await flow.run(items, key=key, journal=journal, **more)
        return results


# What is done -------------------------------------------------------------------------------------


async def test_a_second_session_calls_nothing_and_gives_the_same(
    journal_path: str, autojump_clock: MockClock
) -> None:
    made: Made = []

    async def together(items: list[int]) -> list[Any]:
        made.append(("together", len(items)))
        return [DROP if item == 2 else item for item in items]

    flow = Pipeline(doubling(made, "a"), stage(together, batch=Batch(3)), doubling(made, "b"))
    first = await session(journal_path, flow)
    made.clear()
    again = await session(journal_path, flow)
    assert made == []
    assert [one.value for one in again] == [one.value for one in first] == [0, DROP, 8, 12]
    assert [one.attempts for one in again] == [1, 1, 1, 1]


async def test_an_item_cut_short_goes_on_behind_its_last_stage(
    journal_path: str, autojump_clock: MockClock
) -> None:
    made: Made = []

    async def stuck(item: int) -> int:
        made.append(("stuck", item))
        if len(made) < 20:
            await trio.sleep_forever()
        return item

    flow = Pipeline(doubling(made, "a"), doubling(made, "b"), stuck, doubling(made, "c"))
    with trio.move_on_after(10):
        await session(journal_path, flow)
    assert names(made) == ["a", "b", "stuck"]
    made[:] = [("", 0)] * 20
    results = await session(journal_path, flow)
    assert [one.value for one in results] == [0, 8, 16, 24]
    assert names(made) == ["", "c", "stuck"]


async def test_the_next_stage_begins_once_the_value_is_on_disk(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "run.db"
    found: list[int] = []

    async def look(item: int) -> int:
        with read_journal(path) as reader:
            query = "SELECT count(*) FROM harness_steps WHERE value = ?"
            found.append(reader._backend.fetch(query, (str(item),))[0][0])
        return item

    await session(path, Pipeline(doubling([], "a"), look))
    assert found == [1, 1, 1, 1]


async def test_a_disk_that_is_full_ends_everything_and_keeps_what_was_acknowledged(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    flow = Pipeline(stage(doubling(made, "a"), limit=1), stage(doubling(made, "b"), limit=1))
    write = SqliteBackend.write

    def refuses(self: SqliteBackend, rows: Any) -> None:
        if "b" in names(made) and rows["harness_steps"]:
            raise JournalError("no space left on device")
        write(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteBackend, "write", refuses)
        with pytest.raises(JournalError, match="no space left"):
            await session(path, flow)
    made.clear()
    assert (await session(path, flow)).values() == [0, 4, 8, 12]
    assert ("a", 0) not in made


async def test_a_stage_gets_the_value_as_a_later_session_would(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    class Text(str):
        """It comes back as plain text."""

    got: list[type] = []

    async def a(item: int) -> str:
        return Text(item)

    async def b(item: str) -> str:
        got.append(type(item))
        return item

    await session(tmp_path / "run.db", Pipeline(a, b))
    assert got == [str] * 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130) if FULL else [TOGETHER_AND_SEVERAL])
async def test_cancelled_anywhere_it_goes_on_behind_what_is_done(
    seed: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    items = [[str(number), number] for number in range(2)]
    path, lines = tmp_path / "run.db", ["session "]

    def log(what: str, about: str) -> None:
        lines.append(f"{what} {about}")

    async def one_session() -> None:
        results = await session(
            path,
            flow_of_seed(seed, log),
            items,
            key=itemgetter(0),
            name="x",
            policy=BEST,
            options={"kept": "return"},
        )
        lines.extend(f"result {line_of(one)}" for one in results)

    async def resume() -> None:
        if len(lines) > 1:
            lines.append("session ")
        await one_session()
        check("\n".join(lines), seed, items)
        path.unlink()
        lines[:] = ["session "]

    assert await cancel_at_every_checkpoint(one_session, resume) > 5


# What has changed ---------------------------------------------------------------------------------


def flow_of(made: Made, middle: str) -> Pipeline[Any, Any]:
    return Pipeline(
        stage(doubling(made, "a"), name="a"),
        stage(doubling(made, middle), name="b"),
        stage(doubling(made, "c"), name="c"),
    )


async def test_a_changed_stage_and_those_after_it_are_done_again(
    journal_path: str, autojump_clock: MockClock
) -> None:
    made: Made = []
    await session(journal_path, flow_of(made, "old"))
    made.clear()
    results = await session(journal_path, flow_of(made, "new"))
    assert [one.value for one in results] == [0, 8, 16, 24]
    assert names(made) == ["c", "new"]
    assert len(made) == 8


async def test_steps_of_earlier_code_are_marked(
    journal_path: str, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    await session(journal_path, flow_of([], "old"), range(1, 3))
    await session(journal_path, flow_of([], "new"), range(1, 3))
    with read_journal(journal_path) as reader:
        steps = list(reader.steps("pipeline", 1))
    marked = [(one.name[-2], one.of_earlier_code) for one in steps]
    assert marked == [("a", False), ("b", True), ("c", True), ("b", False), ("c", False)]
    assert main(["journal", "show", journal_path, "1"]) == 0
    told = capsys.readouterr().out
    assert told.count("(of earlier code)") == 2
    assert "stage 'b' (of earlier code): 4" in told


async def test_a_change_taken_back_has_its_results_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    await session(path, flow_of(made, "old"))
    await session(path, flow_of(made, "new"))
    made.clear()
    await session(path, flow_of(made, "old"))
    assert made == []


async def adds_one(item: int) -> int:
    return item + 1


async def adds_two(item: int) -> int:
    return item + 2


async def test_who_looks_into_the_journal_sees_the_results_of_the_code_that_ran_last(
    journal_path: str, autojump_clock: MockClock
) -> None:
    ended_at: list[object] = []
    seconds: list[float] = []
    for code, value in ((adds_one, 1), (adds_two, 2), (adds_one, 1), (adds_one, 1)):
        flow = Pipeline(stage(code, name="a"))
        results = await session(journal_path, flow, range(1), name="batch")
        with read_journal(journal_path) as reader:
            (item,) = reader.items("batch", details=True)
            totals = reader.totals("batch")
        assert results.values() == [value]
        assert item.value_text == str(value)
        ended_at.append(item.ended_at)
        seconds.append(totals.run_seconds)
        assert totals.attempts == min(len(seconds), 2)
    assert ended_at[2] == ended_at[3], "it is recorded again once"
    assert seconds[1] == seconds[3]


async def test_a_stage_more_or_less_at_the_end_leaves_the_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    a, b, c = (stage(doubling(made, name), name=name) for name in "abc")
    await session(path, Pipeline(a, b))
    made.clear()
    assert (await session(path, Pipeline(a, b, c))).values() == [0, 8, 16, 24]
    assert names(made) == ["c"]
    made.clear()
    assert (await session(path, Pipeline(a))).values() == [0, 2, 4, 6]
    assert made == []


async def test_a_stage_in_front_changes_all(tmp_path: Path, autojump_clock: MockClock) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    a, b = (stage(doubling(made, name), name=name) for name in "ab")
    await session(path, Pipeline(b))
    made.clear()
    await session(path, Pipeline(a, b))
    assert names(made) == ["a", "b"]


async def test_with_the_source_as_version_a_change_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "run.db"
    await session(path, flow_of([], "old"), options={"version": "source"})
    with pytest.raises(JournalMismatchError, match=r"changed in new\(\), old\(\)"):
        await session(path, flow_of([], "new"), options={"version": "source"})


async def test_force_keeps_what_other_code_recorded(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    await session(path, flow_of(made, "old"))
    made.clear()
    results = await session(path, flow_of(made, "new"), options={"force": True})
    assert results.values() == [0, 8, 16, 24]
    assert made == []


async def test_settings_of_the_users_own_are_compared_all_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def one(prompt: str) -> None:
        async with open_journal(tmp_path / "run.db") as journal:
            given = journal.identified(target="mine", settings={"prompt": prompt})
            await flow_of([], prompt).run([1], key=key_of, journal=given)

    await one("old")
    with pytest.raises(JournalMismatchError, match="prompt was 'old' and is 'new'"):
        await one("new")


async def test_attempts_of_other_code_dont_count_towards_the_most(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "run.db"
    await session(path, flow_of([], "old"), options={"max_attempts": 1})
    results = await session(path, flow_of([], "new"), options={"max_attempts": 1})
    assert results.values() == [0, 8, 16, 24]


async def test_a_changed_input_starts_from_the_first_stage(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    flow = Pipeline(doubling(made, "a"), doubling(made, "b"))
    await session(path, flow, [1, 2], key=lambda item: "x" if item in (1, 10) else "y")
    made.clear()
    await session(path, flow, [10, 2], key=lambda item: "x" if item in (1, 10) else "y")
    assert made == [("a", 10), ("b", 20)]


# Failures -----------------------------------------------------------------------------------------


async def test_a_failure_is_kept_as_long_as_its_stage_stays_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    a, c = doubling(made, "a"), doubling(made, "c")
    first = await session(path, Pipeline(a, fails_on_three, c), policy=BEST)
    assert failed_at(first[0].error) == ("fails_on_three",)
    made.clear()
    with pytest.raises(FanOutError) as raised:
        await session(path, Pipeline(a, fails_on_three, doubling(made, "d")))
    [kept, _] = raised.value.exceptions
    assert isinstance(kept, JournaledError)
    assert sorted(made) == [("d", 2), ("d", 4)]
    made.clear()
    results = await session(path, Pipeline(a, doubling(made, "b"), c), policy=BEST)
    assert results.values() == [0, 8, 16, 24]
    assert names(made) == ["b", "c"]


async def test_a_failed_item_tried_again_goes_on_at_the_stage_that_failed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    flow = Pipeline(doubling(made, "a"), fails_on_three)
    await session(path, flow, policy=BEST)
    made.clear()
    again = await session(path, flow, policy=BEST, options={"retry_failed": True})
    assert made == []
    assert [one.attempts for one in again] == [2, 1, 1, 2]


async def test_journal_retry_has_an_item_start_from_the_first_stage(
    journal_path: str, autojump_clock: MockClock
) -> None:
    made: Made = []
    flow = Pipeline(doubling(made, "a"), doubling(made, "b"))
    await session(journal_path, flow)
    with edit_journal(journal_path) as editor:
        editor.retry("pipeline", [3])
    made.clear()
    await session(journal_path, flow)
    assert made == [("a", 3), ("b", 6)]


async def test_a_forgotten_item_leaves_no_steps(
    journal_path: str, autojump_clock: MockClock
) -> None:
    await session(journal_path, Pipeline(doubling([], "a"), doubling([], "b")))
    with edit_journal(journal_path) as editor:
        editor.forget("pipeline", [3])
        assert editor._backend.fetch("SELECT count(*) FROM harness_steps") == [(6,)]


async def test_what_cant_be_recorded_fails_its_item_and_names_the_stage(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def a(item: int) -> Any:
        return object()

    results = await session(tmp_path / "run.db", Pipeline(a, fails_on_three), policy=BEST)
    assert isinstance(results[0].error, JournalValueError)
    assert failed_at(results[0].error) == ("a",)


async def test_a_stage_annotated_to_return_what_cant_be_recorded_is_refused_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def a(item: int) -> Socket:
        raise AssertionError("not called")

    with pytest.raises(JournalValueError, match=r"a\(\) is annotated to return .*Socket"):
        await session(tmp_path / "run.db", Pipeline(a))


async def test_a_journal_needs_keys(tmp_path: Path, autojump_clock: MockClock) -> None:
    flow = Pipeline(doubling([], "a"))
    async with open_journal(tmp_path / "run.db") as journal:
        with pytest.raises(TypeError, match=r"Pipeline\.run\(journal=\.\.\.\) needs key="):
            await flow.run([1], journal=journal)
        with pytest.raises(TypeError, match=r"Router\.open\(journal=\.\.\.\) needs key="):
            Router(lambda item: "a", tracks={"a": doubling([], "a")}).open([1], journal=journal)


# Retries and fallbacks ----------------------------------------------------------------------------


async def test_attempts_and_fallbacks_of_stages_that_are_done_are_remembered(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def refuses(item: int) -> int:
        raise OSError("down")

    each: Attempt = Attempt(retry=Retry(attempts=3), fallback=lambda item, error: -item)
    stops = [True]

    async def last(item: int) -> int:
        if stops:
            await trio.sleep_forever()
        return item

    flow = Pipeline(stage(refuses, each=each), last)
    with trio.move_on_after(1000):
        await session(tmp_path / "run.db", flow, [1])
    stops.clear()
    for _ in range(2):
        [result] = await session(tmp_path / "run.db", flow, [1])
        assert (result.value, result.degraded, result.attempts) == (-1, True, 3)


async def test_a_stage_that_waits_for_approval_goes_on_where_it_stopped(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made: Made = []

    @tool(approve=True)
    async def refund(order: int) -> str:
        """Pay it back."""
        made.append(("refund", order))
        return "done"

    def flow() -> Pipeline[Any, Any]:
        model = ScriptedModel([calls(("refund", {"order": 1})), "refunded"])
        desk = Agent("desk", model=model, tools=[refund])

        async def order(item: int) -> str:
            made.append(("order", item))
            return f"order {item}"

        async def output(reply: Any) -> Any:
            return reply.output

        return Pipeline(order, stage(desk, name="desk"), output)

    [result] = await session(tmp_path / "run.db", flow(), [1], policy=BEST)
    assert isinstance(result.error, ApprovalPending)
    with edit_journal(tmp_path / "run.db") as editor:
        editor.answer("pipeline", 1, True)
    assert (await session(tmp_path / "run.db", flow(), [1])).values() == ["refunded"]
    assert made == [("order", 1), ("refund", 1)]


# Effects ------------------------------------------------------------------------------------------


async def test_each_item_has_a_key_per_stage_the_same_in_every_session(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    keys: list[tuple[str, int, str]] = []
    stops = [True]

    async def a(item: int) -> int:
        keys.append(("a", item, harness.current_run().idempotency_key))
        return item

    async def b(item: int) -> int:
        keys.append(("b", item, harness.current_run().idempotency_key))
        if stops:
            await trio.sleep_forever()
        return item

    async def together(items: list[int]) -> list[int]:
        keys.append(("together", len(items), harness.current_run().idempotency_key))
        return items

    flow = Pipeline(a, b, stage(together, batch=Batch(2)))
    with trio.move_on_after(5):
        await session(tmp_path / "run.db", flow, [1, 2])
    stops.clear()
    await session(tmp_path / "run.db", flow, [1, 2])
    assert len(keys) == 2 + 2 + 2 + 1
    assert len(set(keys)) == len({key for _, _, key in keys}) == 5, "b has its keys again"


async def test_what_a_call_for_several_items_uses_is_divided_among_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def together(items: list[int]) -> list[int]:
        with reserve_budget(tokens=10) as spending:
            spending.settle(tokens=10, cost_usd=1.0)
        return items

    flow = Pipeline(stage(together, batch=Batch(4)))
    await session(tmp_path / "run.db", flow)
    with read_journal(tmp_path / "run.db") as reader:
        used = sorted((one.tokens, one.cost_usd) for one in reader.items("pipeline"))
        assert used == [(2, 0.25), (2, 0.25), (3, 0.25), (3, 0.25)]


# Gathering stages, outputs, streams ---------------------------------------------------------------


async def test_a_stage_that_gathers_doesnt_wait_for_more_suspects_than_are_read_ahead(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    sizes: list[int] = []

    async def together(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return items

    flow = Pipeline(stage(doubling([], "a"), limit=1), stage(together, batch=Batch(10)))
    suspects = range(1, READ_AHEAD_AT_LEAST + 3)
    async with open_journal(tmp_path / "run.db") as journal:
        steps = await journal.open_batch("pipeline", target="harness.flow.Pipeline", settings={})
        await steps.begin([steps.find(one, one) for one in suspects])
        await steps.close()
    options = {"max_attempts": 2}
    await session(tmp_path / "run.db", flow, [0, *suspects], options=options)
    assert sizes == [1] * (1 + len(suspects))


@pytest.mark.parametrize("comes_slowly", [False, True])
async def test_a_stage_that_gathers_doesnt_wait_for_items_that_run_alone(
    comes_slowly: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A suspect starts once nothing is in flight: those that are mustn't wait for it."""
    path = tmp_path / "run.db"
    sizes: list[int] = []

    async def together(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return items

    async def items() -> AsyncIterator[int]:
        for item in (0, 3, 1, 2):
            await trio.sleep(5)
            yield item

    flow = Pipeline(doubling([], "a"), stage(together, batch=Batch(10)))
    async with open_journal(path) as journal:  # A session that dies with two items in flight.
        steps = await journal.open_batch("pipeline", target="harness.flow.Pipeline", settings={})
        await steps.begin([steps.find(1, 1), steps.find(2, 2)])
        await steps.close()
    source: Any = items() if comes_slowly else range(4)
    results = await session(path, flow, source, options={"max_attempts": 2})
    assert sorted(results.values()) == [0, 2, 4, 6]
    assert sizes == [2, 1, 1]


async def test_outputs_go_on_where_they_were(tmp_path: Path, autojump_clock: MockClock) -> None:
    made: Made = []
    stops = [True]

    async def split(item: int) -> AsyncIterator[int]:
        made.append(("split", item))
        for number in range(3):
            yield 10 * item + number

    async def last(item: int) -> Any:
        made.append(("last", item))
        if item == 22 and stops:
            await trio.sleep_forever()
        return DROP if item == 20 else item

    flow = Pipeline(doubling(made, "a"), split, doubling(made, "b"), last)
    with trio.move_on_after(10):
        await session(tmp_path / "run.db", flow, [1])
    assert len(made) == 1 + 1 + 3 + 3
    made.clear()
    stops.clear()
    [result] = await session(tmp_path / "run.db", flow, [1])
    assert result.value == (40, 42, 44)
    assert made == []


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_stream_with_a_window_resumes(
    ordered: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    flow = Pipeline(stage(doubling(made, "a"), limit=2), stage(doubling(made, "b"), limit=1))
    read: list[int] = []
    for take in (5, 100):
        async with (
            open_journal(path) as journal,
            flow.open(range(12), key=key_of, journal=journal, ordered=ordered, window=4) as stream,
        ):
            async for result in stream:
                read.append(result.index)
                if len(read) == take:
                    break
    assert sorted(read[5:]) == list(range(12))
    again = [one for one in {*made} if made.count(one) > 1]
    assert not {item for _, item in again} & {2 * index for index in read[:5]}
    assert len(again) <= 4, "what was in flight when the reader left"


# Routers ------------------------------------------------------------------------------------------


def router_of(made: Made, slow: str = "slow") -> Router[Any, Any]:
    async def choose(item: int) -> str:
        made.append(("choose", item))
        return "fast" if item < 3 else "slow"

    async def fast(item: int) -> int:
        made.append(("fast", item))
        if item == 1:
            raise ValueError("too hard")
        return item

    return Router(
        choose, tracks={"fast": track(fast, escalate="slow"), "slow": doubling(made, slow)}
    )


async def test_a_changed_track_takes_its_items_again_and_no_others(
    journal_path: str, autojump_clock: MockClock
) -> None:
    made: Made = []
    first = await session(journal_path, router_of(made))
    assert first.values() == [0, 2, 2, 6]
    made.clear()
    again = await session(journal_path, router_of(made))
    assert made == []
    assert [one.attempts for one in again] == [one.attempts for one in first] == [1, 2, 1, 1]
    changed = await session(journal_path, router_of(made, "slower"), priority=lambda item: item)
    assert changed.values() == [0, 2, 2, 6]
    assert sorted(made) == [("slower", 1), ("slower", 3)]


async def test_an_item_of_a_router_goes_on_on_its_track(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made: Made = []
    path = tmp_path / "run.db"
    with trio.move_on_after(0.5):
        await session(path, router_of(made), [1, 3])
    assert sorted(made) == [("choose", 1), ("choose", 3), ("fast", 1), ("slow", 1), ("slow", 3)]
    made.clear()
    assert (await session(path, router_of(made), [1, 3])).values() == [2, 6]
    assert sorted(made) == [("slow", 1), ("slow", 3)]
