"""The shape of the engine: one final class, given its parts, and small enough to be read."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import trio

import harness
from harness.fanout._engine import Engine
from harness.fanout._plan import Plan
from harness.flow import Pipeline, Router, stage
from tests.support.memory_journal import MemoryJournal

FIELDS_AT_MOST = 35


async def echo(item: int) -> int:
    await trio.lowlevel.checkpoint()
    return item


def test_it_has_no_heirs() -> None:
    assert Engine.__subclasses__() == []
    with pytest.raises(TypeError):
        Plan()  # type: ignore[call-arg]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["plain", "priority", "journal", "pipeline", "pipeline, journal", "router", "stream"]
)
async def test_no_object_of_a_running_one_has_more_fields_than_can_be_read(kind: str) -> None:
    """Whatever is behind it: 57 fields in four files were too many to know what may be set when."""
    counted: dict[str, int] = {}

    async def look(item: int) -> int:
        for one in gc.get_objects():
            module = str(type(one).__module__)
            if module.startswith(("harness.fanout", "harness.flow")):
                slots = [vars(kind).get("__slots__", ()) for kind in type(one).__mro__]
                fields = sum(map(len, slots)) + len(getattr(one, "__dict__", ()))
                counted[type(one).__qualname__] = fields
        return await echo(item)

    options: dict[str, Any] = {}
    if kind == "priority":
        options["priority"] = abs
    if kind.endswith("journal"):
        options.update(journal=MemoryJournal(), key=str)
    if kind == "journal":
        options["priority"] = abs
    if kind.startswith("pipeline"):
        await Pipeline(stage(look, limit=1)).run([1], **options)
    elif kind == "router":
        await Router(lambda item: "only", tracks={"only": look}).run([1], priority=abs)
    elif kind == "stream":
        async with harness.open_fan_out(look, [1], limit=1) as stream:
            _ = [result async for result in stream]
    else:
        await harness.fan_out(look, [1], limit=1, **options)
    assert "Engine" in counted
    assert {name: count for name, count in counted.items() if count > FIELDS_AT_MOST} == {}
