"""Say in one sentence what to do about a shared object.

The advice comes in this order: a local variable; a run per call with a `RunLocal`; a `RunLocal` of
the surrounding run only where several calls are meant to share it.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from typing import Any

from harness._words import repr_of
from harness.testing.isolation._causes import Candidate
from harness.testing.isolation._findings import Findings
from harness.testing.isolation._same_run import RunLocalPart
from harness.testing.objects import WHOLE, MappingPart, OpaquePart


def fix(findings: Findings) -> str:
    """Return what to do about it, in one sentence."""
    if not findings.causes.candidates and findings.run_was_cancelled:
        return f"give each call a run of its own, with {_decorator(findings)}"
    if not findings.causes.candidates and findings.not_looked_at:
        return "look first at what was not looked at here: the runs may share something in it"
    if not findings.causes.candidates:
        return "find what outside of the program the runs share, and give each its own"
    if findings.verdict.broken is not None:
        kind = findings.verdict.run.backend if findings.verdict.run is not None else "trio"
        return (
            f"change {findings.verdict.broken.path} in one step, without a checkpoint between "
            f"looking at it and changing it, or under a {kind}.Lock"
        )
    first = findings.causes.candidates[0]
    name = _identifier(first.path)
    faults = findings.verdict.run.schedule.faults if findings.verdict.run is not None else ()
    if "__defaults__" in first.path or "__kwdefaults__" in first.path:
        return "make the default None, and make a new object in the function when it is None"
    if first.path.startswith("inputs["):
        return "don't change an input that runs share; copy it first"
    if isinstance(first.suspects[0].part, RunLocalPart):
        return (
            f"make it a local variable of the function; or open a run for each call, with "
            f"{_decorator(findings)}, and each has its own {name}; if the calls of one run are "
            f"meant to share it, say so: shared=[{_without_module(first.path)}]"
        )
    if isinstance(first.suspects[0].part, OpaquePart):
        return f"give each run a {first.kind} of its own, or let only one use it at a time"
    if first.suspects[0].part.advice:
        return first.suspects[0].part.advice
    if any(_is_a_loops(one.part.thing) for one in first.suspects):
        return (
            f"let go of {first.path} on every way out, as `async with` does, and take several of "
            "its kind in the same order everywhere"
        )
    if faults:
        return (
            f"put {first.path} in order when a run is cancelled (try/finally), or throw it away, "
            "or give each run its own"
        )
    shared_key = _under_a_computed_key(findings, first)
    if shared_key is not None:
        return (
            f"let the key tell the runs apart: they all use {shared_key}, so add to it what else "
            "the value depends on, such as the user, or the run's id (harness.current_run().id)"
        )
    return (
        f"make it a local variable of the function; or open a run for each call, with "
        f"{_decorator(findings)}, and keep it there, as in {name} = harness.RunLocal("
        f"{_factory(findings.initial[first.path])}, name={name!r}); without the decorator the "
        "RunLocal is the surrounding run's, for what its calls are meant to share"
    )


_KEY = re.compile(r"\[('[^']*'|\"[^\"]*\"|\([^]]*\)|-?\d+)\]")


def _under_a_computed_key(findings: Findings, candidate: Candidate) -> str | None:
    """Return the place with the key that several runs use, if code computes that key.

    A key that code spells out, as in ``state["turns"]``, is a name, not meant to tell runs apart.
    """
    own = [access for access in findings.accesses if access.suspect in candidate.suspects]
    spelled_out = {
        repr_of(constant)
        for code in {access.code for access in own if access.code is not None}
        for constant in code.co_consts
    }
    if not spelled_out:
        return None
    text = candidate.path.partition(" (local of")[0]
    part, key = candidate.suspects[0].part, candidate.suspects[0].key
    if isinstance(part, MappingPart) and key is WHOLE:
        text += "".join([f"[{repr_of(used)}]" for used in findings.same_keys[:1]])
    for found in _KEY.finditer(text):
        # An index says nothing of the kind, unless it is the key of a dict itself.
        is_index = found[1].lstrip("-").isdecimal()
        of_a_dict = isinstance(part, MappingPart) and found.end() == len(text)
        if found[1] not in spelled_out and (of_a_dict or not is_index):
            return text[: found.end()]
    return None


def _decorator(findings: Findings) -> str:
    """Return code that opens a run for each call."""
    name = findings.function.rpartition(".")[2]
    return f"@harness.open_run({(name if name.isidentifier() else 'agent')!r})"


def _without_module(path: str) -> str:
    """Return a path as the code of its module writes it."""
    parts = path.partition(" (local of")[0].split(".")
    while len(parts) > 1 and ".".join(parts[:-1]) not in sys.modules:
        parts.pop()
    module = ".".join(parts[:-1])
    return path.partition(" (local of")[0].removeprefix(f"{module}.")


def _is_a_loops(thing: Any) -> bool:
    return type(thing).__module__.partition(".")[0] in ("trio", "asyncio")


def _identifier(path: str) -> str:
    name = path.partition(" (local of")[0].partition("[")[0].rpartition(".")[2]
    return name if name.isidentifier() else "state"


def _factory(value: Any) -> str:
    """Return code for a function that makes another value like this one."""
    if isinstance(value, list | dict | set | deque | bytearray):
        return type(value).__name__
    if value is None or isinstance(value, bool | int | str):
        return f"lambda: {repr_of(value)}"
    return "factory"
