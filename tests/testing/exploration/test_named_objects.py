"""An exploration names what tasks share by accident, not the list that they put results in."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from harness.errors import ScheduleError
from harness.testing import explore_schedules
from tests.testing.exploration import leaks
from tests.testing.isolation import kinds

NAMES = {
    "cached_by_the_wrong_key": "answers (local of remembered)",
    "closure_variable": "current (local of make_nonlocal)",
    "environment": "os.environ",
    "captured_output": "sys.stdout",
    "global_dict": f"{kinds.HERE}.STATE",
    "unread_reply": f"{kinds.HERE}.POOL.wire.replies",
    "class_list": f"{kinds.HERE}.Chat.messages",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
async def test_the_object_is_named_and_the_results_are_not(name: str) -> None:
    """Every task adds its result to a dict of the test; that is no race."""
    agent, corrected = getattr(kinds, name), getattr(kinds, f"{name}_fixed")

    @explore_schedules
    async def test() -> None:
        results: dict[str, Any] = {}
        gave_up = trio.CancelScope()

        async def one(text: str, scope: trio.CancelScope) -> None:
            with scope:
                results[text] = await agent(text)

        async def give_up() -> None:
            await trio.lowlevel.checkpoint()
            gave_up.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "ab", trio.CancelScope())
            nursery.start_soon(one, "cd", trio.CancelScope())
            nursery.start_soon(one, "efg", gave_up)
            nursery.start_soon(give_up)
        for text, result in results.items():
            assert result == await corrected(text)

    with pytest.raises(ScheduleError) as caught:
        await test()
    assert caught.value.objects == (NAMES[name],), caught.value


class Latch:
    """A hand-made event that is replaced when it has been set, which a slow waiter never sees."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.items: list[int] = []

    def put(self, item: int) -> None:
        self.items.append(item)
        self.event.set()
        self.event = trio.Event()

    async def get(self) -> int:
        while not self.items:
            await trio.lowlevel.checkpoint()
            await self.event.wait()
        return self.items.pop()


async def test_in_a_deadlock_what_one_task_replaced_under_the_other() -> None:
    @explore_schedules
    async def test() -> None:
        latch = Latch()

        async def put_late() -> None:
            for _ in range(6):
                await trio.lowlevel.checkpoint()
            latch.put(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(latch.get)
            nursery.start_soon(put_late)

    with pytest.raises(ScheduleError, match="every task waits") as caught:
        await test()
    assert any(path.startswith("Latch.event (local of") for path in caught.value.objects)


def of_module(module: Any) -> Callable[[], Awaitable[None]]:
    async def test() -> None:
        answers: list[str] = []

        async def patient() -> None:
            answers.append(await module.POOL.ask("patient"))

        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel, scope)
                await module.POOL.ask("impatient")
            nursery.start_soon(patient)
        assert answers == ["reply to patient"]

    return test


async def _cancel(scope: trio.CancelScope) -> None:
    scope.cancel()


async def _by_argument(module: Any) -> None:
    await of_module(module)()


@pytest.mark.parametrize(
    "test", [of_module(leaks), partial(_by_argument, leaks)], ids=["closure", "argument"]
)
async def test_a_module_that_is_no_global_is_put_back_and_named(test: Any) -> None:
    """A module that a test closes over was left alone, so what a schedule left in it stayed.

    The replay for the report began from that, passed, and named nothing.
    """
    with pytest.raises(ScheduleError) as caught:
        await explore_schedules(test)()
    assert any(path.endswith("POOL.connection.unread") for path in caught.value.objects)
    assert "did not fail again" not in str(caught.value)
    assert not leaks.POOL.connection.unread
