"""Give pytest harness's options and fixtures, and watch each trio test.

pytest loads this in every project of an environment, before coverage is measured. So it imports
only what pytest has loaded itself; `harness.testing.pytest_plugin` does the work, and is loaded
when the first trio test runs, or when a test asks for a fixture.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import time
import zlib
from collections.abc import Generator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from harness.models import ScriptedModel
    from harness.testing.chaos import Chaos
    from harness.testing.provider import Provider
    from harness.testing.pytest_plugin import WatchedTest

_dump_at = pytest.StashKey[float]()
_recorded = pytest.StashKey[dict[str, Any]]()
_ADVICE = {
    "isolated per run, not per call": (
        "assert_isolated(..., same_run=True) fails on it, with the proof; shared=[...] says that "
        "it is meant"
    ),
    "random numbers drawn from a shared generator": (
        "assert_isolated gave each run numbers of its own; for results that don't depend on what "
        "runs beside them, seed a generator per input: random.Random(record['id'])"
    ),
    "not explored": "these tests were only run as always",
}
"""What tests tell that fails nothing, each with what to do about it."""


_NO_PLUGIN = "async def functions are not natively supported"
"""What pytest fails an async test with that no plugin has run."""

_RUN_ASYNC_TESTS = (
    "For trio: install pytest-trio and set trio_mode = true, or call trio.run(...) in a plain "
    "test. Tests decorated by explore_schedules and the like need neither."
)

_EXPLORED = ("explored", "explored in every order")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and settings."""
    group = parser.getgroup("harness", "many agents at once (trio-harness)")
    group.addoption(
        "--schedules",
        type=_count,
        metavar="N",
        help="try N schedules in each test that explores them, in place of what the test says",
    )
    group.addoption(
        "--search-schedules",
        choices=("mixed", "distinct", "priorities", "random"),
        help="how tests are explored, in place of what they say: see search= of explore_schedules",
    )
    group.addoption(
        "--schedule",
        metavar="STRING",
        help="replay the schedule that a failure printed, and no other",
    )
    group.addoption(
        "--record-schedules",
        metavar="FILE",
        help="write the schedules under which tests fail to a file",
    )
    group.addoption(
        "--replay-schedules",
        metavar="FILE",
        help="run only the tests in such a file, each under its schedule",
    )
    group.addoption(
        "--explore",
        action="store_true",
        help="run every async test under 100 schedules before it is run as always",
    )
    group.addoption(
        "--explore-schedules",
        type=_count,
        metavar="N",
        help="like --explore, with N schedules for each test",
    )
    group.addoption(
        "--leak-check",
        action="store_true",
        help="fail a trio test that leaves a live run, a stray task or changed shared state",
    )
    group.addoption(
        "--harness-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="cancel a trio test after so many real seconds, and print what each task waits for",
    )
    parser.addini("harness_timeout", "as --harness-timeout", default="")
    parser.addini("harness_leak_check", "as --leak-check", type="bool", default=False)
    parser.addini(
        "harness_run", "run each async test inside a run named after it", type="bool", default=True
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line(
        "markers", "harness_timeout(seconds): cancel the test after so many real seconds"
    )
    config.addinivalue_line(
        "markers", "leaks(reason): what the test leaves behind is meant; --leak-check is silent"
    )
    config.addinivalue_line(
        "markers", "harness_run(on): whether this test runs inside a run named after it"
    )
    if setting := config.getini("harness_timeout"):
        try:
            _seconds(setting)
        except argparse.ArgumentTypeError as error:
            raise pytest.UsageError(f"harness_timeout = {setting}: {error}") from error


def pytest_sessionstart(session: pytest.Session) -> None:
    """Pass on what was asked for about schedules."""
    schedules = session.config.getoption("schedules")
    search = session.config.getoption("search_schedules")
    schedule = session.config.getoption("schedule")
    if schedule is not None and not re.match(r"[hl]\d+:|r?[io]\d+:", schedule):
        raise pytest.UsageError(
            f"--schedule={schedule} is not a replay string: one begins with h1:, i1:, o1:, ri1:, "
            "ro1: or l1:, and is printed by every failure"
        )
    debugger = bool(session.config.getoption("usepdb"))
    if schedules or search or schedule is not None or debugger:
        from harness.testing._asked import ask

        ask(schedules=schedules, search=search, schedule=schedule, debugger=debugger)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the tests to replay."""
    path = config.getoption("replay_schedules")
    if path is None:
        return
    if config.getoption("schedule") is not None:
        raise pytest.UsageError("--schedule and --replay-schedules both say what to replay")
    from harness_pytest._recordings import choose, load

    config.stash[_recorded] = wanted = load(path)
    others = choose(path, wanted, items)
    if others:
        config.hook.pytest_deselected(items=others)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 upwards is wanted, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"seconds above 0 are wanted, not {text!r}")
    return seconds


# Each trio test ----------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Put the watch around the test's own function, whoever runs it."""
    _ask_for_recorded(item)
    function = getattr(item, "obj", None)
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    explores = _explores(item, function is not inner)
    if not iscoroutinefunction(inner) or (explores is None and "trio" not in sys.modules):
        yield
        _note_what_was_told(item)
        return
    watched = _watched(inner)
    if inner is function:
        item.obj = watched  # type: ignore[attr-defined]
    else:
        function.hypothesis.inner_test = watched  # type: ignore[union-attr]
    _watches.append(_watch(item, explores))
    try:
        yield
    finally:
        _watches.pop()
        _note_what_was_told(item)
        if inner is function:
            item.obj = function  # type: ignore[attr-defined]
        elif function.hypothesis.inner_test is watched:  # type: ignore[union-attr]
            function.hypothesis.inner_test = inner  # type: ignore[union-attr]


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that explores schedules, if no plugin that runs async tests has taken it.

    It needs no more than that: each schedule has an event loop of its own.
    """
    test = pyfuncitem.obj
    if not iscoroutinefunction(test) or not hasattr(test, "explores_schedules"):
        return None
    import trio

    named = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    trio.run(functools.partial(test, **named))
    return True


def _note_what_was_told(item: pytest.Item) -> None:
    """Send it along with the test's report: with pytest-xdist that is written elsewhere."""
    asking = sys.modules.get("harness.testing._asked")
    if asking is not None:
        item.user_properties += asking.told()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, Any, None]:
    """Show a failing schedule as a failure of the test, not of what has run it."""
    made = yield
    report: pytest.TestReport = made.get_result()
    if report.failed and _NO_PLUGIN in str(report.longrepr) and _is_ours(item):
        report.longrepr = f"{report.longrepr}\n{_RUN_ASYNC_TESTS}"
    # If nobody has loaded the errors, it is none of ours.
    if call.excinfo is not None and report.failed and "harness.errors" in sys.modules:
        from harness_pytest._failures import (
            explored_by_option,
            refused,
            schedule_error,
            shown,
            users_lines,
        )
        from harness_pytest._recordings import recorded

        if (error := schedule_error(call.excinfo.value)) is not None:
            report.longrepr = shown(item, error, call.excinfo.value)
            told = recorded(
                item.nodeid,
                str(error.schedule),
                explored_by_option(item, error),
                str(error).partition("\n")[0],
            )
            report.user_properties.append(told)
        elif refused(call.excinfo.value):
            report.longrepr = users_lines(item, call.excinfo.value)


