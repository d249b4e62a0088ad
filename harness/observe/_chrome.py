"""Write a trace in the format that Perfetto and Chrome's own viewer read.

Runs overlap as they like, so each is a pair of *nestable asynchronous* events, which need no thread
and no stack: events of one id are nested by their order. Each run has an id of its own, and what it
waits for is shown inside of it, as far as waits don't overlap. The format counts microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from harness.observe._files import refuse_same, replacing
from harness.observe._runs import TracedRun, load

_PER_MICROSECOND = 1_000


def export_chrome(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Write a trace as Chrome's trace event JSON, which https://ui.perfetto.dev opens.

    Of more than 200,000 runs, those that began first; the name of the process then says so.

    Args:
      path: A trace that `record` has written.
      output: The file to write; one that is there is replaced once the new one is whole.

    Raises:
      OSError: if a file can't be read or written.
      ValueError: if ``path`` is no trace, or ``output`` is the same file.
    """
    refuse_same(path, output)
    traced = load(path)
    runs = traced.runs.values()
    name = "harness"
    if traced.is_cut:
        name += f": the first {len(runs):,} of {traced.total_runs:,} runs"
    with replacing(output) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        named = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}
        file.write(json.dumps(named, separators=(",", ":")))
        for number, run in enumerate(runs, 1):
            for event in _events_of(run, f"0x{number:x}"):
                file.write(",\n")
                file.write(json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _events_of(run: TracedRun, lane: str) -> Iterator[dict[str, Any]]:
    """Yield the events of one run, in the order in which viewers nest them."""
    name = run.path.rpartition("/")[2] or "run"
    facts = {"run_id": run.id, "path": run.path, "status": run.status}
    if run.error is not None:
        facts["error"] = run.error
    yield {**_event("b", name, lane, run.started), "args": facts}
    shown_until = run.started
    for wait in sorted(run.waits, key=lambda one: one.started):
        ended = run.ended if wait.ended is None else min(wait.ended, run.ended)
        if shown_until <= wait.started <= ended:
            words = f"{wait.reason}: {wait.on}"
            yield _event("b", words, lane, wait.started)
            yield _event("e", words, lane, ended)
            shown_until = ended
    yield _event("e", name, lane, run.ended)


def _event(phase: str, name: str, lane: str, at: int) -> dict[str, Any]:
    return {
        "ph": phase,
        "cat": "harness",
        "name": name,
        "pid": 1,
        "tid": 1,
        "id2": {"local": lane},
        "ts": at / _PER_MICROSECOND,
    }
