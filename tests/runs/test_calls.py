"""`open_run` as a decorator: state belongs to the call, wherever it comes from."""

import asyncio
import functools
import inspect
import pickle
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, assert_type

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import NoRunError, RunCancelled, RunEndedError, RunTimedOut

messages: harness.RunLocal[list[str]] = harness.RunLocal(list, name="messages")


class Desk:
    """The published fix, with one line more: the decorator."""

    @harness.open_run("desk")
    async def answer(self, ticket: str, *, checks: int = 0) -> str:
        mine = messages.get()
        mine.append(ticket)
        await trio.lowlevel.checkpoint()
        if checks:
            await self.answer(f"check {ticket}", checks=checks - 1)
        mine.append(f"about {mine[0]}")
        return " / ".join(mine)

    @harness.open_run("desk")
    def answer_at_once(self, ticket: str, *, checks: int = 0) -> str:
        mine = messages.get()
        mine.append(ticket)
        if checks:
            self.answer_at_once(f"check {ticket}", checks=checks - 1)
        mine.append(f"about {mine[0]}")
        return " / ".join(mine)


TICKETS = [f"ticket {number}" for number in range(10)]
RIGHT = [f"{ticket} / about {ticket}" for ticket in TICKETS]

DESK = Desk()


# The forms that calls take, and the places they take them in. Each returns the answers to TICKETS.

Answer = Callable[[str, int], Awaitable[str]]
Form = Callable[[Answer], Awaitable[list[str]]]


async def answer_async(ticket: str, checks: int = 0) -> str:
    return await DESK.answer(ticket, checks=checks)


async def answer_in_thread(ticket: str, checks: int = 0) -> str:
    return await trio.to_thread.run_sync(
        functools.partial(DESK.answer_at_once, ticket, checks=checks)
    )


async def two_calls(answer: Answer) -> list[str]:
    return [await answer(ticket, 0) for ticket in TICKETS[:2]]


async def three_nested_calls(answer: Answer) -> list[str]:
    return [await answer(ticket, 2) for ticket in TICKETS[:2]]


async def ten_calls_in_a_nursery(answer: Answer) -> list[str]:
    answers: dict[str, str] = {}

    async def one(ticket: str) -> None:
        answers[ticket] = await answer(ticket, 0)

    async with trio.open_nursery() as nursery:
        for ticket in TICKETS:
            nursery.start_soon(one, ticket)
    return [answers[ticket] for ticket in TICKETS]


async def ten_calls_in_a_batch(answer: Answer) -> list[str]:
    async def one(ticket: str) -> str:
        return await answer(ticket, 0)

    return (await harness.fan_out(one, TICKETS)).values()


FORMS: list[Form] = [two_calls, three_nested_calls, ten_calls_in_a_nursery, ten_calls_in_a_batch]


async def in_no_run(form: Form, answer: Answer) -> list[str]:
    found = await form(answer)
    assert harness.current_run_or_none() is None
    return found


async def in_one_run(form: Form, answer: Answer) -> list[str]:
    found: list[str] = []
    async with harness.open_run("server"):
        found += await in_the_run_around(form, answer)
    return found


async def in_the_run_around(form: Form, answer: Answer) -> list[str]:
    run = harness.current_run()
    messages.get().append("its own")
    found = await form(answer)
    assert harness.current_run() is run
    assert messages.get() == ["its own"]
    return found


async def in_one_item(form: Form, answer: Answer) -> list[str]:
    async def item(_: int) -> list[str]:
        return await in_the_run_around(form, answer)

    first, second = (await harness.fan_out(item, range(2))).values()
    assert first == second
    return first


PLACES = [in_no_run, in_one_run, in_one_item]


@pytest.mark.parametrize("answer", [answer_async, answer_in_thread])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
async def test_each_call_has_its_own_state_wherever_it_comes_from(
    form: Form, place: Callable[[Form, Answer], Awaitable[list[str]]], answer: Answer
) -> None:
    answers = await place(form, answer)
    assert answers == RIGHT[: len(answers)]
    assert len(answers) in (2, 10)


@pytest.mark.harness_run(True)
@pytest.mark.parametrize("answer", [answer_async, answer_in_thread])
@pytest.mark.parametrize("form", FORMS)
async def test_each_call_in_a_test_has_its_own_state(form: Form, answer: Answer) -> None:
    """The plugin's run around a test is one more run that calls must not share."""
    assert harness.current_run().name.startswith("test_each_call_in_a_test")
    answers = await in_the_run_around(form, answer)
    assert answers == RIGHT[: len(answers)]


