"""The pytest plugin, in processes of their own: fixtures, clock, limiters, timeouts, leaks."""

from __future__ import annotations

import re
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from harness.limits import Limiter
from harness.testing.pytest_plugin import limiters_of
from tests.testing.plugin.conftest import ROOT, RunPytest

TRIO_MODE = "trio_mode = true\n"

THREADS = """\
import time
import trio
import pytest

async def test_a_thread_is_at_work(autojump_clock):
    with trio.fail_after(5):
        await trio.to_thread.run_sync(time.sleep, 0.05)
    assert trio.current_time() == 0
    await trio.sleep(3600)
    assert trio.current_time() == 3600

async def test_a_thread_that_waits_for_the_clock_lets_it_go(autojump_clock):
    def work():
        trio.from_thread.run(trio.sleep, 60)
    await trio.to_thread.run_sync(work)
    assert trio.current_time() == 60
"""

LIMITERS = """\
import trio
from harness.limits import Limiter

limiter = Limiter("m", requests_per_minute=60)

class Client:
    pass
client = Client()
client.limiter = Limiter("c", requests_per_minute=60)

async def use():
    async with limiter.reserve(): pass
    async with client.limiter.reserve(): pass
    assert limiter.statistics().granted == 1

async def test_one(): await use()
async def test_two(): await use()
"""

RUNS = """\
import pytest
import harness
from harness.errors import NoRunError

messages = harness.RunLocal(list, name="messages")

async def agent(question):
    messages.get().append(question)
    return list(messages.get())

async def test_one(): assert await agent("x") == ["x"]

@pytest.mark.parametrize("question", ["y"])
async def test_two(question):
    assert await agent(question) == ["y"]
    assert harness.current_run().path == "test_two[y]"

@pytest.mark.harness_run(False)
async def test_alone():
    with pytest.raises(NoRunError, match="An async test has a run of its own, unless the setting"):
        messages.get()

def test_plain():
    with pytest.raises(NoRunError, match='put @harness.open_run."name". above the function'):
        messages.get()
    assert harness.open_run("desk")(messages.get)() == []
"""

FIXTURES = """\
import trio
import harness
from harness.models import Message, ModelRequest

async def test_scripted_model(scripted_model):
    model = scripted_model(["Hello"])
    request = ModelRequest([Message("user", "Hi")])
    assert (await model.complete(request)).content == "Hello"

async def test_sim_provider(sim_provider, autojump_clock):
    async with sim_provider(requests_per_minute=1) as provider:
        body = {"model": "m", "messages": [{"role": "user", "content": "echo"}]}
        reply = await provider.request("/v1/chat/completions", body)
        assert "echo" in str(reply.body)

async def double(x):
    await trio.sleep(1)
    return 2 * x

async def test_chaos(chaos, autojump_clock):
    hit = chaos(fail=ConnectionError, rate=0.5)
    results = await harness.fan_out(hit.wrap(double), range(40), policy=harness.BestEffort())
    assert 0 < len(results.failed) < 40
    again = chaos(fail=ConnectionError, rate=0.5)
    more = await harness.fan_out(again.wrap(double), range(40), policy=harness.BestEffort())
    assert [r.status for r in more] == [r.status for r in results]

async def test_chaos_by_default(chaos, autojump_clock):
    wrapped = chaos.wrap(double)
    results = await harness.fan_out(wrapped, range(100), policy=harness.BestEffort())
    assert 0 < len(results.failed) < 40
"""


LEAKS = """\
import pytest
import trio
import harness
from hypothesis import given, settings, strategies as st

MESSAGES = []
LOCAL = harness.RunLocal(list)

async def agent(text):
    async with harness.open_run("agent"):
        LOCAL.get().append(text)
        await trio.sleep(0)

async def test_clean():
    await agent("a")

async def test_changed_state():
    await trio.sleep(0)
    MESSAGES.append("left")

@pytest.mark.leaks("the list is what this test is about")
async def test_meant():
    await trio.sleep(0)
    MESSAGES.append("left")

async def test_live_run(nursery):
    async def hold(task_status):
        async with harness.open_run("held"):
            task_status.started()
            await trio.sleep_forever()
    await nursery.start(hold)

async def test_stray(nursery):
    async with harness.open_run("gone"):
        nursery.start_soon(trio.sleep_forever)
        await trio.sleep(0)

@settings(max_examples=3, deadline=None)
@given(st.integers())
async def test_with_hypothesis(number):
    await agent(str(number))

def test_plain():
    MESSAGES.append("not looked at")
"""


