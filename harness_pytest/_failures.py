"""Show a failing schedule in pytest: the test's own error first, then the order, then the command.

Loaded when the first such failure is reported.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.errors import ScheduleError
from harness.testing._asked import kept_stop
from harness.testing.schedules._as_traceback import as_traceback, users_frames


def schedule_error(error: BaseException | None) -> ScheduleError | None:
    """Return the failing schedule that an error is, or that a group of errors comes down to."""
    found = None if error is None else _opened(error)[-1]
    return found if isinstance(found, ScheduleError) and found.schedule is not None else None


def shown(item: pytest.Item, error: ScheduleError, group: BaseException) -> Any:
    """Return what a report shows of a failure: the user's lines only, and how to see it again.

    Args:
      item: The test.
      error: The failing schedule.
      group: The error itself, or the group that comes down to it.
    """
    # Hypothesis, for one, notes the example; with pytest-trio, at a group.
    notes = [note for one in _opened(group) for note in getattr(one, "__notes__", ())]
    others = [note for note in dict.fromkeys(notes) if not note.startswith("in run ")]
    text = "\n".join([with_command(item, error), *others])
    cause = error.__cause__
    # A search that the test itself calls says more than what one of its runs has raised.
    is_decorated = cause is not None and str(error.schedule).startswith("h")
    raised = _opened(cause)[-1] if cause is not None and is_decorated else ScheduleError(text)
    frames = users_frames(cause if cause is not None and is_decorated else error)
    traceback, own_context = as_traceback(frames), (raised.__cause__, raised.__suppress_context__)
    raised_at = raised.__traceback__
    # What it was raised from is part of the program; what it is raised during may be ours.
    raised.__suppress_context__ = True
    try:
        if traceback is None:
            return text
        excinfo = pytest.ExceptionInfo.from_exc_info(
            (type(raised), raised.with_traceback(traceback), traceback)
        )
        representation: Any = item.repr_failure(excinfo)
    finally:
        raised.__traceback__ = raised_at
        raised.__cause__, raised.__suppress_context__ = own_context
    if is_decorated and hasattr(representation, "addsection"):
        representation.addsection("under this schedule", text)
    return representation


def refused(error: BaseException) -> bool:
    """Tell whether a check has refused what it was given, or couldn't try it."""
    traceback, module = error.__traceback__, ""
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__"))
        traceback = traceback.tb_next
    return module.startswith(("harness.testing.isolation.", "harness.testing.exploration."))


def users_lines(item: pytest.Item, error: BaseException) -> Any:
    """Return what a report shows of such an error: the user's lines only, and what it says."""
    raised_at, traceback = error.__traceback__, as_traceback(users_frames(error))
    if traceback is None:
        return str(error)
    try:
        return item.repr_failure(
            pytest.ExceptionInfo.from_exc_info(
                (type(error), error.with_traceback(traceback), traceback)
            )
        )
    finally:
        error.__traceback__ = raised_at


def _opened(error: BaseException) -> list[BaseException]:
    """Return an error and, while it is a group of only one, what is in it."""
    opened = [error]
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
        opened.append(error)
    return opened


# The command -------------------------------------------------------------------------------------


def with_command(item: pytest.Item, error: ScheduleError) -> str:
    """Return the text of an error with the command that replays it, in place of code that does."""
    command = replay_command(item, error)
    lines = str(error).splitlines()
    how = re.compile(rf"(  @\w+\(|(replay: )).*{re.escape(str(error.schedule))}.*")
    for number, line in enumerate(lines):
        if found := how.fullmatch(line):
            lines[number] = f"{found[2] or '  '}{command}"
            return "\n".join(lines)
    return "\n".join([*lines, "to run only this schedule:", f"  {command}"])


def replay_command(item: pytest.Item, error: ScheduleError) -> str:
    """Return the command that runs only this schedule, for the folder that pytest was called in."""
    config = item.config
    options = config.option
    given: list[str] = []
    for name, flag in (("inifilename", "-c"), ("rootdir", "--rootdir"), ("plugins", "-p")):
        values = getattr(options, name, None) or ()
        for value in [values] if isinstance(values, str) else values:
            if not value.startswith("no:"):
                given += [flag, value]
    for value in getattr(options, "override_ini", None) or ():
        given += ["-o", str(value)]
    if mode := getattr(options, "asyncio_mode", None):
        given.append(f"--asyncio-mode={mode}")
    if isinstance(seed := getattr(options, "randomly_seed", None), int):
        given.append(f"--randomly-seed={seed}")
    if explored_by_option(item, error):
        given.append("--explore")
    # pytest's own way to say it from another folder takes a string in some versions, not in others.
    file, colons, name = item.nodeid.partition("::")
    node = os.path.relpath(config.rootpath / file, config.invocation_params.dir) + colons + name
    # A replay string has nothing in it that a shell would take for something else.
    return f"{shlex.join(['pytest', node, *given])} --schedule={error.schedule}"


def explored_by_option(item: pytest.Item, error: ScheduleError) -> bool:
    """Tell whether a test was explored because the command line asked for it."""
    options = item.config.option
    # The others are searches that the test calls, or is decorated with.
    asks_itself = hasattr(getattr(item, "obj", None), "explores_schedules")
    by_option = options.explore or options.explore_schedules or options.replay_schedules
    return bool(by_option) and str(error.schedule).startswith("h") and not asks_itself


# The debugger ------------------------------------------------------------------------------------

_words: list[str] = []
"""What to say when the debugger opens."""


def debugger_opens(config: pytest.Config) -> None:
    """Say where the program stands still, if it does."""
    for words in _words:
        config.get_terminal_writer().line(words)


@contextmanager
def at_the_switch(call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Have a debugger that opens in the block find a replay stopped at the switch that matters."""
    excinfo = call.excinfo
    error = schedule_error(None if excinfo is None else excinfo.value)
    stop = None if error is None else kept_stop(error)
    if excinfo is None or error is None or stop is None:
        yield
        return
    # A replay puts back where prints go; pytest has captured them then, and doesn't now.
    streams = sys.stdin, sys.stdout, sys.stderr
    raised, raised_at = excinfo.value, excinfo.value.__traceback__
    try:
        with stop() as stopped:
            sys.stdin, sys.stdout, sys.stderr = streams
            traceback = as_traceback(users_frames(error.__cause__ or error))
            if stopped is not None:
                traceback = stopped.traceback
                _words.append(f"a replay stands still at the switch that matters: {stopped.words}")
            if traceback is not None:
                call.excinfo = pytest.ExceptionInfo.from_exc_info(
                    (type(raised), raised.with_traceback(traceback), traceback)
                )
            yield
    finally:
        _words.clear()
        call.excinfo, raised.__traceback__ = excinfo, raised_at
        sys.stdin, sys.stdout, sys.stderr = streams
