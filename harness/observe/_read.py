"""Read a trace back, as far as it is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

_NUMBER = (int, float)

_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(
        (
            *("type", "run_id", "path", "parent", "by", "status", "error", "message", "reason"),
            *(
                "on",
                "limiter",
                "model",
                "tool",
                "provider",
                "response",
                "arguments",
                "attempt",
                "beside",
            ),
        ),
        str,
    ),
    **dict.fromkeys(
        (
            *(
                "time",
                "settled",
                "requests",
                "tokens",
                "places",
                "in_flight",
                "input_tokens",
                "output_tokens",
                "cost_usd",
            ),
            *("seconds", "delay", "unix", "headroom", "burst_seconds"),
        ),
        _NUMBER,
    ),
    **dict.fromkeys(("index", "wait", "number"), int),
    **dict.fromkeys(("held_by", "traceback", "request"), list),
    **dict.fromkeys(("tags", "granted"), dict),
}
"""What the values of fields are, as far as a reader relies on it."""

_NEEDED = {
    "run_started": ("path",),
    "run_ended": ("status",),
    "wait": ("wait", "reason"),
    "wake": ("wait",),
    "release": ("wait",),
    "hedge": ("attempt", "beside"),
}
"""The fields that lines of a type have beside ``type``, ``time`` and ``run_id``."""

_GIVE = "give the file that harness.observe.record() or harness batch --trace wrote"

_LISTS = {"held_by", "traceback", "request", "granted"}

_LARGEST = 1e15
"""No number in a trace is as large; infinity, and what isn't a number, aren't smaller."""


def read_trace(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield each line of a trace as a dict; a last line that was cut off is left out.

    Args:
      path: The file that `record` writes, or has written.

    Raises:
      OSError: if the file can't be read.
      ValueError: if a line isn't one of a trace; the message says which, and why.
    """
    return read_lines(path, _every)


def _every(line: bytes) -> bool:
    return True


def read_lines(
    path: str | os.PathLike[str], wanted: Callable[[bytes], bool]
) -> Iterator[dict[str, Any]]:
    """Yield the wanted lines of a trace, as `read_trace` does; the others aren't even parsed."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # The process was killed while it wrote this.
            if not wanted(line):
                continue
            where = f"{os.fspath(path)!r}, line {number}"
            try:
                found = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{where} isn't JSON ({error}), so it is no trace; {_GIVE}"
                ) from None
            if (fault := _fault_in(found)) is not None:
                raise ValueError(f"{where} is no line of a trace: {fault}; {_GIVE}")
            yield found


def _fault_in(line: Any) -> str | None:
    """Say why something isn't a line of a trace; None if it is."""
    if not isinstance(line, dict):
        return "it is no object"
    for name in ("type", "time", "run_id", *_NEEDED.get(str(line.get("type")), ())):
        if name not in line:
            return f"it has no {name}"
    for name, value in line.items():
        expected = _TYPES.get(name)
        if expected is not None and (
            not isinstance(value, expected)
            or (isinstance(value, _NUMBER) and not -_LARGEST < value < _LARGEST)
        ):
            return f"its {name} is {repr(value)[:100]}"
    if not _LISTS.isdisjoint(line) and not _are_whole(line):
        return "what is in a list or an object of it isn't what it should be"
    if line.get("places", 1) <= 0:
        return f"its places are {line['places']!r}"
    return None


def _are_whole(line: dict[str, Any]) -> bool:
    """Return whether the lists and objects in a line have the right things in them."""
    texts = (*line.get("held_by", ()), *line.get("traceback", ()))
    if not all(isinstance(text, str) for text in texts):
        return False
    for one in line.get("request", ()):
        if not isinstance(one, dict) or not all(
            isinstance(one.get(name), str) for name in ("role", "text")
        ):
            return False
    return all(
        isinstance(of, list)
        and len(of) == 3
        and all(isinstance(value, _NUMBER) and 0 <= value < _LARGEST for value in of)
        and of[1] > 0
        and of[2] > 0
        for of in line.get("granted", {}).values()
    )
