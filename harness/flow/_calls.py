"""Let a single call, ``await pipeline(item)``, host what it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from harness.flow._attempts import NotAsync
from harness.flow._gate import Walker
from harness.runs import Run, current_run

_inside: ContextVar[tuple[object, ...]] = ContextVar("harness.flow: called from", default=())
"""What is being called around this code: pipelines and routers under way, the outermost first."""


@contextmanager
def calling(way: object, walker: Walker) -> Iterator[None]:
    """Note that code is inside of ``way`` during a call; tell ``walker`` if it was before."""
    around = _inside.get()
    if way in around:
        walker.inside = current_run().path
    token = _inside.set((*around, way))
    try:
        yield
    finally:
        _inside.reset(token)


class CallHost:
    """What a flow asks of its caller: there is no engine, and nothing is pulled."""

    decided = False

    @property
    def run(self) -> Run:
        """The run of the call."""
        return current_run()

    def why_cut(self) -> None:
        """Return None: it never is."""

    def closing(self) -> bool:
        """Return False: whether its caller is stopping, a call asks of its run."""
        return False

    def more_may_come(self) -> bool:
        """Return False: a call is one item."""
        return False

    def give_back(self, walker: Walker) -> None:
        """Do nothing: items wait to be let in only at the first stage's gate."""

    @enable_ki_protection
    def start_task(
        self,
        nursery: trio.Nursery | None,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
    ) -> None:
        """Start a task in the caller's context, which is the current one."""
        assert nursery is not None, "a call gathers nothing"
        nursery.start_soon(function, *args, name=name)

    def crash(self, error: NotAsync) -> None:
        """Do nothing: the error comes out of the call."""


CALLS = CallHost()
"""The host of all calls, because it holds nothing; also used when there is nothing left to ask."""
