"""`dump` prints the tree of runs: who they are, how long they live, what each waits for, where."""

from __future__ import annotations

import re
import signal

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness

RUNS = 1_000


async def answer_of_the_model() -> None:
    await trio.sleep_forever()


async def ask_the_model() -> None:
    await answer_of_the_model()


async def one_ticket(name: str) -> None:
    async with harness.open_run(name):
        await ask_the_model()


async def test_the_tree_is_printed_with_path_status_and_age(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        async with harness.open_run("nightly"):
            await trio.sleep(30)
            async with harness.open_run("ticket-17"):
                await trio.sleep(12)
                text = harness.dump()
        nursery.cancel_scope.cancel()
    parent = next(line for line in text.splitlines() if "nightly" in line)
    child = next(line for line in text.splitlines() if "ticket-17" in line)
    assert text.index(parent) < text.index(child)
    assert "running" in parent
    assert "running" in child
    assert "42" in parent
    assert "12" in child
    assert indent(child) > indent(parent)


@pytest.mark.strays
async def test_a_thousand_equal_stacks_print_once_and_every_run_is_named(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        async with harness.open_run("nightly"):
            for number in range(RUNS):
                nursery.start_soon(one_ticket, f"ticket-{number}.")
            await wait_all_tasks_blocked()
            text = harness.dump()
        nursery.cancel_scope.cancel()
    missing = [number for number in range(RUNS) if f"ticket-{number}." not in text]
    assert missing == []
    # Once as the frame's function, and maybe once more in the source line that calls it.
    assert 1 <= text.count("ask_the_model") <= 2
    assert re.search(r"\b1[,_ ]?000\b", text), "the one stack says how many it stands for"


async def test_stacks_are_printed_without_the_frames_of_trio_and_harness(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one_ticket, "ticket-17")
        await wait_all_tasks_blocked()
        text = harness.dump()
        nursery.cancel_scope.cancel()
    assert "answer_of_the_model" in text
    assert "sleep_forever" not in re.sub(r"await trio\.sleep_forever\(\)", "", text)
    assert "_timeouts.py" not in text
    assert "_core" not in text
    assert "wait_task_rescheduled" not in text


async def test_a_dump_of_one_run_shows_what_is_below_it_only(autojump_clock: MockClock) -> None:
    async def parent(name: str) -> None:
        async with harness.open_run(name) as run:
            handles[name] = run
            await one_ticket(f"{name}-child")

    handles: dict[str, harness.Run] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parent, "left")
        nursery.start_soon(parent, "right")
        await wait_all_tasks_blocked()
        text = harness.dump(handles["left"])
        nursery.cancel_scope.cancel()
    assert "left-child" in text
    assert "right" not in text


async def test_all_tasks_of_a_run_are_shown(autojump_clock: MockClock) -> None:
    async def first_helper() -> None:
        await trio.sleep_forever()

    async def second_helper() -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as outside:
        async with harness.open_run("job") as run:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first_helper)
                harness.start_soon(outside, second_helper, run=run)
                await wait_all_tasks_blocked()
                text = harness.dump(run)
                run.cancel()
    assert "first_helper" in text
    assert "second_helper" in text


async def test_a_dump_shows_runs_that_wait_for_their_tasks(autojump_clock: MockClock) -> None:
    async def host(nursery: trio.Nursery) -> None:
        async with harness.open_run("leaving") as run:
            harness.start_soon(nursery, ask_the_model, run=run)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(host, nursery)
        await wait_all_tasks_blocked()
        text = harness.dump()
        nursery.cancel_scope.cancel()
    assert "leaving" in text
    assert "ask_the_model" in text


