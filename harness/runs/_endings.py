"""Tell a cancel from an error, and say on an error which run it came out of.

A cancel can arrive as a group of only `trio.Cancelled`, if the body had a nursery open.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio

from harness._error_copies import own_copy
from harness._words import harmless
from harness.errors import ApprovalPending, RunCancelled, RunTimedOut
from harness.runs._frames import describe_await, describe_wait, traceback_frames
from harness.runs._run import Ending, Run

if TYPE_CHECKING:
    from harness._approvals import Parked

NOTES_AT_MOST = 8
"""How many notes harness leaves on one exception: one raised by a thousand runs stays small."""

FOREIGN_NOTES_AT_MOST = 32
"""With this many notes, from anybody, an exception gets no more from us."""

_NOTE = "in run "


def is_only_cancelled(error: BaseException) -> bool:
    """Return whether this is a cancel: `trio.Cancelled`, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_only_cancelled(inner) for inner in error.exceptions)
    return isinstance(error, trio.Cancelled)


def without_cancelled(error: BaseException) -> BaseException:
    """Return what is left of an error when the cancels in its groups are removed."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    rest = error.split(trio.Cancelled)[1]
    assert rest is not None, "a group of only Cancelled is a cancel, and was told apart before"
    return rest


def most_telling(error: BaseException) -> BaseException:
    """Return the one exception that a group is about.

    What isn't an error, such as `KeyboardInterrupt`, before an error, and that before a cancel.
    """
    leaves = list(_leaves(error))
    for leaf in leaves:
        if not isinstance(leaf, (Exception, trio.Cancelled)):
            return leaf
    return next((leaf for leaf in leaves if isinstance(leaf, Exception)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def unwrap_single(error: Exception) -> Exception:
    """Return the one error inside a group of one, however deep; anything else as it is.

    Code that opens a nursery raises groups. Whoever is waiting for one kind of error should still
    find it. The group's notes, and its cause if the error has none, go with it. Groups of a class
    of their own, such as `FanOutError`, say more than what they hold, and are left alone.
    """
    while type(error) is ExceptionGroup and len(error.exceptions) == 1:
        inner: Exception = error.exceptions[0]
        # Somebody's exceptions may refuse all of this; the error itself matters more.
        with contextlib.suppress(Exception):
            notes = getattr(inner, "__notes__", ())
            for note in getattr(error, "__notes__", ()):
                if note not in notes:
                    inner.add_note(note)
        with contextlib.suppress(Exception):
            if inner.__cause__ is None and error.__cause__ is not None:
                inner.__cause__ = error.__cause__
        error = inner
    return error


def without_first_frame(error: Exception) -> Exception:
    """Remove our own frame, the first, from the error's traceback."""
    traceback = error.__traceback__
    if traceback is not None and traceback.tb_next is not None:
        with contextlib.suppress(Exception):
            error.__traceback__ = traceback.tb_next
    return error


def set_context(error: BaseException, before: BaseException) -> None:
    """Note on ``error``, if it has no context, that it came while ``before`` was being handled."""
    with contextlib.suppress(Exception):
        if error is not before and error.__context__ is None:
            error.__context__ = before


def try_note(error: BaseException, note: str) -> None:
    """Add a note to an exception that may refuse it; the error itself matters more.

    One that already has many gets none, so that an object raised a thousand times stays small.
    """
    with contextlib.suppress(Exception):
        if len(getattr(error, "__notes__", ())) < FOREIGN_NOTES_AT_MOST:
            error.add_note(note)


def own_error(error: Exception, run: Run) -> Exception:
    """Return the error an item ends with: a copy, if the object has ended another item before.

    One object that many items raise would gather the notes, the tracebacks, and so the locals, of
    all. It stays itself when the same item is tried again, and when it comes out of a run below,
    as it does when a result's value is read.
    """
    own = error
    with contextlib.suppress(Exception):  # Somebody's exceptions may refuse all of this.
        above = run._parent
        item = f"{run.id if above is None else above.id}/{run.name}"
        before = vars(error).get("_harness_ended")
        if before and before[0] != item and not before[1].startswith(f"{run.path}/"):
            own = _taken_apart(error, run, ended_with=before[2])
        vars(own)["_harness_ended"] = item, run.path, id(own.__traceback__)
    return own


def _taken_apart(error: Exception, run: Run, *, ended_with: int) -> Exception:
    """Return a copy with what this run added to an error, which goes back to what it was before."""
    notes: list[str] = getattr(error, "__notes__", [])
    mine = [note for note in notes if _is_of(note, run)]
    theirs = [note for note in notes if note not in mine]
    own = own_copy(error)
    head, last = error.__traceback__, None
    at = head
    while at is not None and id(at) != ended_with:
        last, at = at, at.tb_next
    if at is not None and last is not None:
        last.tb_next = None
        error.__traceback__ = at
    if own is not error:
        own.__traceback__ = head
        if notes:
            own.__notes__ = [note for note in theirs if not note.startswith(_NOTE)] + mine
            error.__notes__ = theirs
    return own