def _is_ours(item: pytest.Item) -> bool:
    return "harness.testing" in sys.modules or _explores(item, is_given=False) is not None


@pytest.hookimpl(hookwrapper=True)
def pytest_exception_interact(node: Any, call: pytest.CallInfo[Any]) -> Generator[None, Any, None]:
    """Have ``--pdb`` open where a task was left for the wrong other one."""
    if not node.config.getoption("usepdb") or "harness.testing._asked" not in sys.modules:
        yield
        return
    from harness_pytest._failures import at_the_switch

    with at_the_switch(call):
        yield


def pytest_enter_pdb(config: pytest.Config) -> None:
    """Say where ``--pdb`` has opened."""
    if (failures := sys.modules.get("harness_pytest._failures")) is not None:
        failures.debugger_opens(config)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List what fails no test, so that somebody sees it."""
    called = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
    ]
    told = [
        (name, f"{report.nodeid}: {words}")
        for report in called
        for name, words in report.user_properties
    ]
    path = config.getoption("record_schedules")
    if path is not None:
        from harness_pytest._recordings import save

        count = save(path, (one for report in called for one in report.user_properties))
        terminalreporter.line(
            f"{count} failing schedule{'s'[: count != 1]} recorded in {path}; run them with "
            f"--replay-schedules={path}"
        )
    for about, advice in _ADVICE.items():
        lines = dict.fromkeys(line for name, line in told if name == about)
        if lines:
            terminalreporter.section(about)
            for line in [*lines, advice]:
                terminalreporter.line(line)
    orders = dict.fromkeys(line for name, line in told if name in _EXPLORED and line[-2:] != ": ")
    if orders:
        terminalreporter.section("orders of steps")
        for line in orders:
            terminalreporter.line(line)
    cancels = [int(words.rpartition(" ")[2]) for name, words in told if name == "cancelled"]
    if cancels:
        terminalreporter.line(
            f"{len(cancels)} test{'s'[: len(cancels) != 1]} passed with tasks cancelled at their "
            f"checkpoints: {sum(cancels):,} cancels"
        )
    explored, whole = (
        sum(name in names for name, _ in told) for names in (_EXPLORED, _EXPLORED[1:])
    )
    if explored:
        search = config.getoption("search_schedules")
        terminalreporter.line(
            f"{explored} test{'s'[: explored != 1]} passed under other schedules, too; {whole} in "
            f"every order{f' (--search-schedules={search})' if search else ''}"
        )


def _explores(item: pytest.Item, is_given: bool) -> int | None:
    """Return under how many schedules to run a test that doesn't ask for it; None for none.

    What Hypothesis runs a hundred times isn't run under a hundred schedules each time.
    """
    if (recorded := item.config.stash.get(_recorded, {}).get(item.nodeid)) is not None:
        return 1 if recorded["explore"] else None
    schedules: int | None = item.config.getoption("explore_schedules")
    if schedules is None and item.config.getoption("explore"):
        schedules = 100
    return None if is_given else schedules


def _ask_for_recorded(item: pytest.Item) -> None:
    """Ask for the schedule that is recorded of a test."""
    if (recorded := item.config.stash.get(_recorded, {}).get(item.nodeid)) is not None:
        from harness.testing._asked import ask

        ask(schedule=recorded["schedule"], debugger=bool(item.config.getoption("usepdb")))


_watches: list[WatchedTest] = []
"""The running test. Looked up when its function is called: pytest-trio keeps what it wrapped of a
Hypothesis test, and calls it for the next parameter, too."""


def _watched(inner: Any) -> Any:
    @functools.wraps(inner)
    async def watched(**named: Any) -> None:
        if _watches:
            await _watches[-1].run(inner, named)
        else:
            await inner(**named)

    return watched


def _watch(item: pytest.Item, explores: int | None) -> WatchedTest:
    from harness.testing.pytest_plugin import WatchedTest, limiters_of

    leak_check = item.config.getoption("leak_check") or item.config.getini("harness_leak_check")
    dump_at = item.stash.get(_dump_at, None)
    leak_check = leak_check and item.get_closest_marker("leaks") is None
    return WatchedTest(
        name=item.nodeid,
        limiters=lambda: limiters_of(_own_modules(item.config)),
        run_name=item.name if _in_a_run(item) else None,
        leak_check=leak_check,
        timeout_seconds=_timeout(item),
        # Counted from when that timer was set; fixtures and imports have taken time since.
        dump_after_seconds=None if dump_at is None else max(dump_at - time.monotonic(), 0.01),
        explore=explores,
        shared_state=functools.partial(_shared_state, item) if leak_check else None,
    )


def _shared_state(item: pytest.Item) -> Any:
    from harness.testing.pytest_plugin import watch_shared_state

    return watch_shared_state(item.function)  # type: ignore[attr-defined]


def _in_a_run(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("harness_run")
    if marker is None:
        return bool(item.config.getini("harness_run"))
    if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], bool):
        raise pytest.UsageError(f"{item.nodeid}: write harness_run(False) or harness_run(True)")
    return marker.args[0]


def _timeout(item: pytest.Item) -> float | None:
    marker = item.get_closest_marker("harness_timeout")
    if marker is not None:
        if len(marker.args) != 1 or marker.kwargs:
            raise pytest.UsageError(f"{item.nodeid}: write harness_timeout(SECONDS)")
        return float(marker.args[0])
    option: float | None = item.config.getoption("harness_timeout")
    if option is not None:
        return option
    setting = item.config.getini("harness_timeout")
    return float(setting) if setting else None


@pytest.hookimpl(hookwrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, None]:
    """Learn when pytest-timeout will end the test, to print the dump just before."""
    if settings.timeout:
        item.stash[_dump_at] = time.monotonic() + settings.timeout - min(1.0, settings.timeout / 4)
    yield


_module_cache: dict[str, Any] = {}


def _own_modules(config: pytest.Config) -> list[Any]:
    """Return the loaded modules of the project under test, but not installed ones nor harness."""
    if _module_cache.get("count") != len(sys.modules):
        root = str(config.rootpath)
        found = []
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            is_harness = name.partition(".")[0] in ("harness", "harness_pytest")
            if not is_harness and isinstance(path, str) and path.startswith(root):
                parts = Path(path).parts
                if "site-packages" not in parts and "dist-packages" not in parts:
                    found.append(module)
        _module_cache.update(count=len(sys.modules), modules=found)
    own: list[Any] = _module_cache["modules"]
    return own


# Fixtures ----------------------------------------------------------------------------------------


class ChaosMaker:
    """Makes a `harness.testing.Chaos` whose seed belongs to the test, so that it repeats."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, seed: int | None = None, **faults: Any) -> Chaos:
        """Return chaos with these faults; see `harness.testing.Chaos`."""
        from harness.testing.chaos import Chaos

        return Chaos(self.seed if seed is None else seed, **faults)

    def wrap(self, thing: Any, **faults: Any) -> Any:
        """Wrap one thing; by default a fifth of its calls are late or fail."""
        return self(**(faults or {"delay": (0.0, 10.0), "fail": True, "rate": 0.2})).wrap(thing)


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> ChaosMaker:
    """Make chaos with a seed of this test's own: ``chaos(fail=ConnectionError, rate=0.3)``."""
    return ChaosMaker(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def scripted_model() -> type[ScriptedModel]:
    """Make a model that answers from a script: ``scripted_model(["Hello", "Bye"])``."""
    from harness.models import ScriptedModel

    return ScriptedModel


@pytest.fixture
def sim_provider() -> Any:
    """Open a simulated provider in the test: ``async with sim_provider(...) as provider``.

    It takes what `harness.testing.provider.open_provider` takes. By default it echoes what it is
    told, and has no socket, so it works on a virtual clock.
    """
    from harness.testing.provider import open_provider

    def open_one(**settings: Any) -> AbstractAsyncContextManager[Provider]:
        settings.setdefault("answer", lambda request: request.prompt)
        settings.setdefault("http", False)
        return open_provider(**settings)

    return open_one