def test_a_plain_function_owns_its_state_without_trio() -> None:
    assert [DESK.answer_at_once(ticket, checks=2) for ticket in TICKETS] == RIGHT
    assert harness.current_run_or_none() is None


def test_an_async_function_owns_its_state_in_asyncio() -> None:
    """A migration goes step by step, and the old program still runs on asyncio meanwhile."""

    @harness.open_run("desk")
    async def answer(ticket: str) -> str:
        messages.get().append(ticket)
        await asyncio.sleep(0)
        return " / ".join(messages.get())

    async def main() -> list[str]:
        return await asyncio.gather(*[answer(ticket) for ticket in TICKETS])

    assert asyncio.run(main()) == TICKETS


@pytest.mark.slow
async def test_ten_thousand_agents_of_one_class_are_not_crossed() -> None:
    answers: dict[int, str] = {}

    async def one(number: int) -> None:
        # Half of them are one agent, and half are agents of their own: of one class all.
        desk = DESK if number % 2 else Desk()
        answers[number] = await desk.answer(str(number))

    async with trio.open_nursery() as nursery:
        for number in range(10_000):
            nursery.start_soon(one, number)
    assert [n for n, words in answers.items() if words != f"{n} / about {n}"] == []
    assert len(answers) == 10_000


# Statuses ----------------------------------------------------------------------------------------


async def test_the_run_of_a_call_ends_as_the_block_does(autojump_clock: MockClock) -> None:
    runs: list[harness.Run] = []

    @harness.open_run("call", timeout=5, deps="deps", tags={"shard": 3})
    async def call(body: Callable[[], Awaitable[object]]) -> str:
        run = harness.current_run()
        runs.append(run)
        assert (run.name, run.deps, dict(run.tags)) == ("call", "deps", {"shard": 3})
        await body()
        return "done"

    async def fail() -> None:
        raise LookupError("no such customer")

    async def be_cancelled() -> None:
        harness.current_run().cancel("no longer needed")
        await trio.sleep(1)

    assert await call(trio.lowlevel.checkpoint) == "done"
    with pytest.raises(LookupError) as failed:
        await call(fail)
    assert failed.value.__notes__ == ["in run call"]
    with pytest.raises(RunTimedOut):
        await call(trio.sleep_forever)
    with pytest.raises(RunCancelled) as cancelled:
        await call(be_cancelled)
    with trio.move_on_after(1) as scope:
        await call(trio.sleep_forever)
    assert scope.cancelled_caught
    assert [run.status for run in runs] == ["ok", "failed", "timed_out", "cancelled", "cancelled"]
    assert cancelled.value.reason == "no longer needed"
    assert cancelled.value.run_id == runs[3].id
    copy = pickle.loads(pickle.dumps(cancelled.value))
    assert (copy.reason, copy.run_id) == ("no longer needed", runs[3].id)


async def test_a_cancelled_call_never_returns_none() -> None:
    @harness.open_run("call")
    async def call() -> int:
        harness.current_run().cancel()
        await trio.lowlevel.checkpoint()
        return 1

    with pytest.raises(RunCancelled):
        await call()


async def test_an_item_that_its_own_calls_cancel_leaves_is_cancelled_and_not_failed() -> None:
    @harness.open_run("agent")
    async def agent(number: int) -> int:
        if number == 1:
            harness.current_run().cancel("wrong question")
        await trio.lowlevel.checkpoint()
        return number

    async def two_at_once(number: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent, 1)
            nursery.start_soon(agent, 1)

    results = await harness.fan_out(agent, range(3), policy=harness.BestEffort())
    assert [result.status for result in results] == ["ok", "cancelled", "ok"]
    assert isinstance(results[1].error, RunCancelled)
    assert results[1].error.reason == "wrong question"
    groups = await harness.fan_out(two_at_once, [0], policy=harness.BestEffort())
    assert [result.status for result in groups] == ["cancelled"]


async def test_an_item_left_by_the_cancel_of_a_strange_run_has_failed() -> None:
    async def item(number: int) -> None:
        raise RunCancelled("somebody else's", run_id="k3v9q2xw-17")

    results = await harness.fan_out(item, [0], policy=harness.BestEffort())
    assert results[0].status == "failed"


