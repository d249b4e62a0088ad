"""Pipelines and routers drawn from a seed, and what must come out of them.

A value is a list of its item's name and a number, so that each call can say for whom it is.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import trio
import trio.lowlevel

from harness import Attempt, Result, Retry
from harness.errors import JournaledError
from harness.flow import DROP, Batch, Pipeline, Router, stage, track

Value = list[Any]
Log = Callable[[str, str], None]

KINDS = ("plain", "plain", "again", "together", "drop", "fail", "several")
ROUTER = "router"


def kinds_of(seed: int) -> list[str]:
    """Return what each stage does; or that it is a router."""
    draw = random.Random(seed)
    if draw.random() < 0.2:
        return [ROUTER]
    kinds = [draw.choice(KINDS) for _ in range(draw.randint(1, 5))]
    first = kinds.index("several") if "several" in kinds else len(kinds)
    # Two that yield several would make very many; what is behind one fails as a whole.
    return [kind for at, kind in enumerate(kinds) if at <= first or kind not in ("several", "fail")]


def _next(number: int, value: Value) -> Value:
    return [value[0], (value[1] * 31 + 17 * number + 5) % 1_009]


def _outcome(kinds: list[str], number: int, value: Value) -> Any:
    for at in range(number, len(kinds)):
        kind = kinds[at]
        if kind == "drop" and value[1] % 5 == 0:
            return DROP
        if kind == "fail" and value[1] % 4 == 0:
            return f"ValueError: {at} refuses {value[1]}"
        if kind == "several":
            parts = [
                _outcome(kinds, at + 1, [f"{value[0]}.{part}", value[1] + part])
                for part in range(3)
            ]
            return tuple(one for one in parts if one is not DROP)
        value = _next(at, value)
    return value


def outcome_of(seed: int, item: Value) -> Any:
    """Return the value of an item, or the words of its error."""
    kinds = kinds_of(seed)
    if kinds == [ROUTER]:
        if item[1] % 5 == 4:
            return f"ValueError: slow refuses {item[1]}"
        return _next(2 if item[1] % 2 or item[1] % 3 == 0 else 1, item)
    return _outcome(kinds, 0, item)


def line_of(result: Result[Any]) -> str:
    """Return what a log says of a result, whichever session it is from."""
    came = result.value if result.ok else str(result.error)
    if not result.ok and not isinstance(result.error, JournaledError):
        came = f"{type(result.error).__name__}: {came}"
    return f"{result.key} {json.dumps(came, default=str)}"


def check(log: str, seed: int, items: list[Value]) -> None:
    """Check that no step was made again once the next one, or the result, had shown it done.

    Args:
      log: The lines of all sessions, each begun with ``session``: ``start`` and ``result``.
      seed: Which pipeline it is.
      items: What the last session, which got to its end, was given.
    """
    done: set[tuple[int, str]] = set()
    begun: Counter[tuple[int, str]] = Counter()
    results: dict[str, str] = {}
    for lines in log.split("session \n")[1:]:
        results = {}
        starts: Counter[tuple[int, str]] = Counter()
        for line in lines.splitlines():
            what, _, about = line.partition(" ")
            if what == "start":
                stage, _, item = about.partition(" ")
                call = int(stage), item
                assert call not in done, f"{call} was done, and was made again"
                starts[call] += 1
                # Behind a stage that yields several, outputs go on before it is done.
                mine = {before for before, one in starts | begun if one == item}
                done |= {(before, item) for before in mine if before < call[0]}
            elif what == "result":
                key, _, came = about.partition(" ")
                results[key] = came
                done |= {call for call in starts | begun if call[1].partition(".")[0] == key}
        assert set(starts.values()) <= {1}, "a step was made twice in one session"
        begun |= starts
    expected = {item[0]: json.dumps(outcome_of(seed, item), default=str) for item in items}
    assert results == expected, kinds_of(seed)


def flow_of(seed: int, log: Log) -> Any:
    """Return the pipeline or router; ``log`` is told when a call begins, by stage and item."""
    kinds = kinds_of(seed)
    if kinds == [ROUTER]:
        return _router(log)
    return Pipeline(*(_stage(at, kind, log, seed) for at, kind in enumerate(kinds)), buffer=2)


def _stage(number: int, kind: str, log: Log, seed: int) -> Any:
    draw = random.Random(seed * 100 + number)
    name, limit = f"s{number}", draw.randint(1, 4)
    failed: set[str] = set()

    async def one(value: Value) -> Any:
        if kind == "again" and value[0] not in failed:
            failed.add(value[0])
            raise OSError("the first time")
        log("start", f"{number} {value[0]}")
        await trio.sleep(0.001 * random.random())
        if kind == "drop" and value[1] % 5 == 0:
            return DROP
        if kind == "fail" and value[1] % 4 == 0:
            raise ValueError(f"{number} refuses {value[1]}")
        return _next(number, value)

    async def together(values: list[Value]) -> list[Value]:
        for value in values:
            log("start", f"{number} {value[0]}")
        await trio.sleep(0.001)
        return [_next(number, value) for value in values]

    async def several(value: Value) -> AsyncIterator[Value]:
        log("start", f"{number} {value[0]}")
        for part in range(3):
            await trio.lowlevel.checkpoint()
            yield [f"{value[0]}.{part}", value[1] + part]

    if kind == "together":
        return stage(together, name=name, limit=limit, batch=Batch(draw.randint(2, 4)))
    if kind == "several":
        return stage(several, name=name, limit=limit)
    retry = Retry(attempts=2, on=OSError, first_delay=0) if kind == "again" else None
    return stage(one, name=name, limit=limit, each=Attempt(retry=retry))


def _router(log: Log) -> Any:
    async def choose(value: Value) -> str:
        log("start", f"0 {value[0]}")
        await trio.lowlevel.checkpoint()
        return "slow" if value[1] % 2 else "fast"

    async def fast(value: Value) -> Value:
        log("start", f"1 {value[0]}")
        await trio.sleep(0.001 * random.random())
        if value[1] % 3 == 0 or value[1] % 5 == 4:
            raise ValueError(f"fast refuses {value[1]}")
        return _next(1, value)

    async def slow(value: Value) -> Value:
        log("start", f"2 {value[0]}")
        await trio.sleep(0.001 * random.random())
        if value[1] % 5 == 4:
            raise ValueError(f"slow refuses {value[1]}")
        return _next(2, value)

    return Router(choose, tracks={"fast": track(fast, limit=3, escalate="slow"), "slow": slow})