@pytest.mark.long
def test_threads_limiters_and_fixtures_under_pytest_trio(run_pytest: RunPytest) -> None:
    # What is left behind is nobody's business unless --leak-check asks.
    text = "\n".join([THREADS, LIMITERS, FIXTURES, LEAKS])
    ran = run_pytest(text, ini=TRIO_MODE)
    assert set(ran.outcomes.values()) == {"PASSED"}, ran.text
    assert len(ran.outcomes) == 15


@pytest.mark.long
def test_the_file_of_the_page_passes(run_pytest: RunPytest) -> None:
    page = (ROOT / "docs" / "reference" / "pytest-plugin.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[-1]
    ran = run_pytest(shown, ini=TRIO_MODE)
    assert ran.status == 0, ran.text
    assert set(ran.outcomes.values()) == {"PASSED"}
    assert len(ran.outcomes) == shown.count("async def test_")


@pytest.mark.slow
def test_the_same_without_the_plugin_fails(run_pytest: RunPytest) -> None:
    """So that the test above tests something."""
    ran = run_pytest(THREADS + LIMITERS, "-pno:harness_pytest", ini=TRIO_MODE)
    assert ran.outcomes["test_a_thread_is_at_work"] == "FAILED"
    assert "FAILED" in (ran.outcomes["test_one"], ran.outcomes["test_two"])


CLOCK_FOR_ANYIO = """\
import pytest
from trio.testing import MockClock

@pytest.fixture
def autojump_clock():
    return MockClock(autojump_threshold=0)

@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request):
    if request.param == "trio" and "autojump_clock" in request.fixturenames:
        return "trio", {"clock": request.getfixturevalue("autojump_clock")}
    if "autojump_clock" in request.fixturenames:
        pytest.skip("a trio test")
    return request.param
"""


@pytest.mark.slow
def test_threads_and_leaks_under_anyio(run_pytest: RunPytest) -> None:
    """anyio's plugin runs the same tests; on asyncio, nothing is watched and nothing breaks."""
    plain = """
import anyio
async def test_plain():
    await anyio.sleep(0)

LEFT = []
async def test_leaving():
    await anyio.sleep(0)
    LEFT.append(1)
"""
    ran = run_pytest(
        CLOCK_FOR_ANYIO + THREADS + plain,
        "--anyio-mode=auto",
        "--leak-check",
        plugins=("anyio",),
    )
    outcomes = ran.outcomes
    assert outcomes["test_a_thread_is_at_work[trio]"] == "PASSED", ran.text
    assert outcomes["test_plain[trio]"] == outcomes["test_plain[asyncio]"] == "PASSED"
    assert outcomes["test_leaving[trio]"] == "FAILED"
    assert outcomes["test_leaving[asyncio]"] == "PASSED"


@pytest.mark.long
def test_leak_check_leaves_fixtures_and_the_plugin_alone(run_pytest: RunPytest) -> None:
    """Of pytest-trio's clock, the plugin's own notes led the way to the change of its time."""
    ran = run_pytest(
        """\
        import trio

        async def test_time_goes_on(autojump_clock):
            await trio.sleep(3)
        """,
        "--leak-check",
        ini=TRIO_MODE,
    )
    assert ran.outcomes == {"test_time_goes_on": "PASSED"}, ran.text


@pytest.mark.slow
def test_leak_check_names_what_is_left(run_pytest: RunPytest) -> None:
    ran = run_pytest(LEAKS, "--leak-check", ini=TRIO_MODE)
    assert ran.outcomes == {
        "test_clean": "PASSED",
        "test_changed_state": "FAILED",
        "test_meant": "PASSED",
        "test_live_run": "FAILED",
        "test_stray": "FAILED",
        "test_with_hypothesis": "PASSED",
        "test_plain": "PASSED",
    }, ran.text
    assert "test_it.MESSAGES was changed" in ran.text
    assert "run 'test_live_run/held' goes on" in ran.text
    assert "stray task" in ran.text


SLOW = """\
import time
import pytest
import trio
import harness

async def hang():
    async with harness.open_run("stuck"):
        await trio.sleep_forever()

@pytest.mark.harness_timeout(0.2)
async def test_hangs(autojump_clock):
    await hang()

@pytest.mark.harness_timeout(0.2)
async def test_hangs_on_a_real_clock():
    await hang()

@pytest.mark.harness_timeout(60)
async def test_is_in_time():
    await trio.sleep(0)
"""


@pytest.mark.slow
def test_a_test_that_takes_too_long_says_what_it_waits_for(run_pytest: RunPytest) -> None:
    ran = run_pytest(SLOW, ini=TRIO_MODE)
    assert ran.outcomes == {
        "test_hangs": "FAILED",
        "test_hangs_on_a_real_clock": "FAILED",
        "test_is_in_time": "PASSED",
    }, ran.text
    assert "timed out after 0.2 s" in ran.text
    assert "in hang" in ran.text
    assert "stuck (" in ran.text


@pytest.mark.slow
@pytest.mark.real_clock
def test_the_dump_is_printed_before_pytest_timeout_ends_a_test(run_pytest: RunPytest) -> None:
    ran = run_pytest(
        """\
        import harness, trio
        async def test_hangs():
            async with harness.open_run("stuck"):
                await trio.sleep_forever()
        """,
        "--timeout=3",
        "--timeout-method=thread",
        plugins=("trio", "pytest_timeout"),
        ini=TRIO_MODE,
    )
    assert ran.status != 0
    assert "is about to be ended" in ran.text
    assert "stuck (" in ran.text


OPTIONS = """\
import trio
from harness.testing import assert_isolated, explore_schedules

@explore_schedules(schedules=50)
async def test_explored():
    print("explored once")  # A list would be put back between the schedules.
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(trio.sleep, 0)

async def agent(number):
    await trio.sleep(0)
    return number

async def test_isolated():
    print("isolated", (await assert_isolated(agent, [1, 2])).schedules_run)
"""


@pytest.mark.long
def test_the_command_line_says_how_many_schedules(run_pytest: RunPytest) -> None:
    ran = run_pytest(OPTIONS, "--schedules=7", "-s", ini=TRIO_MODE)
    assert set(ran.outcomes.values()) == {"PASSED"}, ran.text
    assert ran.text.count("explored once") == 7
    assert re.search(r"isolated [1-7]\n", ran.text)


THREADED = """
import threading
from harness.testing import explore_schedules

@explore_schedules
def test_counts():
    print("explored", 1)
    counts = {"a": 0}

    def count():
        counts["a"] += 1

    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts["a"] == 2
"""


@pytest.mark.slow
def test_plain_tests_of_threads_are_explored_too(
    run_pytest: RunPytest, run_as_given: RunPytest
) -> None:
    ran = run_pytest(THREADED)
    assert set(ran.outcomes.values()) == {"FAILED"}, ran.text
    again = run_as_given(*ran.printed, "-s")
    assert "test_counts fails under the schedule that was given" in again.text
    assert again.text.count("explored 1") == 1


ORDERS = """\
import trio
from harness.testing import explore_schedules

async def together(*works):
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work)

@explore_schedules(search="distinct")
async def test_apart():
    async def work():
        own = []
        for number in range(2):
            own.append(number)
            await trio.sleep(0)
    await together(work, work, work)

@explore_schedules(search="priorities", depth=2, schedules=10)
async def test_by_priorities():
    await together(*[trio.lowlevel.checkpoint] * 2)

@explore_schedules
async def test_usual():
    await together(*[trio.lowlevel.checkpoint] * 2)
"""


@pytest.mark.slow
def test_the_summary_says_what_the_orders_that_were_run_say(run_pytest: RunPytest) -> None:
    ran = run_pytest(ORDERS, ini=TRIO_MODE)
    assert ran.status == 0, ran.text
    assert re.search(r"::test_apart: all 1,680 orders, 1 distinct\n", ran.text), ran.text
    assert "::test_by_priorities: each schedule finds a fault that needs 2 steps" in ran.text
    assert "::test_usual: " not in ran.text
    assert "3 tests passed under other schedules, too; 2 in every order" in ran.text


CANCELS = """\
import trio
from harness.testing import explore_cancellations

@explore_cancellations
async def test_right():
    async with trio.Lock():
        await trio.sleep(1)

@explore_cancellations
async def test_wrong():
    lock = trio.Lock()
    await lock.acquire()
    await trio.sleep(1)
    lock.release()
"""


@pytest.mark.slow
def test_cancels_are_counted_reported_and_replayed(
    run_pytest: RunPytest, run_as_given: RunPytest
) -> None:
    ran = run_pytest(CANCELS, ini=TRIO_MODE)
    assert ran.outcomes == {"test_right": "PASSED", "test_wrong": "FAILED"}, ran.text
    assert "1 test passed with tasks cancelled at their checkpoints: 2 cancels" in ran.text
    assert "a trio.Lock is still held: the test took it in test_wrong" in ran.text
    assert ">       await lock.acquire()\nE       harness.errors.CancellationError: " in ran.text
    again = run_as_given(*ran.printed)
    assert "under the schedule that was given" in again.text


@pytest.mark.slow
def test_the_command_line_says_which_schedule(run_pytest: RunPytest) -> None:
    ran = run_pytest(OPTIONS, "--schedule=h1:0x1:-:-", "-s", "-k not isolated", ini=TRIO_MODE)
    assert ran.text.count("explored once") == 1, ran.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "ini", "said"),
    [
        pytest.param(["--schedules=0"], "", "from 1 upwards is wanted", id="no schedules"),
        pytest.param(["--search-schedules=all"], "", "choose from", id="no way to search"),
        pytest.param(["--schedule=zzz"], "", "zzz is not a replay string", id="no schedule"),
        pytest.param([], "harness_timeout = soon", "harness_timeout = soon", id="no number"),
    ],
)
def test_wrong_options_are_refused(
    run_pytest: RunPytest, options: list[str], ini: str, said: str
) -> None:
    ran = run_pytest("def test(): pass", *options, ini=ini)
    assert ran.status == 4
    assert said in ran.text


