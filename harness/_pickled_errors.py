"""Pickle any error: what can't be read back becomes a `JournaledError` that says as much.

Many clients' errors pickle and can't be unpickled, since their constructors want more than is in
``args``; others hold a lock, or are of a class that the other process doesn't have. One such error
must not cost everything that was pickled with it. So each is pickled by itself, with a record in
plain text beside it.

Loaded when something is pickled: `pickle` is slow to import.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, Self

from harness._tracebacks import traceback_of
from harness.errors import JournaledError


class _Wrapped:
    """An error on its way into a pickle. A copy of what holds it has the error itself."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        record = recorded(self.error)
        try:
            pickled = pickle.dumps(self.error, protocol)
        except Exception:
            pickled = b""
        return _read, (pickled, record)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        try:
            return type(self)(copy.deepcopy(self.error, memo))
        except Exception:
            return self


def reduced(make: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """Return, for ``__reduce__``, what calls ``make`` with these arguments, errors among them."""
    wrapped = (_Wrapped(one) if isinstance(one, BaseException) else one for one in arguments)
    return _made, (make, *wrapped)


def recorded(error: BaseException) -> JournaledError:
    """Return what is kept of an error that itself is lost."""
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its text could not be read: {type(broken).__name__})"
    record = JournaledError(type(error).__name__, message, traceback_of(error))
    for note in getattr(error, "__notes__", ()):
        record.add_note(str(note))
    return record


def _made(make: Callable[..., Any], *arguments: Any) -> Any:
    return make(*(one.error if isinstance(one, _Wrapped) else one for one in arguments))


def _read(pickled: bytes, record: JournaledError) -> BaseException:
    try:
        error: Any = pickle.loads(pickled)
        if type(error).__name__ == record.type_name and str(error) == record.message:
            return error  # type: ignore[no-any-return]
    except Exception:
        pass
    return record
