"""Let a schedule make things go wrong: say what can be struck, and strike it.

Inside ``with faultable(number):`` the code is a *run* that faults can strike by that number: a
cancel, at any of its steps. A function wrapped by `faulty` can be made to raise or to take longer,
at any of its calls, and ``faultable("label")`` is a point where an error can be raised. The
`Schedule` says which of these happen, so they are replayed and shrunk with it. Outside a controlled
program, all of them do nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ParamSpec, TypeVar, overload

import trio

from harness.errors import InjectedFault
from harness.testing.schedules._control import controlled
from harness.testing.schedules._strand import Scope
from harness.testing.schedules._targets import Target, target_of_task

P = ParamSpec("P")
T = TypeVar("T")


@overload
def faultable(what: int, /) -> AbstractContextManager[Scope]: ...


@overload
def faultable(what: str, /, *, error: Callable[[], Exception] | None = None) -> None: ...


def faultable(
    what: int | str, /, *, error: Callable[[], Exception] | None = None
) -> AbstractContextManager[Scope] | None:
    """Let faults strike: the block of a ``with`` by its number, or this very point by its label.

    ``with faultable(1):`` makes the block a run that can be cancelled. Tasks started in the block
    belong to it. A cancel that strikes is caught here: the block is left quietly, and the scope's
    ``cancelled_caught`` is true.

    ``faultable("save the order")`` is a point where an error may be raised, in code that is trio's,
    asyncio's or plain. A report calls it by its label. Where no schedule runs the code, as in
    production, it returns at once.

    Args:
      what: The number of a run, from 1; 0 is the program outside all such blocks. Or a label.
      error: Makes the error that is raised at a point; by default an `InjectedFault`.

    Returns:
      A context manager that gives the scope which a fault cancels; for a label, None.

    Raises:
      ValueError: if the number is less than 1, or, by the block, if it was used before in this
        program.
    """
    if not isinstance(what, str):
        if what < 1:
            raise ValueError(f"runs that faults can strike are numbered from 1, not {what}")
        return _struck_by_number(what)
    control = controlled.get()
    if control is not None:
        targets = control.targets
        for fault in targets.call(target_of_task.get() or targets.by_number[0], what):
            if fault.kind == "fail":
                raise (
                    error()
                    if error is not None
                    else InjectedFault(f"the schedule made this fail: {what}")
                )
    return None


@contextmanager
def _struck_by_number(number: int) -> Iterator[Scope]:
    control = controlled.get()
    if control is None:
        with trio.CancelScope() as scope:
            yield scope
        return
    with control.backend.scope() as struck:
        targets = control.targets
        if number in targets.by_number:
            raise ValueError(f"there was a run number {number} already; use each number once")
        target = targets.by_number[number] = Target(number, struck.cancel)
        token = target_of_task.set(target)
        targets.count_step(control.backend.current())  # The one that is being made.
        try:
            yield struck
        finally:
            target_of_task.reset(token)


def faulty(
    fn: Callable[P, Awaitable[T]],
    *,
    error: Callable[[], Exception] = InjectedFault,
    delay_seconds: float = 1.0,
) -> Callable[P, Awaitable[T]]:
    """Wrap an async function so that a schedule can make its calls fail or take longer.

    Args:
      fn: A worker, a model call, a tool: anything that fails at times.
      error: Makes the error that a failing call raises, before ``fn`` is called.
      delay_seconds: How much longer a delayed call takes, on the program's virtual clock.

    Returns:
      The wrapped function. Outside a controlled program, it only passes calls on.
    """

    @functools.wraps(fn)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        control = controlled.get()
        if control is not None:
            targets = control.targets
            for fault in targets.call(target_of_task.get() or targets.by_number[0]):
                if fault.kind == "fail":
                    await control.backend.sleep(0)
                    raise error()
                await control.backend.sleep(delay_seconds)
        return await fn(*args, **kwargs)

    return call
