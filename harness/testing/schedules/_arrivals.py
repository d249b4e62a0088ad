"""Let the replies of models and tools arrive in an order that the schedule chooses.

Replies overtake each other in practice, and many faults show in the order of replies alone. A
function wrapped by `arriving` is called at once, but its reply is held back until all the program's
tasks are waiting; then one of the replies arrives, and which one is a decision like any other. (If
there is a deadline too, the clock may move first, so that later calls can be answered earlier.)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import outcome

from harness.testing.schedules._control import controlled
from harness.testing.schedules._thread_backend import ThreadSignal

P = ParamSpec("P")
T = TypeVar("T")


def arriving(fn: Callable[P, T], *, label: str | None = None) -> Callable[P, T]:
    """Wrap a function so that a schedule can choose when its replies arrive.

    Errors are replies too. A call that is cancelled while its reply is held back gets none.

    Args:
      fn: A worker, a model call, a tool: anything that answers in its own time.
      label: What replies are called in a replay string's marks; by default the function's name.

    Returns:
      The wrapped function. Outside a controlled program, it only passes calls on.
    """
    if inspect.isfunction(fn) and not inspect.iscoroutinefunction(fn):
        return _arriving_in_a_thread(fn, label)
    awaited: Callable[P, Any] = fn
    name = label if label is not None else getattr(fn, "__qualname__", type(fn).__qualname__)

    @functools.wraps(awaited)
    async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        control = controlled.get()
        if control is None:
            return await awaited(*args, **kwargs)
        answer = await outcome.acapture(awaited, *args, **kwargs)
        if isinstance(answer, outcome.Error) and not isinstance(answer.error, Exception):
            return answer.unwrap()  # A cancel isn't a reply.
        arrived = control.backend.signal()
        reply = control.expect(name, arrived.set)
        try:
            await arrived.wait()
        finally:
            if reply in control.pending:
                control.pending.remove(reply)
        return answer.unwrap()

    waiting: Any = call
    return cast("Callable[P, T]", waiting)


def _arriving_in_a_thread(fn: Callable[P, Any], label: str | None) -> Callable[P, Any]:
    name = label if label is not None else fn.__qualname__

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        control = controlled.get()
        if control is None or control.backend.kind != "threads":
            return fn(*args, **kwargs)
        answer = outcome.capture(fn, *args, **kwargs)
        if isinstance(answer, outcome.Value) and inspect.isawaitable(answer.value):
            return answer.value
        arrived = ThreadSignal()
        control.expect(name, arrived.set)
        arrived.wait_here()
        return answer.unwrap()

    return call
