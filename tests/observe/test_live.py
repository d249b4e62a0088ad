"""The picture of a running program, which `harness top` and the dashboard show."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.fanout._watch import watched_by
from harness.limits import Limiter
from harness.observe._live import RUNS_SHOWN, SECONDS_BETWEEN, Live
from harness.runs import open_run

HOSTILE = "\x1b]0;own\x07<script>alert(1)</script> sk-abcdefghijklmnop\u202e\ud800\nx"


async def test_a_picture_shows_runs_fan_outs_limits_and_what_is_queued(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("provider", requests_per_minute=60, concurrent=2)
    live = Live(program="nightly", limiters=[limiter])
    seen: list[Any] = []

    async def classify(item: int) -> int:
        async with limiter.reserve():
            if item == 9:
                seen.append(live.picture())
            await trio.sleep(1)
            if item == 3:
                raise ValueError(item)
        return item

    with watched_by(live):
        await harness.fan_out(
            classify, range(20), policy=harness.BestEffort(), limit=1, name="tickets"
        )
    [picture] = seen
    assert picture["program"] == "nightly"
    [fan_out] = picture["fan_outs"]["shown"]
    assert fan_out["name"] == "tickets"
    assert (fan_out["total"], fan_out["in_flight"], fan_out["failed"]) == (20, 1, 1)
    assert not fan_out["over"]
    assert picture["queue"]["to_start"] == 10
    [limits] = picture["limits"]
    assert (limits["name"], limits["concurrent"]) == ("provider", 2)
    assert [one["name"] for one in limits["dimensions"]] == ["requests"]
    runs = picture["runs"]
    assert runs["total"] == 2
    shown = runs["shown"]
    assert [run["depth"] for run in shown] == [0, 1]
    assert shown[0]["name"] == "tickets"
    assert shown[0]["children"] == 1
    autojump_clock.jump(SECONDS_BETWEEN)
    [over] = live.picture()["fan_outs"]["shown"]
    assert (over["done"], over["over"], over["seconds_left"]) == (20, True, None)


async def test_hostile_names_are_harmless_in_a_picture() -> None:
    live = Live(program=HOSTILE)
    async with open_run(HOSTILE):
        picture = live.picture()
    text = json.dumps(picture, ensure_ascii=False)
    text.encode()  # No half of a surrogate pair.
    assert "sk-abc" not in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "\n" not in picture["runs"]["shown"][0]["name"]


async def test_a_picture_of_many_runs_shows_the_first_and_counts_all() -> None:
    live = Live()

    async def wait() -> None:
        async with open_run("one"):
            await trio.sleep_forever()

    async with open_run("all"), trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        runs = live.picture()["runs"]
        nursery.cancel_scope.cancel()
    assert (runs["total"], len(runs["shown"])) == (301, RUNS_SHOWN)


async def test_a_tree_of_depth_1000_is_pictured() -> None:
    live = Live()

    async def down(depth: int) -> None:
        async with open_run("deeper"):
            if depth:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(down, depth - 1)
            else:
                await trio.lowlevel.checkpoint()
                totals.append(live.picture()["runs"]["total"])

    totals: list[int] = []
    await down(999)
    assert totals == [1000]


async def test_whoever_asks_too_often_gets_the_last_picture_again(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """Pictures may take 1 % of the time in all, however many look."""
    live = Live()
    first = live.picture()
    mock_clock.jump(SECONDS_BETWEEN / 2)
    assert live.picture() is first
    mock_clock.jump(SECONDS_BETWEEN)
    ticks = iter([0.0, 0.5])  # It takes half a second, so the next is due in 50.
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    second = live.picture()
    assert second is not first
    mock_clock.jump(49)
    assert live.picture() is second
    assert live.seconds_to_next() == pytest.approx(1)


async def test_a_watch_that_was_there_hears_of_fan_outs_too(autojump_clock: MockClock) -> None:
    """`harness.progress` goes on showing its bars around a program that opened a socket."""
    outer = Live()
    with watched_by(outer):
        inner = Live()
        with watched_by(inner):
            await harness.fan_out(trio.sleep, [1, 2], name="both")
    for one in (outer, inner):
        [fan_out] = one.picture()["fan_outs"]["shown"]
        assert (fan_out["name"], fan_out["done"], fan_out["over"]) == ("both", 2, True)