async def test_a_budget_is_each_calls_own() -> None:
    @harness.open_run("call", budget=harness.Budget(tokens=10))
    async def call() -> harness.Run:
        return harness.current_run()

    assert (await call()).id != (await call()).id


# State only --------------------------------------------------------------------------------------


def test_what_needs_trio_says_so_when_a_plain_function_asks() -> None:
    @harness.open_run("job")
    def job() -> harness.Run:
        run = harness.current_run()
        assert (run.remaining(), run.deadline, run.stopping) == (float("inf"), float("inf"), False)
        run.stop()
        assert run.stopping
        run.emit_nowait("fine")
        with pytest.raises(RuntimeError, match=r"owns state only, so it can't be cancelled.*trio"):
            run.cancel()
        return run

    run = job()
    assert run.status == "ok"
    with pytest.raises(RunEndedError):
        run.deps  # noqa: B018


async def test_a_task_cant_be_given_to_the_run_of_a_plain_function() -> None:
    async with trio.open_nursery() as nursery:

        @harness.open_run("job")
        def job() -> None:
            with pytest.raises(RuntimeError, match=r"owns state only.*trio"):
                harness.start_soon(nursery, trio.sleep, 0, run=harness.current_run())

        job()


def test_a_timeout_needs_trio() -> None:
    with pytest.raises(TypeError, match=r"timeout=.*decorates .*job, which can't be cut short"):

        @harness.open_run("job", timeout=5)
        def job() -> None: ...

    @harness.open_run("job", timeout=5)
    async def async_job() -> None: ...

    with pytest.raises(
        RuntimeError, match="called outside trio, in asyncio; it can't be cut short there"
    ):
        asyncio.run(async_job())


async def test_a_plain_call_is_a_child_of_the_run_around_it() -> None:
    @harness.open_run("job")
    def job() -> tuple[str, Any]:
        with_history.get().append("child")
        return harness.current_run().path, harness.current_run().deps

    with_history: harness.RunLocal[list[str]] = harness.RunLocal(list, fork=list.copy)
    async with harness.open_run("nightly", deps="deps") as run:
        with_history.get().append("parent")
        assert job() == ("nightly/job", "deps")
        assert await trio.to_thread.run_sync(job) == ("nightly/job", "deps")
        assert with_history.get() == ["parent"]
        assert run.children == ()


def test_a_plain_call_that_raises_has_failed_and_a_cancel_of_asyncio_is_a_cancel() -> None:
    runs: list[harness.Run] = []

    @harness.open_run("job")
    def job() -> None:
        runs.append(harness.current_run())
        raise LookupError

    @harness.open_run("job")
    async def async_job() -> None:
        runs.append(harness.current_run())
        await asyncio.sleep(10)

    async def main() -> None:
        task = asyncio.create_task(async_job())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with pytest.raises(LookupError):
        job()
    asyncio.run(main())
    assert [run.status for run in runs] == ["failed", "cancelled"]


def test_an_error_in_asyncio_is_not_said_to_come_of_there_being_no_trio() -> None:
    """Its traceback had "must be called from async context" above "During handling of"."""

    @harness.open_run("job")
    async def job() -> None:
        raise LookupError

    with pytest.raises(LookupError) as caught:
        asyncio.run(job())
    assert caught.value.__context__ is None


# What can't be decorated -------------------------------------------------------------------------


def test_a_generator_is_refused_with_what_to_write_instead() -> None:
    async def run_stream(prompt: str) -> AsyncGenerator[str, None]:
        yield prompt

    def run_all(prompt: str) -> Iterator[str]:
        yield prompt

    wrapped = functools.wraps(run_stream)(lambda prompt: run_stream(prompt))
    for stream in (run_stream, functools.partial(run_stream, "x"), wrapped):
        with pytest.raises(TypeError, match=r"inside it, with @trio.as_safe_channel above `async"):
            harness.open_run("desk")(stream)
    with pytest.raises(TypeError, match="Return a list"):
        harness.open_run("desk")(run_all)


def test_other_things_that_cant_be_decorated_say_what_to_write() -> None:
    with pytest.raises(TypeError, match="so that @staticmethod comes first"):
        harness.open_run("desk")(staticmethod(len))
    with pytest.raises(TypeError, match="takes an async function, not 3"):
        harness.open_run("desk")(3)  # type: ignore[type-var]

    @harness.open_run("desk")
    def forgotten() -> Coroutine[Any, Any, None]:
        return work()

    async def work() -> None: ...

    with pytest.raises(TypeError, match="go on after its run has ended; define it with `async"):
        _ = forgotten()


