"""Check after a run that nothing was lost and nothing goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import trio

from harness._words import error_in_words, repr_of
from harness.fanout import Result, Results
from harness.runs import Run, current_run_or_none

_STATUSES = ("ok", "failed", "timed_out", "cancelled", "skipped")


def assert_consistent(*things: Any, items: Any = None) -> None:
    """Check that all items came out, that no run goes on, and that shared objects are in order.

    Call it in trio after a fan-out, or after any run. It looks at all tasks: none may belong to a
    run that has ended, and no run may be alive but the current one and those around it.

    Args:
      things: What else to check. For `Results`: that there is exactly one result for each item,
        each with one of the five endings. For anything with a ``check()`` method, such as the
        primitives of `harness.shared`: that it doesn't complain.
      items: What went in: the items themselves, or how many there were.

    Raises:
      AssertionError: with a line for each thing that is wrong.
      TypeError: if a thing is neither results nor has a ``check()``.
    """
    wrong: list[str] = []
    for thing in things:
        if isinstance(thing, Results):
            wrong += _wrong_with_results(thing, items)
        elif callable(getattr(thing, "check", None)):
            try:
                if thing.check() is False:
                    wrong.append(f"{repr_of(thing)} is out of order")
            except Exception as error:
                wrong.append(f"{repr_of(thing)} is out of order: {error_in_words(error)}")
        else:
            raise TypeError(
                f"assert_consistent() takes results and what has a check(), not {thing!r}"
            )
    wrong += _wrong_with_tasks()
    if wrong:
        raise AssertionError("\n".join(["not consistent:", *(f"  {one}" for one in wrong)]))


def _wrong_with_results(results: Results[Any], items: Any) -> Iterator[str]:
    count = items if isinstance(items, int) else len(items) if isinstance(items, Sized) else None
    if count is not None and len(results) != count:
        yield f"{count:,} items went in, and {len(results):,} results came out"
    indexes = [result.index for result in results]
    if indexes != sorted(set(indexes)):
        yield f"the results are not one per item in input order: indexes {indexes[:20]}"
    for result in results:
        if isinstance(items, list | tuple) and result.index < len(items):
            own = items[result.index]
            if result.item is not own and result.item != own:
                yield f"result {result.index} is of item {repr_of(result.item)}, not its own"
        yield from _wrong_with_result(result)
    summary = results.summary()
    counted = sum(getattr(summary, status) for status in _STATUSES)
    if counted != summary.total:
        yield f"{counted:,} endings are counted for {summary.total:,} items"


def _wrong_with_result(result: Result[Any]) -> Iterator[str]:
    name = f"item {repr_of(result.key)}"
    if result.status not in _STATUSES:
        yield f"{name} ended as {result.status!r}, which isn't an ending"
    elif result.status != "ok":
        if not isinstance(result.error, BaseException):
            yield f"{name} is {result.status} without an error"
        elif isinstance(result.error, trio.Cancelled):
            yield f"{name} keeps a trio.Cancelled, which belongs to a scope that has ended"
    if result.status == "skipped" and result.attempts:
        yield f"{name} was skipped, and had {result.attempts} attempts"
    if result.ended_at < result.started_at:
        yield f"{name} ended before it started"


def _wrong_with_tasks() -> Iterator[str]:
    try:
        root = trio.lowlevel.current_root_task()
    except RuntimeError:
        return
    if root is None:
        return
    mine: set[Run] = set()
    run = current_run_or_none()
    while run is not None:
        mine.add(run)
        run = run.parent
    for task in _tasks(root):
        if task is trio.lowlevel.current_task():
            continue
        carried = task.context.run(current_run_or_none)
        if carried is None or carried in mine:
            continue
        if carried.status == "running":
            yield f"run {carried.path!r} goes on, in task {task.name!r}"
        else:
            yield f"task {task.name!r} goes on, and its run {carried.path!r} has ended"


def _tasks(root: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    pending = [root]
    while pending:
        task = pending.pop()
        yield task
        for nursery in task.child_nurseries:
            pending.extend(nursery.child_tasks)