@pytest.mark.slow
def test_it_costs_nothing_in_other_projects(run_pytest: RunPytest) -> None:
    """Neither harness nor trio is loaded where no test uses them, nor before the tests are."""
    ran = run_pytest(
        """\
        import sys
        def test_nothing_is_loaded():
            loaded = {"harness", "trio", "anyio", "attr", "hypothesis"} & set(sys.modules)
            assert not loaded
        """,
        plugins=(),
    )
    assert ran.outcomes == {"test_nothing_is_loaded": "PASSED"}, ran.text


@pytest.mark.slow
def test_the_entry_point_imports_nothing() -> None:
    code = "import sys, harness_pytest; print({'harness', 'trio'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


# Without a plugin for async tests ----------------------------------------------------------------

NO_PLUGIN = """\
import pytest
import trio
from harness.testing import assert_isolated, explore_schedules

@pytest.fixture
def amount(): return 3

@explore_schedules(schedules=3)
async def test_explored(amount):
    await trio.sleep(1)
    assert amount == 3

async def test_not_explored(): pass

async def overloaded(ticket):
    raise RuntimeError("overloaded")

def test_refused(): trio.run(assert_isolated, overloaded, [1, 2])
"""


@pytest.mark.slow
def test_without_a_plugin_for_async_tests(run_pytest: RunPytest) -> None:
    """Tests that explore schedules run; others say what to do. A refusal shows no library."""
    ran = run_pytest(NO_PLUGIN, plugins=())
    assert ran.outcomes == {
        "test_explored": "PASSED",
        "test_not_explored": "FAILED",
        "test_refused": "FAILED",
    }, ran.text
    assert "1 test passed under other schedules, too" in ran.text
    assert "For trio: install pytest-trio and set trio_mode = true, or call" in ran.text
    assert "ValueError: every run failed alone" in ran.text
    assert 'raise RuntimeError("overloaded")' in ran.text
    assert "in_worker_thread" not in ran.text