async def test_the_signature_and_the_types_are_kept() -> None:
    async def answer(ticket: str, *, urgent: bool = False) -> int:
        """Answer."""
        return 1

    decorated = harness.open_run("desk")(answer)
    assert inspect.signature(decorated) == inspect.signature(answer)
    assert inspect.iscoroutinefunction(decorated)
    assert (decorated.__doc__, decorated.__name__) == ("Answer.", "answer")
    assert_type(await decorated("x", urgent=True), int)
    assert_type(await DESK.answer("x"), str)
    assert_type(DESK.answer_at_once("x"), str)


# parent= -----------------------------------------------------------------------------------------


async def test_a_run_with_a_parent_follows_its_cancel_stop_and_dump(
    autojump_clock: MockClock,
) -> None:
    """A server's request tasks have another context than the run of the server."""
    requests: list[harness.Run] = []
    async with trio.open_nursery() as nursery:
        async with harness.open_run("server", deps="deps") as server:

            async def request() -> None:
                async with harness.open_run("request", parent=server) as run:
                    requests.append(run)
                    await trio.sleep_forever()
                assert run.status == "cancelled"
                requests.append(run)

            harness.start_soon(nursery, request, run=None)
            await trio.sleep(1)
            (run,) = requests
            assert (run.path, run.deps, run.parent) == ("server/request", "deps", server)
            assert "server/request" in harness.dump(server)
            server.stop()
            assert run.stopping
            server.cancel("going down")
        assert requests == [run, run]
        assert run.cancel_reason == "run 'server' was cancelled: going down"
    assert harness.current_run_or_none() is None


async def test_leaving_the_parent_waits_for_the_child(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        async with harness.open_run("server") as server:

            @harness.open_run("request", parent=server)
            async def request() -> None:
                await trio.sleep(5)

            harness.start_soon(nursery, request, run=None)
            await trio.sleep(1)
        assert trio.current_time() == 5
        with pytest.raises(RunEndedError):
            await request()


async def test_the_deadline_and_the_failure_of_the_parent_reach_the_child(
    autojump_clock: MockClock,
) -> None:
    ended: list[str] = []

    async def request(server: harness.Run) -> None:
        async with harness.open_run("request", parent=server, timeout=50) as run:
            await trio.sleep_forever()
        ended.append(run.status)

    async with trio.open_nursery() as nursery:
        with pytest.raises(RunTimedOut):
            async with harness.open_run("server", timeout=3) as server:
                harness.start_soon(nursery, request, server, run=None)
                await trio.sleep_forever()
        with pytest.raises(LookupError):
            async with harness.open_run("server") as server:
                harness.start_soon(nursery, request, server, run=None)
                await trio.sleep(1)
                raise LookupError
    assert ended == ["cancelled", "cancelled"]


async def test_the_childs_own_endings_are_its_own(autojump_clock: MockClock) -> None:
    async with harness.open_run("server") as server:
        with pytest.raises(RunTimedOut):
            async with harness.open_run("request", parent=server, timeout=1):
                await trio.sleep(2)
        async with harness.open_run("request", parent=server) as run:
            run.cancel("enough")
            await trio.sleep(2)
        assert (run.status, run.cancel_reason) == ("cancelled", "enough")
        with pytest.raises(LookupError):
            async with harness.open_run("request", parent=server):
                raise LookupError
        with trio.move_on_after(1) as scope:
            async with harness.open_run("request", parent=server):
                await trio.sleep(2)
        assert scope.cancelled_caught
        assert server._tasks == {}
    assert server.status == "ok"


async def test_a_parent_that_cant_be_one_is_refused() -> None:
    with pytest.raises(TypeError, match=r"parent=\.\.\.\) takes a run"):
        harness.open_run("request", parent="server")  # type: ignore[call-overload]
    async with harness.open_run("server") as server:
        pass
    with pytest.raises(RunEndedError):
        async with harness.open_run("request", parent=server):
            pass

    @harness.open_run("job")
    def job() -> harness.runs.RunBlock:
        return harness.open_run("request", parent=harness.current_run())

    with pytest.raises(RunEndedError):
        async with job():
            pass


async def test_outside_of_a_call_there_is_no_run() -> None:
    assert await DESK.answer("x")
    with pytest.raises(NoRunError):
        messages.get()
