"""One run and one task per item, from the first stage to the last, apart from all others."""

import contextvars
from collections.abc import AsyncGenerator
from typing import Any

import trio
from trio.testing import MockClock

import harness
from harness.flow import Batch, Pipeline, Router, stage
from tests.fanout.probes import nothing_left_behind

messages = harness.RunLocal[list[Any]](list, name="messages")
forked = harness.RunLocal[list[Any]](list, name="forked", fork=list.copy)
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def note(item: int) -> int:
    messages.get().append(item)
    forked.get().append(item)
    await trio.sleep(item % 3)
    assert set(messages.get()) == {item}
    return item


async def test_run_locals_follow_an_item_and_never_meet_another(
    autojump_clock: MockClock,
) -> None:
    async def end(item: int) -> tuple[Any, ...]:
        await trio.lowlevel.checkpoint()
        return (*messages.get(), harness.current_run().path)

    results = await Pipeline(
        stage(note, limit=7), stage(note, limit=3), stage(note, limit=5), stage(end, limit=9)
    ).run(range(50))
    assert results.values() == [(n, n, n, f"pipeline/{n}") for n in range(50)]


async def test_an_item_is_one_task_and_one_run(autojump_clock: MockClock) -> None:
    seen: dict[int, set[Any]] = {}

    async def look(item: int) -> int:
        await trio.sleep(1)
        who = (trio.lowlevel.current_task(), harness.current_run().id)
        seen.setdefault(item, set()).add(who)
        return item

    results = await Pipeline(*[stage(look, limit=2)] * 3).run(range(6))
    assert [len(seen[item]) for item in range(6)] == [1] * 6
    assert {run_id for who in seen.values() for _, run_id in who} == {r.run_id for r in results}


async def test_context_variables_follow_too_and_come_from_the_call(
    autojump_clock: MockClock,
) -> None:
    """Items are pulled and started by whichever item made room; none inherits from that."""
    seen: list[str] = []

    def items() -> Any:
        for number in range(6):
            seen.append(variable.get())
            variable.set("left by the source")
            yield number
            variable.set("planted")

    async def first(item: int) -> int:
        assert variable.get() in {"planted", "left by the source"}
        variable.set(f"item {item}")
        await trio.sleep(item % 2)
        return item

    async def last(item: int) -> str:
        await trio.lowlevel.checkpoint()
        return variable.get()

    token = variable.set("planted")
    with nothing_left_behind():
        results = await Pipeline(stage(first, limit=2), last).run(items())
    variable.reset(token)
    assert results.values() == [f"item {n}" for n in range(6)]
    assert set(seen) == {"planted"}


async def test_outputs_are_child_runs_that_start_with_what_is_forked(
    autojump_clock: MockClock,
) -> None:
    async def split(item: int) -> AsyncGenerator[Any, None]:
        messages.get().append(item)
        forked.get().append(item)
        for part in "ab":
            await trio.lowlevel.checkpoint()
            yield f"{item}{part}"

    async def look(item: str) -> Any:
        forked.get().append(item)
        await trio.lowlevel.checkpoint()
        run = harness.current_run()
        assert run.parent is not None
        return item, tuple(messages.get()), tuple(forked.get()), run.path

    results = await Pipeline(split, stage(look, limit=3)).run([1, 2])
    assert results.values() == [
        tuple((f"{n}{p}", (), (n, f"{n}{p}"), f"pipeline/{n - 1}/{i}") for i, p in enumerate("ab"))
        for n in (1, 2)
    ]


async def test_a_batch_is_a_child_run_of_the_pipeline_s(autojump_clock: MockClock) -> None:
    paths: list[str] = []
    variables: list[str] = []

    async def change(item: int) -> int:
        variable.set(f"item {item}")
        messages.get().append(item)
        await trio.lowlevel.checkpoint()
        return item

    async def embed(items: list[int]) -> list[int]:
        run = harness.current_run()
        paths.append(run.path)
        variables.append(variable.get())
        assert messages.get() == []
        await trio.sleep(1)
        return items

    async def check(item: int) -> int:
        assert messages.get() == [item]
        assert variable.get() == f"item {item}"
        await trio.lowlevel.checkpoint()
        return item

    token = variable.set("planted")
    await Pipeline(stage(change, limit=3), stage(embed, batch=Batch(3)), check).run(
        range(7), name="nightly"
    )
    variable.reset(token)
    assert paths == ["nightly/embed-1", "nightly/embed-2", "nightly/embed-3"]
    assert set(variables) == {"planted"}


async def test_a_called_pipeline_or_router_is_a_run_of_its_own(autojump_clock: MockClock) -> None:
    """Two calls in one run would otherwise write to one another's `RunLocal` values."""

    async def end(item: int) -> tuple[Any, ...]:
        await trio.lowlevel.checkpoint()
        return (*messages.get(), harness.current_run().path)

    pipeline = Pipeline(stage(note, limit=2), stage(end, limit=2))
    router = Router(lambda item: "only", tracks={"only": note})
    found: dict[int, Any] = {}

    async def call(item: int) -> None:
        found[item] = await pipeline(item)
        assert await router(item) == item

    async with harness.open_run("outer"):
        async with trio.open_nursery() as nursery:
            for item in range(5):
                nursery.start_soon(call, item)
        assert messages.get() == []
    assert found == {n: (n, "outer/pipeline") for n in range(5)}


async def test_all_stages_of_an_item_share_an_idempotency_key(autojump_clock: MockClock) -> None:
    keys: dict[int, set[str]] = {}

    async def look(item: int) -> int:
        await trio.lowlevel.checkpoint()
        keys.setdefault(item, set()).add(harness.current_run().idempotency_key)
        if item == 1 and len(messages.get()) < 1:
            messages.get().append("failed once")
            raise ValueError(item)
        return item

    each = harness.Attempt(retry=harness.Retry(2))
    await Pipeline(stage(look, each=each), stage(look)).run(range(3))
    assert [len(keys[item]) for item in range(3)] == [1, 1, 1]
    assert len(set.union(*keys.values())) == 3
