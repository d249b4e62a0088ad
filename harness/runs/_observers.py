"""Hand every event to a plain function, wherever in the program the run is.

`observing` is for watching a whole program, as metrics or a trace file do: every run opened inside
the block inherits the function, and so do their children. For one run's events as a stream, see
`Run.subscribe`.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness.runs._events import Event

logger = logging.getLogger("harness.events")


class Observer:
    """A plain function that is handed events until it raises."""

    __slots__ = ("_function", "_notice")

    def __init__(self, function: Callable[[Event], object]) -> None:
        self._function: Callable[[Event], object] | None = function
        self._notice: Callable[[Event], object] | None = getattr(function, "notice", None)

    def observe(self, event: Event) -> None:
        """Hand over what the program emitted."""
        self._hand_over(self._function, event)

    def notice(self, event: Event) -> None:
        """Hand over what harness itself did, if the observer has a method for that."""
        self._hand_over(self._notice, event)

    @disable_ki_protection  # The function is the user's.
    def _hand_over(self, function: Callable[[Event], object] | None, event: Event) -> None:
        """Call it. An error in it is logged once and detaches the observer."""
        if function is None:
            return
        try:
            function(event)
        except Exception:
            self._function = self._notice = None
            logger.exception(
                "the observer %r raised on an event of run %r and was detached; "
                "the run goes on, and this observer sees nothing more",
                function,
                event.path,
            )


observers: ContextVar[tuple[Observer, ...]] = ContextVar("harness.observers", default=())
"""The observers that a run opened here gets."""


def observing(sink: Callable[[Event], object]) -> contextlib.AbstractContextManager[None]:
    """Hand every event of every run opened inside the block to ``sink``, even of private runs.

    If the sink has a method ``notice``, that is handed what harness itself does there: events whose
    payloads are `RunBegan`, `RunOver`, `WaitBegan`, `WaitOver` and others like them.

    The sink is called at once, in the task that emits; it must be quick and mustn't wait. If it
    raises, that is logged, it is detached, and the run goes on.

    Raises:
      TypeError: if ``sink`` isn't a plain function of an event.
    """
    if not callable(sink) or inspect.iscoroutinefunction(sink):
        raise TypeError(f"observing() takes a plain function of an event, not {sink!r}")
    return _observing(sink)


@contextlib.contextmanager
@enable_ki_protection
def _observing(sink: Callable[[Event], object]) -> Iterator[None]:
    token = observers.set((*observers.get(), Observer(sink)))
    try:
        yield
    finally:
        observers.reset(token)
