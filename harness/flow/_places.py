"""Say on an error in which stage or track it arose, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.runs._functions import name_of

NOTES_AT_MOST = 8
"""One error object may come out of many items; its notes stay bounded."""


def what_stage(name: str) -> str:
    """Return a stage in words: also what a journal calls it as a step."""
    return f"stage {name!r}"


def what_track(name: str) -> str:
    """Return a track in words."""
    return f"track {name!r}"


def what_classifies(classify: Callable[..., Any]) -> str:
    """Return a classifier in words."""
    return f"classifier {name_of(classify)!r}"


def what_escalates(name: str, escalate: str) -> str:
    """Return in words the track for an item that failed on another one."""
    return f"{what_track(escalate)} after {what_track(name)}"


class _PlaceNote(str):
    """A note that also knows the bare name. A string, because notes have to be."""

    name: str

    def __new__(cls, text: str, name: str) -> _PlaceNote:
        self = super().__new__(cls, text)
        self.name = name
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _PlaceNote, (str(self), self.name)


def failed_at(error: BaseException | None) -> tuple[str, ...]:
    """Return the names of the stages and tracks that an error came out of, outermost first.

    ``failed_at(result.error)`` is ``("parse",)`` for an item that failed in the stage ``parse``.
    It has several entries if pipelines or routers are nested, and none for an error that arose
    elsewhere. The error's traceback says the same in words.
    """
    notes = getattr(error, "__notes__", ())
    return tuple(note.name for note in reversed(notes) if isinstance(note, _PlaceNote))


def note_place(error: BaseException, what: str, name: str) -> None:
    """Note on an error that it came out of ``what``, such as ``stage 'parse'``."""
    note = _PlaceNote(f"in {what}", name)
    notes = [one for one in getattr(error, "__notes__", ()) if isinstance(one, _PlaceNote)]
    if note not in notes and len(notes) < NOTES_AT_MOST:
        _add(error, note)


def copy_places(source: BaseException, error: BaseException) -> None:
    """Note on ``error`` where ``source`` arose."""
    for note in getattr(source, "__notes__", ()):
        if isinstance(note, _PlaceNote):
            _add(error, note)


def _add(error: BaseException, note: Any) -> None:
    try:
        error.add_note(note)
    except Exception:
        pass  # A frozen exception takes no notes; the error itself matters more.
