"""Copy an error, so that everybody who raises it raises their own.

One exception raised in many tasks would gather the tracebacks and notes of all of them.
"""

from __future__ import annotations

import copy
from typing import Any


def own_copy(error: Exception) -> Exception:
    """Return a copy of the error, with its cause and notes; the error itself if it can't be copied.

    The copy has no traceback: it is raised for the first time.
    """
    try:
        own = _copy(error)
        state: Any = object.__getstate__(error)
        values, in_slots = state if isinstance(state, tuple) else (state, None)
        vars(own).update(values or {})
        for name, value in (in_slots or {}).items():
            setattr(own, name, value)
    except Exception:
        return error
    if type(own) is not type(error) or own.args != error.args:
        return error
    if hasattr(error, "__notes__"):
        own.__notes__ = list(error.__notes__)
    own.__cause__ = error.__cause__
    own.__context__ = error.__context__
    own.__suppress_context__ = error.__suppress_context__
    return own


def _copy(error: Exception) -> Exception:
    kind = type(error)
    try:
        own = copy.copy(error)
        if type(own) is kind and own.args == error.args:
            return own
    except Exception:
        pass
    # As with most clients' errors: their constructors want what isn't in `args`, or rewrite the
    # text.
    built_in = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    if built_in.__basicsize__ != Exception.__basicsize__:
        raise TypeError("it keeps more than can be seen from here, as an OSError does")
    return kind.__new__(kind, *error.args)