# Runs around tests -------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_async_test_has_a_run_of_its_own(run_pytest: RunPytest) -> None:
    """Code that keeps its state per run needs no set-up to be tested."""
    ran = run_pytest(RUNS, ini=TRIO_MODE)
    assert ran.outcomes == {
        "test_one": "PASSED",
        "test_two[y]": "PASSED",
        "test_alone": "PASSED",
        "test_plain": "PASSED",
    }, ran.text


@pytest.mark.slow
def test_on_asyncio_a_test_has_a_run_that_owns_state(run_pytest: RunPytest) -> None:
    ran = run_pytest(
        "import pytest\npytestmark = pytest.mark.anyio\n"
        "@pytest.fixture(params=['asyncio', 'trio'])\n"
        "def anyio_backend(request): return request.param\n" + RUNS.partition("@pytest")[0],
        plugins=("anyio",),
    )
    assert ran.outcomes == {"test_one[asyncio]": "PASSED", "test_one[trio]": "PASSED"}, ran.text


@pytest.mark.slow
def test_a_setting_turns_the_runs_off_and_a_marker_on(run_pytest: RunPytest) -> None:
    text = """\
    import pytest
    import harness
    async def test_off(): assert harness.current_run_or_none() is None
    @pytest.mark.harness_run(True)
    async def test_on(): assert harness.current_run().name == "test_on"
    @pytest.mark.harness_run
    async def test_odd(): pass
    """
    ran = run_pytest(text, ini=TRIO_MODE + "harness_run = false\n")
    outcomes = {"test_off": "PASSED", "test_on": "PASSED", "test_odd": "FAILED"}
    assert ran.outcomes == outcomes, ran.text
    assert "write harness_run(False) or harness_run(True)" in ran.text