def add_note(error: BaseException, run: Run) -> None:
    """Note on an exception which run and attempt it came out of, and what that waited for.

    Nothing if a note says so already. One exception object may come out of many runs, nested or
    not, so the notes are bounded.
    """
    with contextlib.suppress(Exception):
        ours = [n for n in getattr(error, "__notes__", ()) if n.startswith(_NOTE)]
        said = next((n for n in ours if _is_of(n, run)), None)
        if said is None:
            if len(ours) < NOTES_AT_MOST:
                error.add_note(_note_for(error, run))
        elif said.startswith(f"{_noted(run)}, attempt "):  # The same object, raised again.
            error.__notes__[error.__notes__.index(said)] = _note_for(error, run)
    if type(error) in _OF_ASYNCIO_CODE:
        with contextlib.suppress(Exception):
            _point_to_asyncio(error, run)


def _is_of(note: str, run: Run) -> bool:
    """Return whether a note names this run, or one below it."""
    here = _noted(run)
    return note.startswith(here) and note[len(here) : len(here) + 1] in ("", "/", ",")


def _note_for(error: BaseException, run: Run) -> str:
    number = getattr(run, "_attempt_number", None)
    attempt = "" if number is None else f", attempt {number}"
    awaited = describe_await(traceback_frames(error.__traceback__))
    waiting = "" if awaited is None else f", waiting for {awaited}"
    return f"{_noted(run)}{attempt}{waiting}"


def _noted(run: Run) -> str:
    """Return how a note names a run: tracebacks are read on terminals."""
    return f"{_NOTE}{harmless(run.path)}"


_OF_ASYNCIO_CODE: dict[type[BaseException], tuple[str, ...]] = {
    RuntimeError: ("no running event loop", "There is no current event loop"),
    TypeError: ("trio.run received unrecognized yield message",),
    AttributeError: ("'NoneType' object has no attribute 'create_future'",),
}
"""How asyncio code fails in a trio task."""

ASYNCIO_NOTE = (
    "this is asyncio code, and trio runs it; call it with harness.asyncio_bridge "
    "(docs/how-to/asyncio.md shows how)"
)


def _point_to_asyncio(error: BaseException, run: Run) -> None:
    """Note on an error of asyncio code how to run that; on one of a fan-out's items, not on all.

    Of an item that is tried again each attempt's error gets the note, as only the last is kept.
    """
    level = run._above
    if level.tree.token is None or not str(error).startswith(_OF_ASYNCIO_CODE[type(error)]):
        return
    if ASYNCIO_NOTE not in getattr(error, "__notes__", ()):
        # Above it, where the error may still get to, the note may be on a sibling's error.
        above = level.above
        while above is not None:
            if hasattr(above, "pointed_for"):
                return
            above = above.above
        item = run._item_index
        if hasattr(level, "pointed_for") and (item is None or level.pointed_for != item):
            return
        try_note(error, ASYNCIO_NOTE)
    level.pointed_for = run._item_index


def cancelled_error(run: Run, partial: object = None) -> RunCancelled:
    """Return the error that stands for what a cancelled run would have returned."""
    error = RunCancelled(run._cancel_reason, partial, run.id)
    error._runs_above = tuple(run._above.ids())
    return error


def waits_still(run: Run, states: Parked) -> ApprovalPending:
    """Return the error for an item none of whose waiting calls anybody has answered."""
    error = ApprovalPending(states, run_id=run.id)
    error._runs_above = tuple(run._above.ids())
    return error


def cancelled_below(error: BaseException, run: Run) -> RunCancelled | None:
    """Return the error if it says that this run, or one below it, was cancelled; else None.

    A group of only such errors says so too; then the first of them is returned, or one for all
    that wait for an approval.
    """
    first: RunCancelled | None = None
    parked: list[ApprovalPending] = []
    for leaf in _leaves(error):
        if not isinstance(leaf, RunCancelled) or (
            leaf.run_id != run.id and run.id not in leaf._runs_above
        ):
            return None
        first = first or leaf
        if isinstance(leaf, ApprovalPending):
            parked.append(leaf)
    if len(parked) > 1:
        states = {key: state for one in parked for key, state in one._states.items()}
        joined = ApprovalPending(states, run_id=parked[0].run_id)
        joined._runs_above = parked[0]._runs_above
        return joined
    return parked[0] if parked else first


def timed_out_error(run: Run, stuck_at: types.TracebackType | None) -> RunTimedOut:
    """Return the error for a run whose own deadline took effect, saying where it was."""
    deadline = run._scope.deadline
    allowed = round(deadline - run._started_at, 3)
    late = round((run._ended_at or deadline) - deadline, 3)
    where = f", in {describe_wait(traceback_frames(stuck_at))}" if stuck_at is not None else ""
    # On a real clock it is always a little late.
    after = f"; it ended {late:g} s later" if late >= 0.1 else ""
    error = RunTimedOut(f"run {run.path!r} ran out of time after {allowed:g} s{where}{after}")
    error.run_id = run.id
    error.allowed_seconds = allowed
    return error


def status_of(error: BaseException, run: Run) -> Ending:
    """Return how a run that raised ends: timed out if the error says so about this very run."""
    if isinstance(error, RunTimedOut) and error.run_id == run.id:
        return "timed_out"
    return "cancelled" if isinstance(error, ApprovalPending) else "failed"
