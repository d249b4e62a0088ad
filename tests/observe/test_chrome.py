"""`export_chrome` writes what the documentation of the Trace Event Format asks for."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.models import Message, ModelRequest, ScriptedModel
from harness.observe import export_chrome, record


async def exported(tmp_path: Path) -> list[dict[str, Any]]:
    """Record a little program, and return the exported events."""
    model = ScriptedModel(["yes"], delay=1)

    async def ask(_: int) -> None:
        await model.complete(ModelRequest([Message("user", "</script>\x1b")]))

    async with record(tmp_path / "t"):
        async with harness.open_run("root \u2028</script>"):
            await harness.fan_out(ask, [0, 1, 2], limit=2, name="batch")
            with pytest.raises(OSError, match="no"):
                async with harness.open_run("broken"):
                    raise OSError("no")
    export_chrome(tmp_path / "t", tmp_path / "chrome.json")
    text = await trio.Path(tmp_path / "chrome.json").read_text(encoding="ascii")
    whole = json.loads(text)
    assert whole["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = whole["traceEvents"]
    return events


async def test_every_event_has_the_fields_of_its_phase(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Nestable asynchronous events need ph, name, cat, id, ts and pid; flows bind to a slice."""
    for event in await exported(tmp_path):
        assert event["ph"] in {"b", "e", "M"}
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "thread_name"}
            assert isinstance(event["args"]["name"], str)
            continue
        assert isinstance(event["cat"], str)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        assert set(event["id2"]) == {"local"}
        assert event["id2"]["local"].startswith("0x")


async def test_what_begins_ends_and_what_is_inside_ends_first(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Of one category and id, viewers make a stack: each end closes the innermost."""
    open_events: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    names = set()
    for event in await exported(tmp_path):
        if event["ph"] == "M":
            continue
        stack = open_events[event["cat"], event["id2"]["local"]]
        if event["ph"] == "b":
            assert not stack or stack[-1]["ts"] <= event["ts"]
            stack.append(event)
            names.add(event["name"])
        else:
            began = stack.pop()
            assert began["name"] == event["name"]
            assert began["ts"] <= event["ts"]
    assert not any(open_events.values())
    assert {"batch", "0", "1", "2", "broken", "model: scripted"} <= names


async def test_times_are_microseconds_and_endings_are_told(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    events = await exported(tmp_path)
    (began,) = [event for event in events if event["name"] == "batch" and event["ph"] == "b"]
    (ended,) = [event for event in events if event["name"] == "batch" and event["ph"] == "e"]
    assert ended["ts"] - began["ts"] == pytest.approx(2_000_000)
    (broken,) = [event for event in events if event["name"] == "broken" and event["ph"] == "b"]
    assert (broken["args"]["status"], broken["args"]["error"]) == ("failed", "OSError")
