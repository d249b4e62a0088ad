"""Write recorded results as JSON, and read them back.

Only what comes back the same is written: a recording that changes when it is saved would test
something else. Errors come back as `JournaledError`, with the type's name and the message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness._pickled_errors import recorded
from harness._words import repr_of
from harness.errors import JournaledError
from harness.fanout import Result

FORMAT = "harness recording"
VERSION = 1


def write(path: str | Path, results: Iterable[Result[Any]], encode: Callable[[Any], Any]) -> None:
    """Write results to a file.

    Raises:
      TypeError: if an item, a key or a value isn't plain data, and ``encode`` doesn't make it so.
    """
    rows: list[dict[str, Any]] = []
    for result in results:
        row: dict[str, Any] = {
            "index": result.index,
            "key": _plain("key", result.key, encode),
            "item": _plain("item", result.item, encode),
            "run_id": result.run_id,
            "status": result.status,
            "attempts": result.attempts,
            "started_at": result.started_at,
            "ended_at": result.ended_at,
        }
        if result.ok:
            row["value"] = _plain("value", result.value, encode)
        else:
            kept = recorded(result.error or RuntimeError())
            row["error"] = {"type": kept.type_name, "message": kept.message}
        rows.append(row)
    text = json.dumps({"format": FORMAT, "version": VERSION, "results": rows}, indent=1)
    Path(path).write_text(f"{text}\n", encoding="utf-8")


def _plain(what: str, value: Any, encode: Callable[[Any], Any]) -> Any:
    made = encode(value)
    try:
        comes_back = json.loads(json.dumps(made)) == made
    except (TypeError, ValueError):
        comes_back = False
    if not comes_back:
        raise TypeError(
            f"the {what} {repr_of(value)} doesn't come back from JSON as it is; pass encode= and "
            "decode=, functions that make plain data of it and read that"
        )
    return made


def read(path: str | Path, decode: Callable[[Any], Any]) -> list[Result[Any]]:
    """Read results from a file.

    Raises:
      ValueError: if it is of another format or version, or damaged.
      OSError: if it can't be read.
    """
    try:
        held = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no recording: {error}") from error
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise ValueError(f"{path} is no recording that Recording.save() wrote")
    if held.get("version") != VERSION:
        raise ValueError(
            f"the recording {path} is of version {held.get('version')}, and this harness reads "
            f"{VERSION}; record it again"
        )
    try:
        return [_result(row, decode) for row in held["results"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the recording {path} can't be read ({error!r}): it is damaged, or decode= is for "
            "values of another program"
        ) from error


def _result(row: dict[str, Any], decode: Callable[[Any], Any]) -> Result[Any]:
    if row["status"] == "ok":
        ended_with = decode(row["value"])
    else:
        ended_with = JournaledError(row["error"]["type"], row["error"]["message"])
    return Result(
        row["index"],
        decode(row["key"]),
        decode(row["item"]),
        row["run_id"],
        row["status"],
        ended_with,
        row["attempts"],
        row["started_at"],
        row["ended_at"],
    )
