"""Read a trace back, as far as it is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any


def read_trace(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield each line of a trace as a dict; a last line that was cut off is left out.

    Args:
      path: The file that `record` writes, or has written.

    Raises:
      OSError: if the file can't be read.
      ValueError: if a line isn't one of a trace; the message says which.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # The process was killed while it wrote this.
            try:
                found = json.loads(line)
            except ValueError as error:
                raise ValueError(
                    f"{os.fspath(path)!r}, line {number} isn't JSON: {error}"
                ) from None
            if not isinstance(found, dict) or "type" not in found or "time" not in found:
                raise ValueError(
                    f"{os.fspath(path)!r}, line {number} is no line of a trace: it has no type or "
                    "no time; give the file that harness.observe.record() wrote"
                )
            yield found
