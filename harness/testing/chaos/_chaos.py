"""Make calls of workers, models and tools late, fail or cancelled, the same way every time.

A `Chaos` wraps what should suffer; the code that calls it stays as it is. What happens to a call
depends on the seed and the call, never on the order in which calls come, so a failing test fails
again. A retry is another call, and may get through.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import attrs
import trio

from harness._arguments import check_fraction, check_whole, says_near_options
from harness.errors import NoRunError
from harness.runs import current_run_or_none
from harness.runs._functions import check_callable
from harness.testing.chaos._fate import CallFate, Odds, describe_call, fate_of
from harness.testing.chaos._wanted import Delay, ErrorMaker, delay_bounds, error_makers
from harness.testing.chaos._wrapped import CallFaults, ChaosModel, wrap_tool

T = TypeVar("T")

CALLS_REMEMBERED = 65_536
"""How many different calls are told apart. One repeated after that many others counts as new."""


@attrs.frozen(kw_only=True)
class ChaosStatistics:
    """What was done to how many calls."""

    calls: int = 0
    """Calls made."""

    delayed: int = 0
    """Calls held up."""

    failed: int = 0
    """Calls in which an error was raised."""

    cancelled: int = 0
    """Calls whose run was cancelled."""

    delay_seconds: float = 0.0
    """How long calls were held up in total."""

    @property
    def untouched(self) -> int:
        """Calls that nothing happened to."""
        return self.calls - self.delayed - self.failed - self.cancelled


@says_near_options
class Chaos:
    """What goes wrong with the calls of what it wraps::

        chaos = Chaos(7, delay=(0, 30), fail=ConnectionError, rate=0.2)
        results = await harness.fan_out(chaos.wrap(classify), tickets, policy=BestEffort())

    Give at least one of ``delay``, ``fail`` and ``cancel``. The share ``rate`` of calls is hit,
    each by one of the given faults, evenly; a number from 0 to 1 as ``fail`` or ``cancel`` is that
    fault's own share instead.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        delay: Delay | None = None,
        fail: float | ErrorMaker | None = None,
        cancel: float | bool | str | None = None,
        rate: float = 0.1,
        after: float = 0.0,
    ) -> None:
        """Say what goes wrong, and how often.

        Args:
          seed: With another seed, other calls are hit.
          delay: Hold calls up for this many seconds on trio's clock, or between two such numbers.
          fail: Raise this: an exception class, several, an error, or a function that makes one. If
            a number: raise `ChaosError` in this share of calls.
          cancel: Cancel the current run (of a fan-out: the item's attempt). True, a reason in
            words, or a number as for ``fail``.
          rate: The share of calls hit by faults without a share of their own.
          after: The share of errors and cancels that come after the call: it was made, and its
            answer is lost.

        Raises:
          TypeError: if an argument has the wrong type.
          ValueError: if a share isn't from 0 to 1, they add up to more than 1, or nothing is asked
            for.
        """
        check_whole("Chaos(seed=...)", seed, advice="any will do, and the same one repeats a test")
        advice = "it is the share of the calls that is hit"
        rate = check_fraction("Chaos(rate=...)", rate, advice=advice)
        after = check_fraction("Chaos(after=...)", after, advice="0 is before the call, always")
        own: dict[str, float] = {}
        for name, given in (("fail", fail), ("cancel", cancel)):
            if isinstance(given, int | float) and not isinstance(given, bool):
                own[name] = check_fraction(f"Chaos({name}=...)", given, advice=advice)
        wanted = {"delay": delay, "fail": fail, "cancel": cancel}
        asked = [name for name, given in wanted.items() if given is not None and given is not False]
        if not asked:
            raise ValueError(
                "Chaos() has no faults to inject; give delay=, fail= or cancel=, such as "
                "Chaos(1, fail=ConnectionError, rate=0.2)"
            )
        without = [name for name in asked if name not in own]
        shares = own | {name: rate / len(without) for name in without}
        if sum(shares.values()) > 1 + 1e-9:
            raise ValueError(f"the shares of Chaos() are {shares}, but must add up to at most 1")
        self._odds = Odds(**shares, delay_seconds=delay_bounds(delay), after=after)
        self._errors = error_makers(None if "fail" in own else fail)
        self._reason = cancel if isinstance(cancel, str) else "chaos"
        self._counted: OrderedDict[str, int] = OrderedDict()
        self._statistics = ChaosStatistics()
        self._lock = threading.Lock()  # Plain functions are called in threads, concurrently.
        self.seed: int = seed
        """Decides which calls are hit."""

    def __repr__(self) -> str:
        return f"<Chaos seed={self.seed}: {self._statistics}>"

    def statistics(self) -> ChaosStatistics:
        """Return what has been done so far."""
        return self._statistics

    def reset(self) -> None:
        """Forget all calls: the next ones meet what the first ones met."""
        self._counted.clear()
        self._statistics = ChaosStatistics()

    # Wrapping ----------------------------------------------------------------------------------

    def wrap(self, thing: T) -> T:
        """Return something to use in place of ``thing``.

        Args:
          thing: A worker (any callable that returns an awaitable), a model, a tool, or a plain
            function that is called in a worker thread. It isn't changed.

        Raises:
          TypeError: if it is none of these.
        """
        if isinstance(thing, type):
            raise TypeError(
                f"Chaos.wrap() takes an instance or a function, not the class {thing!r}; wrap what "
                "it makes"
            )
        if hasattr(thing, "complete") and hasattr(thing, "stream"):
            return ChaosModel(self._faults(), thing)  # type: ignore[return-value]
        if hasattr(thing, "invoke") and hasattr(thing, "parameters"):
            changed: T = wrap_tool(self._faults(), thing)
            return changed
        if inspect.iscoroutine(thing):
            check_callable("Chaos.wrap()", thing)  # It raises, and says which line to change.
        if not callable(thing):
            raise TypeError(
                f"Chaos.wrap() takes an async function, a model or a tool, not {thing!r}"
            )
        if inspect.isasyncgenfunction(thing):
            raise TypeError(
                f"Chaos.wrap() takes an async function, and {thing!r} is an async generator; wrap "
                "what it calls"
            )
        return self._wrap_function(thing)  # type: ignore[return-value]

    def _wrap_function(self, thing: Callable[..., Any]) -> Callable[..., Any]:
        name = _name_of(thing)
        if _is_plain(thing):

            @functools.wraps(thing)
            def plain(*args: Any, **named: Any) -> Any:
                return self._around_plain(name, thing, args, named)

            return plain

        async def around(*args: Any, **named: Any) -> Any:
            async with self._around(name, args, named):
                return await thing(*args, **named)

        if inspect.isroutine(thing):
            functools.update_wrapper(around, thing)
        else:  # The attributes of an object, such as an agent, aren't those of a function.
            around.__name__ = around.__qualname__ = name
        return around

    # One call ----------------------------------------------------------------------------------

    def _around(
        self, name: str, args: tuple[Any, ...], named: dict[str, Any]
    ) -> AbstractAsyncContextManager[None]:
        return self._meeting(self._fate(name, args, named))

    @asynccontextmanager
    async def _meeting(self, fate: CallFate) -> AsyncIterator[None]:
        if fate.kind == "delay":
            await trio.sleep(fate.delay_seconds)
        elif not fate.after:
            await self._strike(fate)
        yield
        if fate.after:
            await self._strike(fate)

    async def _strike(self, fate: CallFate) -> None:
        if fate.kind == "fail":
            raise self._error(fate)
        if fate.kind == "cancel":
            self._cancel()
            await trio.lowlevel.checkpoint()

    def _around_plain(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Do as `_around` does, for a function called in a worker thread."""
        fate = self._fate(name, args, named)
        if _in_a_task():
            if fate.kind == "fail" and not fate.after:
                raise self._error(fate)
            value = fn(*args, **named)
            if inspect.isawaitable(value):  # An async function in disguise, such as a lambda.
                return self._awaiting(value, fate)
            if fate.kind == "fail":
                raise self._error(fate)
            if fate.kind != "nothing":
                raise RuntimeError(_IN_A_THREAD_ONLY)
            return value
        if fate.kind == "delay":
            _in_trio(trio.from_thread.run, trio.sleep, fate.delay_seconds)
        elif not fate.after:
            self._strike_in_thread(fate)
        value = fn(*args, **named)
        if fate.after:
            self._strike_in_thread(fate)
        return value

    async def _awaiting(self, value: Awaitable[Any], fate: CallFate) -> Any:
        try:
            async with self._meeting(fate):
                return await value
        finally:
            if inspect.iscoroutine(value):
                value.close()  # In case it never began: Python would warn that nobody awaited it.

    def _faults(self) -> CallFaults:
        return CallFaults(repr(self), self._fate, self._strike, self._around)

    def _strike_in_thread(self, fate: CallFate) -> None:
        if fate.kind == "fail":
            raise self._error(fate)
        if fate.kind == "cancel":
            _in_trio(trio.from_thread.run_sync, self._cancel)
            trio.from_thread.check_cancelled()

    def _error(self, fate: CallFate) -> Exception:
        return self._errors[int(fate.which * len(self._errors))]()

    def _cancel(self) -> None:
        run = current_run_or_none()
        if run is None:
            raise NoRunError(
                "Chaos(cancel=...) cancels the current run, and this call belongs to none; call it "
                "in a fan-out or inside `async with harness.open_run(...)`"
            )
        run.cancel(self._reason)

    def _fate(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> CallFate:
        run = current_run_or_none()
        call = describe_call(self.seed, "" if run is None else run.path, name, args, named)
        with self._lock:
            times = self._counted.pop(call, 0)
            self._counted[call] = times + 1
            if len(self._counted) > CALLS_REMEMBERED:
                self._counted.popitem(last=False)
            fate = fate_of(f"{call}|{times}", self._odds)
            seen = self._statistics
            self._statistics = attrs.evolve(
                seen,
                calls=seen.calls + 1,
                delayed=seen.delayed + (fate.kind == "delay"),
                failed=seen.failed + (fate.kind == "fail"),
                cancelled=seen.cancelled + (fate.kind == "cancel"),
                delay_seconds=seen.delay_seconds + fate.delay_seconds,
            )
        return fate


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "name", None) or getattr(fn, "__qualname__", type(fn).__qualname__))


def _is_plain(fn: Any) -> bool:
    """Return whether a callable is a plain function, with no hint of an awaitable."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.iscoroutinefunction(inspect.unwrap(fn)):
        return False
    if not inspect.isroutine(fn):
        return not inspect.iscoroutinefunction(type(fn).__call__)
    annotation = getattr(fn, "__annotations__", {}).get("return", "")
    words = inspect.formatannotation(annotation)
    return "Awaitable" not in words and "Coroutine" not in words


_IN_A_THREAD_ONLY = (
    "chaos delays and cancels a plain function in a worker thread only; call it with "
    "trio.to_thread.run_sync, or wrap an async function"
)


def _in_a_task() -> bool:
    """Return whether a trio task runs this; trio has its own function for it only since 0.27."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


def _in_trio(call: Callable[..., Any], *args: Any) -> None:
    try:
        call(*args)
    except RuntimeError as error:
        if "thread" not in str(error):
            raise
        raise RuntimeError(_IN_A_THREAD_ONLY) from error