async def test_a_dump_shows_that_a_run_is_stopping(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        run.stop("enough")
        assert "stopping" in harness.dump()


async def test_without_any_run_a_dump_says_so_in_words() -> None:
    assert harness.dump().strip()


async def test_a_dump_in_a_signal_handler_of_a_running_task() -> None:
    async with harness.open_run("nightly"):
        text = dump_by_signal()
    assert "nightly" in text


async def test_a_dump_in_a_signal_handler_while_trio_waits(autojump_clock: MockClock) -> None:
    """A signal mostly comes while no task runs, so there is no current task to start from."""

    class AsIfSignalled(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            if not texts:
                try:
                    texts.append(dump_by_signal())
                except BaseException as exc:  # An instrument must not raise; the test looks.
                    texts.append(repr(exc))

    texts: list[str] = []
    instrument = AsIfSignalled()
    async with harness.open_run("nightly"):
        trio.lowlevel.add_instrument(instrument)
        try:
            await trio.sleep(1)
        finally:
            trio.lowlevel.remove_instrument(instrument)
    assert "nightly" in texts[0]
    assert "running" in texts[0]


def test_outside_of_trio_a_dump_is_refused() -> None:
    with pytest.raises(RuntimeError, match="trio"):
        harness.dump()


async def test_a_dump_does_not_change_what_it_looks_at(autojump_clock: MockClock) -> None:
    messages = harness.RunLocal(list[str], name="messages")
    async with harness.open_run("job") as run:
        messages.get().append("one")
        for _ in range(3):
            harness.dump()
        assert harness.current_run() is run
        assert messages.get() == ["one"]
        await trio.lowlevel.checkpoint()
    assert run.status == "ok"


# waiting_for -----------------------------------------------------------------------------------


async def test_waiting_for_names_function_and_line_of_the_innermost_users_frame(
    autojump_clock: MockClock,
) -> None:
    handles: list[harness.Run] = []

    async def job() -> None:
        async with harness.open_run("job") as run:
            handles.append(run)
            await ask_the_model()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(job)
        await wait_all_tasks_blocked()
        words = handles[0].waiting_for
        nursery.cancel_scope.cancel()
    assert "answer_of_the_model" in words
    assert str(answer_of_the_model.__code__.co_firstlineno + 1) in words


async def test_waiting_for_says_when_the_run_waits_for_its_tasks(
    autojump_clock: MockClock,
) -> None:
    handles: list[harness.Run] = []

    async def host(nursery: trio.Nursery) -> None:
        async with harness.open_run("leaving") as run:
            handles.append(run)
            harness.start_soon(nursery, trio.sleep_forever, run=run)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(host, nursery)
        await wait_all_tasks_blocked()
        words = handles[0].waiting_for
        nursery.cancel_scope.cancel()
    assert "task" in words


async def test_waiting_for_says_when_the_run_waits_for_room_in_a_buffer(
    autojump_clock: MockClock,
) -> None:
    handles: list[harness.Run] = []

    async def job() -> None:
        async with harness.open_run("job") as run:
            handles.append(run)
            async with run.subscribe(buffer=1):
                await run.emit("one")
                await run.emit("two")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(job)
        await wait_all_tasks_blocked()
        words = handles[0].waiting_for
        nursery.cancel_scope.cancel()
    assert "subscri" in words or "event" in words or "emit" in words


async def test_waiting_for_of_the_running_task_and_of_an_ended_run_are_words_too() -> None:
    async with harness.open_run("job") as run:
        assert isinstance(run.waiting_for, str)
    assert run.waiting_for is None or isinstance(run.waiting_for, str)


@pytest.mark.parametrize("carried", [True, False])
@pytest.mark.strays
async def test_a_dump_of_an_ended_run_says_whether_tasks_still_carry_it(
    autojump_clock: MockClock, carried: bool
) -> None:
    """It said so of every ended run, which sent people after strays that weren't."""
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            if carried:
                nursery.start_soon(trio.sleep_forever)
            await trio.sleep(5)
        text = harness.dump(run)
        nursery.cancel_scope.cancel()
    assert "job" in text
    assert "ok 5.0 s" in text
    assert ("tasks still carry it" in text) is carried


# Helpers ---------------------------------------------------------------------------------------


def indent(line: str) -> int:
    """Return how far the first letter of the line is from the left."""
    match = re.search(r"\w", line)
    assert match is not None
    return match.start()


def dump_by_signal() -> str:
    """Take a dump in the handler of a signal that arrives now."""
    texts: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: texts.append(harness.dump()))
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    return texts[0]


history: harness.RunLocal[list[str]] = harness.RunLocal(list, name="history")
client: harness.RunLocal[dict[str, object]] = harness.RunLocal(dict, name="client")


class Odd:
    def __repr__(self) -> str:
        raise ValueError("no")


async def test_the_locals_of_each_run_are_shown_when_asked_for() -> None:
    async with harness.open_run("nightly") as nightly:
        history.get().append("from the parent")
        async with harness.open_run("ticket-17"):
            history.get().append("x" * 10_000)
            text = harness.dump(nightly, locals=True)
            plain = harness.dump(nightly)
    assert "from the parent" not in plain
    lines = text.splitlines()
    assert lines[1] == "  history: ['from the parent']"
    assert lines[3].startswith("    history: ['xxx")
    assert len(lines[3]) < 400


async def test_secrets_in_locals_are_not_printed() -> None:
    secret = "hunter22hunter22"
    values = [
        {"api_key": secret, "model": "small"},
        {"headers": {"Authorization": f"Bearer {secret}"}},
        f"postgres://ada:{secret}@db/tickets",
        [f"sk-{secret}", f"ghp_{secret}"],
        f"OPENAI_API_KEY={secret}",
        {"token": secret.encode(), "tokens": 1_000_000},
    ]
    async with harness.open_run("nightly"):
        for value in values:
            client.get()[str(len(client.get()))] = value
        client.get()["odd"] = "last"
        text = harness.dump(locals=True)
    assert secret not in text
    assert text.count("[key]") >= 6
    for kept in ("small", "postgres://ada:", "@db/tickets", "1000000"):
        assert kept in text


async def test_a_value_that_cant_be_shown_doesnt_spoil_the_dump() -> None:
    async with harness.open_run("nightly"):
        harness.RunLocal(Odd, name="odd").get()
        assert "odd: <Odd, whose repr raises>" in harness.dump(locals=True)


async def test_locals_of_lists_the_run_locals_of_a_run() -> None:
    with pytest.raises(harness.errors.NoRunError):
        harness.runs.locals_of()
    async with harness.open_run("nightly", budget=harness.Budget(tokens=5)) as nightly:
        history.get().append("a")
        client.get()
        assert harness.runs.locals_of() == {history: ["a"], client: {}}
        async with harness.open_run("ticket-17"):
            assert harness.runs.locals_of() == {}
            assert harness.runs.locals_of(nightly)[history] is history.get_in(nightly)
        with pytest.raises(TypeError, match="takes a run"):
            harness.runs.locals_of("nightly")  # type: ignore[arg-type]
    with pytest.raises(harness.errors.RunEndedError):
        harness.runs.locals_of(nightly)
