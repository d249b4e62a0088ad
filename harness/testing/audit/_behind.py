"""Audit a function by running it: what does a run leave behind in the objects it can reach?

The dynamic half of the audit. It takes the same snapshots as the isolation check, so it sees what
the function's own code can reach. But here nothing runs side by side and nothing is proved: what
stays in a shared object when a run is over is worth a look by itself.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Awaitable, Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

from harness._words import errors_in_words, repr_of
from harness.fanout import fan_out
from harness.policies import BestEffort
from harness.testing.audit._finding import Finding
from harness.testing.audit._run_rules import LEFT_BEHIND, RUN_FAILED
from harness.testing.audit._silence import silenced_lines, silences_in
from harness.testing.objects import SharedState, Suspect, reach_from, suspects_of
from harness.testing.schedules import run_schedule
from harness.testing.schedules._run_schedule import refuse_inside_a_loop

STEPS_AT_MOST = 1_000_000
"""Steps after which a run counts as endless."""


def audit_function(fn: Callable[[Any], Awaitable[Any]], inputs: Iterable[Any]) -> list[Finding]:
    """Run ``fn`` for each input, one after the other, and return what the runs leave behind.

    Each is a ``trio.run`` of its own, on a virtual clock, and an item of a `harness.fan_out` in it:
    so it has a run, whose `RunLocal` values end with it. Objects are not put back. A run that never
    ends is a finding, as is one that fails.

    Args:
      fn: An async function of one argument, or an agent.
      inputs: What to call it with.

    Raises:
      RuntimeError: inside trio, where no other ``trio.run`` can be started.
    """
    frame = inspect.currentframe()
    assert frame is not None
    return _audit(fn, list(inputs), frame.f_back or frame)


def _audit(
    fn: Callable[[Any], Awaitable[Any]], inputs: list[Any], caller: FrameType
) -> list[Finding]:
    refuse_inside_a_loop("audit_function")
    state = SharedState(reach_from(fn, inputs, caller))
    before = list(state.initial)
    findings: list[Finding] = []
    seen: set[str] = set()
    name = _name(fn)
    for value in inputs:
        call = f"{name}({repr_of(value)})"
        # Run as a schedule, which ends a run that waits forever; a virtual clock would jump on.
        error = run_schedule(functools.partial(_call, fn, value), most_steps=STEPS_AT_MOST).error
        if error is not None:
            if isinstance(error, KeyboardInterrupt):
                raise error
            findings.append(_failed(fn, call, error))
        for index, part in enumerate(state.parts):
            after = part.take()
            for suspect in suspects_of(part, before[index], after):
                # A table is one finding, whatever the keys that runs put into it.
                suspect = suspect if part.names_things else Suspect(part)
                path = suspect.path
                if path not in seen:
                    seen.add(path)
                    findings.append(_left(fn, suspect, call, before[index], after))
            before[index] = after
    return [finding for finding in findings if not _is_silenced(finding)]


async def _call(fn: Callable[[Any], Awaitable[Any]], value: Any) -> None:
    """Run it as a batch would, and raise what it raised."""
    try:
        (result,) = await fan_out(fn, [value], policy=BestEffort())
    except SystemExit as error:  # In a group, or it would end the audit.
        raise BaseExceptionGroup("a run ends the process", [error]) from None
    if result.error is not None:
        raise result.error


def _is_silenced(finding: Finding) -> bool:
    """Return whether the line that binds the object says that it is shared on purpose."""
    text = "".join(linecache.getlines(finding.path))
    return finding.line in silenced_lines(silences_in(text), text)


def _left(fn: Any, suspect: Suspect, call: str, before: Any, after: Any) -> Finding:
    path, line, column = _where(str(suspect.path), fn)
    was, now = _contents(suspect, before), _contents(suspect, after)
    return Finding(
        rule=LEFT_BEHIND.name,
        path=path,
        line=line,
        column=column,
        symbol=str(suspect.path),
        message=f"a run of {call} changed {suspect.path} from {was} to {now}, and it stays so",
        why=LEFT_BEHIND.why,
        fix=LEFT_BEHIND.fix,
    )


def _failed(fn: Any, call: str, error: BaseException) -> Finding:
    path, line = _home(fn)
    return Finding(
        rule=RUN_FAILED.name,
        path=path,
        line=line,
        column=1,
        symbol=call.partition("(")[0],
        message=f"a run of {call} raised {errors_in_words(error)}",
        why=RUN_FAILED.why,
        fix=RUN_FAILED.fix,
    )


def _contents(suspect: Suspect, contents: Any) -> str:
    if suspect.part.names_things and isinstance(contents, dict):
        return repr_of(contents[suspect.key]) if suspect.key in contents else "nothing"
    if isinstance(contents, tuple) and suspect.part.kind in ("list", "deque"):
        return repr_of(list(contents))
    return repr_of(contents)


# Where it is -------------------------------------------------------------------------------------


def _where(symbol: str, fn: Any) -> tuple[str, int, int]:
    """Return the file, line and column in which the first name of an object path is bound."""
    parts = symbol.partition(" (local of ")[0].partition("[")[0].split(".")
    for count in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:count]))
        file = getattr(module, "__file__", None)
        if isinstance(module, ModuleType) and isinstance(file, str) and file.endswith(".py"):
            line, column = _binding(file, parts[count:])
            return file, line, column
    path, line = _home(fn)
    return path, line, 1


def _binding(file: str, names: list[str]) -> tuple[int, int]:
    """Return where a module binds the first of ``names``; in a class, the second, and so on."""
    try:
        body: list[ast.stmt] = ast.parse("".join(linecache.getlines(file))).body
    except SyntaxError:
        return 1, 1
    found = (1, 1)
    for name in names:
        inner: list[ast.stmt] | None = None
        for statement in body:
            if name in _bound_by(statement):
                found = (statement.lineno, statement.col_offset + 1)
                inner = getattr(statement, "body", None)
                break
        if inner is None:
            break
        body = inner
    return found


def _bound_by(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
    return set()


def _home(fn: Any) -> tuple[str, int]:
    code = getattr(inspect.unwrap(getattr(fn, "__func__", fn)), "__code__", None)
    if code is None:
        code = getattr(type(fn).__call__, "__code__", None)
    return ("<unknown>", 1) if code is None else (code.co_filename, code.co_firstlineno)


def _name(fn: Any) -> str:
    name = getattr(fn, "name", None) or getattr(fn, "__qualname__", type(fn).__qualname__)
    return str(name)
