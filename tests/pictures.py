"""Draw the pictures of the docs from programs that really run, on a virtual clock.

Each function below runs a small program, and returns an SVG of what it did. Pictures have both
themes in them, and a ground of their own, so they can be read on any page.

Run: python -m tests.pictures
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

import harness
from harness.limits import Limiter
from harness.observe import read_trace, record
from harness.testing import Found, find_schedule, run_schedule
from tests.test_layers import PACKAGE

FOLDER = PACKAGE.parent / "docs" / "pictures"

STYLE = """
  svg { color-scheme: light dark; }
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .code { font-family: ui-monospace, monospace; font-size: 12px; }
  .quiet { fill: #59636e; }
  .in { fill: #ffffff; }
  .ground { fill: #ffffff; stroke: #d1d9e0; }
  .line { stroke: #8c959f; fill: none; }
  .limit { stroke: #bc4c00; stroke-width: 1.5; stroke-dasharray: 5 3; fill: none; }
  .ok { fill: #1a7f37; }
  .failed { fill: #cf222e; }
  .timed_out { fill: #9a6700; }
  .plain { fill: #0969da; }
  .wait { fill: #d1d9e0; }
  .area { fill: #0969da; fill-opacity: 0.25; stroke: #0969da; }
  .window { fill: #bc4c00; fill-opacity: 0.12; stroke: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .quiet { fill: #9198a1; }
    .in { fill: #0d1117; }
    .ground { fill: #0d1117; stroke: #3d444d; }
    .line { stroke: #6e7681; }
    .limit { stroke: #f0883e; }
    .ok { fill: #3fb950; }
    .failed { fill: #ff7b72; }
    .timed_out { fill: #d29922; }
    .plain { fill: #58a6ff; }
    .wait { fill: #3d444d; }
    .area { fill: #58a6ff; stroke: #58a6ff; }
    .window { fill: #f0883e; stroke: #f0883e; }
  }
"""


class Drawing:
    """An SVG in the making. Positions and sizes are in pixels, from the top left."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._title = title
        self._size = (width, height)
        self._parts: list[str] = []

    def box(
        self, kind: str, x: float, y: float, width: float, height: float, radius: int = 3
    ) -> None:
        """Draw a rectangle of a class of the style."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{radius}"/>'
        )

    def path(self, kind: str, *points: tuple[float, float], closed: bool = False) -> None:
        """Draw a line through points."""
        through = " L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="{kind}" d="M{through}{" Z" if closed else ""}"/>')

    def say(self, text: str, x: float, y: float, kind: str = "", anchor: str = "start") -> None:
        """Write a text whose base line begins, or is centred or ends, at a point."""
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def svg(self) -> str:
        """Return the finished picture."""
        width, height = self._size
        lines = "\n".join(f"  {part}" for part in self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">\n'
            f"  <title>{escape(self._title)}</title>\n  <style>{STYLE}  </style>\n"
            f'  <rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" '
            f'rx="6"/>\n{lines}\n</svg>\n'
        )


def traced(program: Callable[[], Any]) -> list[Mapping[str, Any]]:
    """Run a program on a virtual clock, and return what its trace says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"

        async def main() -> None:
            async with record(path):
                await program()

        trio.run(main, clock=MockClock(autojump_threshold=0))
        return list(read_trace(path))


# The tree of runs --------------------------------------------------------------------------------


def run_tree() -> str:
    """Draw the runs of a small night: a parent, a fan-out, its items, what these opened."""

    async def triage(ticket: str) -> str:
        async with harness.open_run("classify"):
            await trio.sleep(1)
        if ticket == "t2":
            async with harness.open_run("ask a specialist"):
                await trio.sleep(1)
                raise ConnectionError("the model is down")
        return "card"

    async def night() -> None:
        async with harness.open_run("nightly"):
            tickets = ["t1", "t2", "t3"]
            await harness.fan_out(triage, tickets, policy=harness.BestEffort(), key=str, limit=3)

    events = traced(night)
    ended = {event["run_id"]: event for event in events if event["type"] == "run_ended"}
    started = [event for event in events if event["type"] == "run_started"]
    since = {event["path"]: event["time"] for event in started}

    def place(event: Mapping[str, Any]) -> list[tuple[float, str]]:
        """Return what puts each run below its parent, in the order in which they began."""
        names = event["path"].split("/")
        return [(since["/".join(names[: depth + 1])], name) for depth, name in enumerate(names)]

    started.sort(key=place)
    drawing = Drawing(
        "A tree of runs: nightly, its fan-out, three items, and the runs that these opened",
        *(640, 40 + 36 * len(started)),
    )
    drawing.say("run", 24, 26, "quiet")
    drawing.say("how it ended", 380, 26, "quiet")
    rows: dict[str, float] = {}
    for number, event in enumerate(started):
        y = 38 + 36 * number
        x = 24 + 44 * event["depth"]
        rows[event["run_id"]] = y
        if "parent" in event:
            above = rows[event["parent"]] + 26
            drawing.path("line", (x - 28, above), (x - 28, y + 13), (x, y + 13))
        end = ended[event["run_id"]]
        drawing.box(end["status"], x, y, 170, 26, 5)
        drawing.say(event["path"].rpartition("/")[2], x + 85, y + 18, "in", "middle")
        why = f": {end['message']}" if "message" in end else ""
        drawing.say(f"{end['status']} at {end['time']:.0f} s{why}", 380, y + 18)
    return drawing.svg()


# A window that slides ----------------------------------------------------------------------------


def sliding_window() -> str:
    """Draw when a limiter lets 40 eager calls through, and how many were in the last minute."""
    per_minute, count = 12, 40
    times: list[float] = []

    async def call(limiter: Limiter) -> None:
        async with limiter.reserve():
            times.append(trio.current_time())

    async def program() -> None:
        limiter = Limiter("acme", requests_per_minute=per_minute, burst_seconds=30)
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(call, limiter)
        times[:] = [time - start for time in times]

    trio.run(program, clock=MockClock(autojump_threshold=0))
    last, left, width, top, height = times[-1], 60, 640, 96, 120
    seconds = range(int(last) + 1)
    in_window = [sum(second - 60 < time <= second for time in times) for second in seconds]
    highest = max(in_window)

    def x(second: float) -> float:
        return left + second / last * (width - left - 24)

    def y(number: float) -> float:
        return top + height - number / (per_minute + 2) * height

    drawing = Drawing(
        f"Calls through a limiter of {per_minute} a minute: in no 60 seconds are there more",
        *(width, 276),
    )
    begin = next(time for time in times if time > 60) - 30
    drawing.box("window", x(begin), 36, x(begin + 60) - x(begin), top + height - 36)
    drawing.say("any 60 s", x(begin + 30), 28, "quiet", "middle")
    for number, time in enumerate(times):
        above = sum(round(earlier - time, 3) == 0 for earlier in times[:number])
        drawing.box("plain", x(time) - 2.5, 80 - 7 * above, 5, 5, 2)
    drawing.say("calls", left - 8, 86, "quiet", "end")
    steps = [(x(0), y(0))]
    for second, number in zip(seconds, in_window, strict=True):
        steps += [(x(second), steps[-1][1]), (x(second), y(number))]
    drawing.path("area", *steps, (steps[-1][0], y(0)), closed=True)
    drawing.path("limit", (left, y(per_minute)), (width - 24, y(per_minute)))
    drawing.say(f"{per_minute}", left - 8, y(per_minute) + 4, "quiet", "end")
    drawing.say("0", left - 8, y(0) + 4, "quiet", "end")
    for second in range(0, int(last) + 1, 30):
        drawing.path("line", (x(second), y(0)), (x(second), y(0) + 5))
        drawing.say(f"{second} s", x(second), y(0) + 20, "quiet", "middle")
    drawing.say(f"calls in the last 60 s: at most {highest}", left, 262)
    return drawing.svg()


# A timeline --------------------------------------------------------------------------------------


def timeline() -> str:
    """Draw the attempts of a fan-out of eight items, three at a time."""
    seconds = [2.0, 5.0, 1.0, 3.0, 9.0, 2.0, 4.0, 1.0]
    tries: dict[int, int] = {}

    async def ask(number: int) -> int:
        tries[number] = tries.get(number, 0) + 1
        await trio.sleep(seconds[number])
        if number == 2 and tries[number] == 1:
            raise ConnectionError("the model is down")
        return number

    async def program() -> None:
        retry = harness.Retry(2, first_delay=1.0, jitter=0)
        await harness.fan_out(
            *(ask, range(8)),
            limit=3,
            policy=harness.BestEffort(),
            each=harness.Attempt(timeout=6, retry=retry),
        )

    events = traced(program)
    ended = {event["run_id"]: event for event in events if event["type"] == "run_ended"}
    bars = [event for event in events if event["type"] == "run_started" and "index" in event]
    waits = [event for event in events if event["type"] == "retry"]
    last = float(max(event["time"] for event in ended.values()))
    left, width = 84, 640

    def x(second: float) -> float:
        return left + second / last * (width - left - 24)

    drawing = Drawing(
        "A timeline of eight items, three at a time, with a retry and timeouts", 640, 316
    )
    for number in range(8):
        drawing.say(f"item {number}", left - 12, 36 + 28 * number, "quiet", "end")
    for wait in waits:
        start = wait["time"]
        drawing.box(
            "wait", x(start), 26 + 28 * wait["index"], x(start + wait["delay"]) - x(start), 8
        )
    for bar in sorted(bars, key=lambda bar: (bar["index"], bar["time"])):
        end = ended[bar["run_id"]]
        y, start = 20 + 28 * bar["index"], bar["time"]
        drawing.box(end["status"], x(start) + 1, y, x(end["time"]) - x(start) - 2, 20)
    base = 20 + 28 * 8
    drawing.path("line", (left, base), (width - 24, base))
    for second in range(0, int(last) + 1, 2):
        drawing.say(f"{second} s", x(second), base + 18, "quiet", "middle")
    place = float(left)
    for kind, words in {
        "ok": "ok",
        "failed": "failed, to be retried",
        "wait": "waits for its retry",
        "timed_out": "timed out after 6 s",
    }.items():
        drawing.box(kind, place, base + 36, 14, 14)
        drawing.say(words, place + 20, base + 48)
        place += 40 + 6.2 * len(words)
    return drawing.svg()


# A schedule --------------------------------------------------------------------------------------


def schedule() -> str:
    """Draw the shortest order of steps in which two payments overspend an account."""
    account = {"left": 100}
    said: list[tuple[str, str]] = []

    def prepare() -> None:
        account["left"] = 100
        said.clear()

    async def spend(name: str, amount: int) -> None:
        said.append((name, f"reads: {account['left']} left"))
        if account["left"] >= amount:
            await trio.lowlevel.checkpoint()  # Ask the bank.
            account["left"] -= amount
            said.append((name, f"takes {amount}: {account['left']} left"))

    async def program() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spend, "rent", 70)
            nursery.start_soon(spend, "food", 60)
        assert account["left"] >= 0

    found = find_schedule(program, prepare=prepare, backend="trio")
    assert isinstance(found, Found)
    prepare()
    run_schedule(program, found.run.schedule, backend="trio")
    rows = 60 + 34 * len(said)
    drawing = Drawing("The order of steps in which two payments overspend", 640, rows + 44)
    lanes = {"rent": 200, "food": 460}
    for name, x in lanes.items():
        drawing.say(f"task {name}", x, 30, "quiet", "middle")
        drawing.path("line", (x, 40), (x, rows))
    last = None
    for number, (name, text) in enumerate(said):
        x, y = lanes[name], 56 + 34 * number
        if last is not None and last != x:
            drawing.path("limit", (last, y - 8), (x, y - 8))
        drawing.box("plain" if account_is_sound(text) else "failed", x - 90, y, 180, 24, 5)
        drawing.say(text, x, y + 17, "in", "middle")
        drawing.say(f"step {number + 1}", 24, y + 17, "quiet")
        last = x
    drawing.path("limit", (24, rows + 20), (60, rows + 20))
    drawing.say("a switch from one task to the other", 68, rows + 24)
    return drawing.svg()


def account_is_sound(text: str) -> bool:
    """Say whether a step of the schedule leaves the account above zero."""
    return "-" not in text


PICTURES: dict[str, Callable[[], str]] = {
    "run-tree.svg": run_tree,
    "sliding-window.svg": sliding_window,
    "timeline.svg": timeline,
    "schedule.svg": schedule,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
