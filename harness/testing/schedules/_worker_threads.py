"""Run what a program of trio hands to worker threads under control, too.

The task that waits for a function in a thread makes that thread's steps: each time it is picked,
the thread runs up to its next point, while trio looks on. What the function calls back in trio is
done by the same task, as always.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import attrs
import outcome
import trio

from harness.testing.schedules._control import controlled
from harness.testing.schedules._thread_patches import Replacements
from harness.testing.schedules._thread_pools import pool_of
from harness.testing.schedules._threads import Crew, ThreadStrand, crew_of, current_strand

_run_sync = trio.to_thread.run_sync
_from_thread_run, _from_thread_run_sync = trio.from_thread.run, trio.from_thread.run_sync
_check_cancelled = trio.from_thread.check_cancelled


@attrs.define(eq=False)
class _Call:
    """What a thread asks the task that waits for it to do."""

    function: Callable[[], Any]
    is_async: bool
    result: outcome.Outcome[Any] | None = None


@attrs.define(eq=False)
class _Work:
    """A function in a thread, and the task that waits for it."""

    strand: ThreadStrand
    call: _Call | None = None
    cancelled: BaseException | None = None


async def run_sync(
    sync_fn: Callable[..., Any],
    *args: Any,
    thread_name: str | None = None,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
    **old: Any,
) -> Any:
    """Run a function in a thread, as `trio.to_thread.run_sync` does."""
    control = controlled.get()
    if control is None or control.backend.kind != "trio" or old:
        if thread_name is not None:
            old["thread_name"] = thread_name
        return await _run_sync(
            sync_fn, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter, **old
        )
    task = trio.lowlevel.current_task()
    await trio.lowlevel.checkpoint_if_cancelled()
    clock = trio.lowlevel.current_clock()
    crew = crew_of(control, clock.current_time)
    limiter = limiter or trio.to_thread.current_default_thread_limiter()
    placeholder = object()
    await limiter.acquire_on_behalf_of(placeholder)
    try:
        name = getattr(sync_fn, "__qualname__", type(sync_fn).__qualname__)
        work = _Work(crew.begin(thread_name or name, name, copy_context()))
        pool_of(crew, "trio").run(work.strand, lambda: _called(work, sync_fn, args))
        control.threads[task] = work.strand
        try:
            await _see_through(crew, work, abandon_on_cancel)
        finally:
            del control.threads[task]
    finally:
        limiter.release_on_behalf_of(placeholder)
    assert work.strand.result is not None
    return work.strand.result.unwrap()


run_sync.__module__, run_sync.__qualname__ = "trio", "to_thread_run_sync"  # For tasks' names.


def _called(work: _Work, sync_fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    work.strand.work = work
    returned = sync_fn(*args)
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError(f"trio expected a sync function, but {sync_fn!r} is asynchronous")
    return returned


async def _see_through(crew: Crew, work: _Work, abandon_on_cancel: bool) -> None:
    """Make the steps of a thread until it ends."""
    strand = work.strand
    with trio.CancelScope() as scope:
        while not strand.done:
            try:
                await _next_step(crew, strand, work)
            except trio.Cancelled as cancelled:
                if abandon_on_cancel or crew.control.cut_short:
                    crew.end(strand)
                    raise
                work.cancelled = cancelled
                scope.shield = True
                continue
            call, work.call = work.call, None
            if call is not None:
                scope.shield = False
                if call.is_async:
                    call.result = await outcome.acapture(call.function)
                else:
                    call.result = outcome.capture(call.function)
                scope.shield = work.cancelled is not None
        # What the task does now is a step of its own.
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()


async def _next_step(crew: Crew, strand: ThreadStrand, work: _Work) -> None:
    if strand.outside:
        # It isn't controlled: wait in real time.
        await _run_sync(strand.came_back.wait)
    elif strand.could_go_on(crew.now()):
        await trio.lowlevel.checkpoint()
        # Meanwhile another may have taken what it waits for.
        if strand.could_go_on(crew.now()):
            crew.let_go_on(strand)
            crew.wake_all()
    else:
        await _woken(crew, strand)


async def _woken(crew: Crew, strand: ThreadStrand) -> None:
    """Wait until a thread may be able to go on."""
    event = trio.Event()
    crew.wakers.append(event.set)
    try:
        with trio.move_on_at(float("inf") if strand.deadline is None else strand.deadline):
            await event.wait()
    finally:
        if event.set in crew.wakers:
            crew.wakers.remove(event.set)


# What the thread calls back ----------------------------------------------------------------------


def _asking(original: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    def ask(fn: Callable[..., Any], *args: Any, trio_token: Any = None) -> Any:
        strand = current_strand()
        work = None if strand is None else strand.work
        if strand is None or work is None or trio_token is not None:
            return original(fn, *args, trio_token=trio_token)
        call = work.call = _Call(lambda: fn(*args), is_async)
        strand.crew.wait(strand, lambda: call.result is not None, None)
        assert call.result is not None
        return call.result.unwrap()

    return ask


def _checking() -> None:
    strand = current_strand()
    work = None if strand is None else strand.work
    if work is None:
        _check_cancelled()
    elif work.cancelled is not None:
        raise work.cancelled


# harness: shared (it replaces what is of the whole process)
in_trio = Replacements(
    (
        (trio.to_thread, "run_sync", run_sync),
        (trio.from_thread, "run", _asking(_from_thread_run, True)),
        (trio.from_thread, "run_sync", _asking(_from_thread_run_sync, False)),
        (trio.from_thread, "check_cancelled", _checking),
    )
)