@pytest.mark.slow
def test_a_test_that_cancels_its_own_run_fails(run_pytest: RunPytest) -> None:
    text = """\
    import trio
    import harness
    async def test_it():
        harness.current_run().cancel("never came to the assert")
        await trio.sleep(1)
        assert False
    """
    ran = run_pytest(text, ini=TRIO_MODE)
    assert ran.outcomes == {"test_it": "FAILED"}
    assert "RunCancelled: the run was cancelled: never came to the assert" in ran.text


@pytest.mark.slow
def test_what_a_test_starts_in_a_fixtures_nursery_is_no_leak(run_pytest: RunPytest) -> None:
    text = """\
    import trio
    async def test_it(nursery):
        nursery.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
    """
    ran = run_pytest(text, "--leak-check", ini=TRIO_MODE)
    assert ran.outcomes == {"test_it": "PASSED"}, ran.text


PER_RUN = """\
import harness, trio
from harness.testing import assert_isolated

messages = harness.RunLocal(list, name="messages")

async def agent(question):
    messages.get().append(question)
    await trio.sleep(1)
    return messages.get()[-1]

async def test_agent(): await assert_isolated(agent, ["a", "b"], schedules=20)
async def test_meant(): await assert_isolated(agent, ["a", "b"], schedules=20, shared=[messages])
async def test_per_call():
    await assert_isolated(agent, ["a", "b"], schedules=20, same_run=True)
"""


