"""What every test run shares: the hypothesis profiles, the clocks, and what runs async tests.

Tests are plain ``async def test_...`` functions. Normally pytest-trio runs them (``trio_mode``).
With ``pytest -p no:trio --anyio-mode=auto`` anyio's plugin runs the very same functions, so a test
of the core uses no fixture that only one of the two has: it opens its own nurseries, and its clock
is `mock_clock` or `autojump_clock`. Each Hypothesis example needs its own clock: write a plain test
that calls ``trio.run(main, clock=MockClock(autojump_threshold=0))``.

Warnings are errors (pyproject.toml); the order of the tests is random (pytest-randomly).
"""

import gc
import inspect
import itertools
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import trio
from trio.abc import Clock, Instrument
from trio.testing import MockClock
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from harness.runs import StrayTasks
from tests.scale import FULL
from tests.support import postgres

hypothesis.settings.register_profile("ci", max_examples=25, deadline=None, print_blob=True)
hypothesis.settings.register_profile("full", max_examples=500, deadline=None, print_blob=True)
hypothesis.settings.load_profile("full" if FULL else "ci")


# Workers side by side use limiters of the same names, and are no programs that share an account.
_runtime = tempfile.TemporaryDirectory(prefix="harness-tests-")
os.environ["XDG_RUNTIME_DIR"] = _runtime.name

# A pytest that a test starts gets pytest-asyncio only if it asks for it.
os.environ["PYTEST_ADDOPTS"] = "-p no:asyncio"


# Every trio run of a test ------------------------------------------------------------------------

_strays_are_meant = False


@pytest.fixture(autouse=True)
def _look_for_the_strays_marker(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test marked ``strays`` start tasks outside the run they carry, on purpose."""
    global _strays_are_meant
    _strays_are_meant = request.node.get_closest_marker("strays") is not None
    yield
    _strays_are_meant = False


@contextmanager
def watching() -> Iterator[list[Instrument]]:
    """Lend the instruments for one async test's trio run, and judge them afterwards.

    The one place for what every async test is watched for, without asking for a fixture.
    """
    strays = StrayTasks()
    yield [strays]
    if not _strays_are_meant:
        assert not strays.strays, f"tasks outside of the run they carry: {strays.strays}"


def run_watched(
    async_fn: Callable[..., Awaitable[object]],
    *args: Any,
    clock: Clock | None = None,
    instruments: list[Instrument],
) -> object:
    """Be `trio.run` to pytest-trio, with the instruments of `watching` added."""
    with watching() as watchers:
        return trio.run(async_fn, *args, clock=clock, instruments=[*instruments, *watchers])


@pytest.fixture
def mock_clock() -> MockClock:
    """A virtual clock that stands still until the test moves it."""
    return MockClock()


@pytest.fixture
def autojump_clock() -> MockClock:
    """A virtual clock that jumps to the next deadline when every task waits."""
    return MockClock(autojump_threshold=0)


@pytest.fixture
def clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Be in an empty folder, and forget afterwards what was imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget_modules_of_tests()  # Of those that don't themselves.
    yield tmp_path
    forget_modules_of_tests()


def forget_modules_of_tests() -> None:
    """Take from `sys.modules` what was imported from a temporary folder, and nothing else."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{tempfile.gettempdir()}/pytest-"):
            del sys.modules[name]


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, object]]]:
    """Make anyio's plugin run a test on trio, on the virtual clock that the test asks for."""
    clock: Clock | None = None
    for name in ("autojump_clock", "mock_clock"):
        if name in request.fixturenames:
            clock = request.getfixturevalue(name)
    with watching() as watchers:
        yield "trio", {"clock": clock, "instruments": watchers}


# Spread over workers ----------------------------------------------------------------------------

TOGETHER = {
    "tests/cli/test_large_journals.py",
    "tests/observe/test_report.py",  # One browser for all.
    "tests/test_benchmarks.py",  # One table for all.
    "tests/test_misspelt_options.py",  # mypy breaks if two write its cache at once.
}
"""The files whose tests are run by one worker each."""


class Spread(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types.
    """Gives each worker one test after the other, and a file of those above as a whole.

    xdist's own groups are lost with pytest 9.2, which has other ids.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return file if file in TOGETHER else nodeid

    def remove_node(self, node: Any) -> str | None:
        """Return the test that brought a worker down, which isn't run again, and share the rest."""
        units = self.assigned_work[node]
        unfinished = (one for unit in units.values() for one, done in unit.items() if not done)
        fatal = next(unfinished, None)
        if fatal is not None:
            units[self._split_scope(fatal)][fatal] = True
        for scope in [name for name, unit in units.items() if all(unit.values())]:
            del units[scope]
        super().remove_node(node)
        return fatal

    def _reschedule(self, node: Any) -> None:
        # A worker begins its last test only when it knows that there is no other.
        super()._reschedule(node)
        if not self.workqueue and not node.shutting_down:
            node.shutdown()


@pytest.hookimpl(optionalhook=True)  # xdist may be turned off.
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Spread:
    """Take that one, whatever ``--dist`` says."""
    return Spread(config, log)


# One server for the whole run -------------------------------------------------------------------

_begins_the_run = postgres.name_this_run()


def pytest_unconfigure() -> None:
    """End the PostgreSQL server, if a test started one, when all workers are done."""
    if _begins_the_run:
        postgres.stop(postgres.folder_of_this_run())


# Both ways to run an async test ------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Know pytest-trio's setting even if anyio's plugin runs the tests instead."""
    if not pluginmanager.hasplugin("trio"):
        parser.addini("trio_mode", "pytest-trio's; not used, as anyio runs the tests", type="bool")


def pytest_collection_finish() -> None:
    """Take what was imported and collected out of every later garbage collection.

    That is a million objects for good, and each look at all of them takes a third of a second.
    """
    gc.collect()
    gc.freeze()


_ended = itertools.count(1)


def pytest_runtest_logfinish() -> None:
    """Do the same with what a hundred tests left: reports, modules, caches.

    Thousands of tests leave so much that each `gc.collect` of those that follow takes as long as
    they do.
    """
    if next(_ended) % 100 == 0:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Pick the runner of each async test, and leave out what only a full run can afford."""
    by_pytest_trio = config.pluginmanager.hasplugin("trio")
    for item in items:
        function = getattr(item, "function", None)
        if by_pytest_trio and inspect.iscoroutinefunction(function):
            item.add_marker(pytest.mark.trio(run=run_watched), append=False)
        if not FULL and item.get_closest_marker("full") is not None:
            item.add_marker(pytest.mark.skip(reason="only with HARNESS_FULL=1"))