@pytest.mark.long
def test_what_is_isolated_per_run_only_is_listed_at_the_end(
    run_pytest: RunPytest, run_as_given: RunPytest
) -> None:
    ran = run_pytest(PER_RUN, ini=TRIO_MODE)
    assert ran.outcomes == {
        "test_agent": "PASSED",
        "test_meant": "PASSED",
        "test_per_call": "FAILED",
    }
    assert "= isolated per run, not per call =" in ran.text
    assert "::test_agent: agent (test_it.messages)\nassert_isolated(..., same_run=True)" in ran.text
    assert "::test_meant: " not in ran.text
    again = run_as_given(*ran.printed, "-rA")
    assert again.outcomes == {"test_per_call": "FAILED"}


def test_limiters_are_found_without_asking_anything_for_its_class() -> None:
    """Some libraries hold proxies that load half of the library when they are asked."""

    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise AssertionError("the proxy was asked")

    by_name, held, imported = (Limiter(name, concurrent=1) for name in "abc")
    other, module = ModuleType("other"), ModuleType("own")
    vars(other).update(imported=imported)
    client = SimpleNamespace(limiter=held, again=by_name, proxy=Proxy())
    vars(module).update(by_name=by_name, client=client, other=other, proxy=Proxy())
    assert limiters_of([module, module]) == [by_name, held]


EXPLORED = """\
import anyio
import pytest
from harness.testing import explore_schedules

@pytest.fixture
async def numbers():
    yield []

async def add(numbers, number):
    await anyio.sleep(1)
    numbers.append(number)

async def test_racy(numbers):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add, numbers, 1)
        tasks.start_soon(add, numbers, 2)
    assert numbers[0] == 1 or len(numbers) != 2

async def test_right(numbers):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add, numbers, 1)
        tasks.start_soon(add, numbers, 2)
    assert sorted(numbers) == [1, 2]

@explore_schedules(schedules=3)
async def test_of_its_own():
    await anyio.sleep(0)

async def test_of_another_loop(lock):
    async def hold():
        async with lock:
            await anyio.sleep(0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        tasks.start_soon(hold)

@pytest.fixture
async def lock():
    import asyncio
    lock = asyncio.Lock()
    async with anyio.create_task_group() as tasks:
        async def hold():
            async with lock:
                await anyio.sleep(0)
        tasks.start_soon(hold)
        tasks.start_soon(hold)
    return lock

def test_plain(): pass
"""


@pytest.mark.slow
def test_every_async_test_of_a_suite_can_be_explored(run_pytest: RunPytest) -> None:
    """No test is changed for it, and what can't be explored is run as always, and listed."""
    ini = "anyio_mode = auto\n"
    asyncio = "-k asyncio or plain"
    plain = run_pytest(EXPLORED, asyncio, plugins=("anyio",), ini=ini)
    assert plain.status == 0, plain.text
    assert "1 test passed under other schedules, too; 1 in every order" in plain.text
    ran = run_pytest(EXPLORED, "--explore", asyncio, plugins=("anyio",), ini=ini)
    assert ran.outcomes == {
        "test_plain": "PASSED",
        "test_of_another_loop[asyncio]": "PASSED",
        "test_of_its_own[asyncio]": "PASSED",
        "test_right[asyncio]": "PASSED",
        "test_racy[asyncio]": "FAILED",
    }, ran.text
    assert "test_racy fails " in ran.text
    assert "2 tests passed under other schedules, too; 2 in every order" in ran.text
    assert "test_of_another_loop[asyncio]: it uses something of the loop around it" in ran.text
    few = run_pytest(EXPLORED, "--explore-schedules=1", "-kright", plugins=("anyio",), ini=ini)
    assert "2 tests passed under other schedules, too; 0 in every order" in few.text
    every = run_pytest(
        EXPLORED,
        "--explore",
        "--search-schedules=distinct",
        "-kasyncio and right",
        plugins=("anyio",),
        ini=ini,
    )
    assert re.search(r"test_right\[asyncio\]: all [0-9]+ orders, [0-9]+ distinct", every.text)
    assert "1 in every order (--search-schedules=distinct)" in every.text
    trio = run_pytest(EXPLORED, "--explore", "-k trio and racy", plugins=("anyio",), ini=ini)
    assert trio.outcomes == {"test_racy[trio]": "FAILED"}, trio.text
