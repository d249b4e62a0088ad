"""The page of a report: what is in it, and that whatever was recorded can't hurt it.

Most tests open it in a headless Chromium and look at its content, not at pixels.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trio

import harness
from harness.agents import Agent, tool
from harness.cli import main
from harness.journal import JournalItem, open_journal
from harness.limits import Limiter
from harness.models import ModelResponse, ScriptedModel, ToolCall
from harness.observe import record, write_report
from harness.observe._assets import asset
from harness.observe._report_data import Failures, _lanes, data_of_trace
from harness.observe._report_journal import _data_of
from tests.support.browser import Browser, open_browser

HOSTILE = (
    "</script><script>window.hurt=1</script><img src=x onerror='window.hurt=2'>"
    "<!--\x1b[31m\x07\u202e\ud800$data ${data} sk-abcdefghijklmnop api_key=verysecret1 end"
)

ROWS = "document.querySelectorAll('tr, li, details, [role=row]').length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def data_in(page: Path) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found is not None
    return json.loads(found[1])


def show(browser: Browser, page: Path) -> None:
    """Open a page, and check what holds of every page."""
    browser.asked_for()
    browser.log("browser")
    browser.open(page.as_uri())
    assert browser.asked_for() == [page.as_uri()]
    assert browser.log("browser") == []  # No error, and nothing that the policy had to refuse.
    assert browser.run(f"return {ROWS}") <= 300


async def fail(item: int) -> int:
    if item % 5 == 3:
        raise ValueError(f"item {item}: {HOSTILE}")
    await trio.sleep(10 if item == 7 else 1)
    return item


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a program that has something for each part of the page."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"

    async def look_up(name: str) -> str:
        return name.upper()

    model = ScriptedModel(
        [
            ModelResponse("", tool_calls=(ToolCall("1", "look_up", {"name": HOSTILE}),)),
            f"answer {HOSTILE}",
        ]
    )
    agent = Agent("desk", model=model, instructions="Be brief.", tools=[tool(look_up)])

    async def program() -> None:
        limiter = Limiter("provider", requests_per_minute=60, concurrent=4)
        async with record(path, messages=True), harness.open_run("nightly"):
            await harness.fan_out(
                fail,
                range(30),
                policy=harness.BestEffort(),
                limit=10,
                each=harness.Attempt(limiter=limiter),
                name=f"batch {HOSTILE}",
            )
            await agent.run(f"question {HOSTILE}")

    trio.run(program, clock=trio.testing.MockClock(autojump_threshold=0))
    return path


@pytest.fixture(scope="module")
def page(trace: Path) -> Path:
    written = trace.with_name("report.html")
    write_report(trace, written)
    return written


# What is in it ----------------------------------------------------------------------------------


def test_nothing_that_was_recorded_ends_the_data_or_keeps_a_secret(page: Path) -> None:
    text = page.read_text()
    assert text.count("</script>") == 2
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data
    assert data.isascii()
    assert "verysecret1" not in text
    assert "sk-abcdef" not in text
    said = json.dumps(data_in(page), ensure_ascii=False)
    assert not {"\x1b", "\x07", "\u202e"} & set(said)
    said.encode()


def test_errors_are_grouped_and_counted_where_they_come_up(page: Path) -> None:
    failures = data_in(page)["failures"]
    assert (failures["total"], failures["total_groups"]) == (6, 1)
    [group] = failures["groups"]
    assert (group["error"], group["total"], len(group["messages"])) == ("ValueError", 6, 5)
    assert group["total_messages"] == 6
    assert "fail" in group["traceback"][-1]


def test_lanes_hold_one_run_at_a_time() -> None:
    draw = random.Random(7)
    starts = [draw.randrange(1000) for _ in range(300)]
    lengths = [draw.randrange(60) for _ in range(300)]
    lanes = _lanes(starts, lengths)
    ends = dict.fromkeys(lanes, -1)
    for run in sorted(range(300), key=lambda one: (starts[one], -lengths[one], one)):
        assert starts[run] >= ends[lanes[run]]
        ends[lanes[run]] = starts[run] + max(1, lengths[run])
    most = max(
        sum(starts[run] <= at < starts[run] + max(1, lengths[run]) for run in range(300))
        for at in range(1100)
    )
    assert max(lanes) + 1 == most


def test_a_group_of_failures_keeps_the_first_few_messages_and_counts_all() -> None:
    failures = Failures()
    for number in range(100):
        failures.add(f"run-{number}", "ValueError", f"message {number % 40}", ["a.py:1 f"])
    failures.add("other", "ValueError", "elsewhere", ["b.py:1 g"])
    data = failures.data({"run-0": 0}, {"run-0": "zero"})
    assert data["total_groups"] == 2
    [first, _] = data["groups"]
    assert (first["total"], first["total_messages"], len(first["messages"])) == (100, 40, 5)
    assert first["runs"][:2] == [[0, "zero"], [-1, "run-1"]]


@pytest.mark.parametrize("mode", [":root {", "prefers-color-scheme: dark"])
def test_text_can_be_read_in_light_and_in_dark(mode: str) -> None:
    """A contrast of 4.5, as the accessibility guidelines ask for."""
    block = asset("page.css").partition(mode)[2].partition("}")[0]
    colours = dict(
        re.findall(r"--(\w+): *(#[0-9a-f]{3,6})", block.replace("mark-back", "markback"))
    )

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * one for one in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        red, green, blue = (
            one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    words = set(colours) - {"back", "soft", "line", "markback"}
    assert len(words) == 9
    for behind in ("back", "soft", "markback"):
        for name in words:
            low, high = sorted((luminance(colours[name]), luminance(colours[behind])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (name, behind)


@pytest.mark.parametrize("name", ["rows.js", "report.js", "dashboard.js"])
def test_scripts_have_no_way_to_make_markup_or_code_of_text(name: str) -> None:
    ways = (
        r"(?:inner|outer)HTML|AdjacentHTML|document.write|DOMParser|eval\(|Function\(|\.on[a-z]+ ="
    )
    assert re.findall(ways, asset(name)) == []
    assert "http" not in asset(name).replace(
        "http://www.w3.org/2000/svg", ""
    )  # A name, no address.


# In a browser -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_shows_every_part_and_runs_nothing_of_what_was_recorded(
    browser: Browser, page: Path
) -> None:
    show(browser, page)
    said = browser.run("return document.body.innerText")
    for words in (
        "waiting for a limiter",
        "1 of 1 kinds",
        "ValueError",
        "provider: requests",
        "of the work went on side by side",
        "runs in sight",
    ):
        assert words in said
    assert "</script><script>window.hurt=1</script><img" in said  # As text.
    assert browser.run("return window.hurt ?? null") is None
    assert (
        browser.run(
            "return document.querySelectorAll('img, script[src], link[rel=stylesheet]').length"
        )
        == 0
    )
    data = data_in(page)
    counts = browser.run(
        "return [...document.querySelectorAll('.count')].map(one => one.innerText)"
    )
    assert f"{data['total_runs']} of {data['total_runs']} runs" in counts
    assert all(re.search(r"\d+ of [\d,]+ ", one) for one in counts if "times" not in one), counts


@pytest.mark.slow
def test_the_tree_is_used_by_keyboard_alone(browser: Browser, page: Path) -> None:
    show(browser, page)
    down, up, right, left, end = "\ue015", "\ue013", "\ue014", "\ue012", "\ue010"

    def active() -> Any:
        return browser.run(
            "const tree = document.getElementById('tree');"
            "const row = document.getElementById(tree.getAttribute('aria-activedescendant'));"
            "return [row.firstChild.textContent, row.getAttribute('aria-level'),"
            " row.getAttribute('aria-expanded')]"
        )

    browser.run("document.querySelector('.skip').focus()")
    browser.press("\ue007")  # Enter follows the link to the tree.
    browser.run("document.getElementById('tree').focus()")
    browser.press(down)
    name, level, expanded = active()
    assert name.startswith("▸ batch")
    assert (level, expanded) == ("2", "false")
    browser.press(right, right)
    name, level, expanded = active()
    assert name.isdigit()
    assert (level, expanded) == ("3", None)
    browser.press(left)
    assert active()[1:] == ["2", "true"]
    browser.press(left)
    assert active()[1:] == ["2", "false"]
    browser.press(end)
    assert "desk" in active()[0]
    assert "desk" in browser.run("return document.querySelector('#run h3').innerText")
    browser.press(up, up)
    assert active()[0] == "▾ nightly"


@pytest.mark.slow
def test_an_agents_messages_and_calls_are_shown_with_its_run(browser: Browser, page: Path) -> None:
    show(browser, page)
    browser.run(
        "const box = document.getElementById('filter'); box.value = 'desk';"
        "box.dispatchEvent(new Event('input'))"
    )
    said = browser.wait_for("document.getElementById('run').textContent")
    assert "3 of 3 calls of models and tools" in said
    assert "tool look_up: ok" in said
    assert "Be brief." in said
    assert "question </script>" in said
    assert "answer </script>" in said
    assert "1 of " in browser.run("return document.getElementById('found').innerText")


@pytest.mark.slow
def test_failures_lead_to_their_runs(browser: Browser, page: Path) -> None:
    show(browser, page)
    said = browser.run(
        "const box = document.querySelector('#failures details'); box.open = true;"
        "return box.innerText"
    )
    assert "6 of 6 runs" in said
    assert "5 of 6 messages" in said
    browser.run("document.querySelector('#failures button').click()")
    assert browser.run("return document.querySelector('#run .failed').innerText") == "failed"
    assert browser.run("return document.activeElement.id") == "tree"
    browser.run(
        "const box = document.getElementById('status'); box.value = 'failed';"
        "box.dispatchEvent(new Event('change'))"
    )
    assert browser.run("return document.getElementById('found').innerText").startswith("6 of ")


@pytest.mark.slow
def test_the_timeline_zooms_and_picks_by_keyboard_and_pointer(browser: Browser, page: Path) -> None:
    show(browser, page)
    whole = browser.wait_for("document.getElementById('seen').innerText")
    browser.run("document.getElementById('timeline').focus()")
    browser.press("+", "+", "\ue014")
    browser.wait_for(f"document.getElementById('seen').innerText !== {json.dumps(whole)}")
    assert browser.run("return timeline.to - timeline.from") == pytest.approx(
        browser.run("return timeline.whole / 4")
    )
    browser.press("0")
    browser.wait_for(f"document.getElementById('seen').innerText === {json.dumps(whole)}")
    browser.run(
        "const box = document.getElementById('timeline').getBoundingClientRect();"
        "timeline.pick(box.width / 2, 2)"
    )
    assert browser.run("return document.querySelector('#run h3').innerText") == "nightly"


@pytest.mark.slow
def test_whatever_can_be_used_has_a_name_and_a_role(browser: Browser, page: Path) -> None:
    """What a screen reader gets to hear."""
    show(browser, page)
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored")
    ]
    for role, name in found:
        if role in ("button", "searchbox", "combobox", "link", "treegrid", "application", "meter"):
            assert name, role
    roles = {role for role, _ in found}
    assert {"treegrid", "row", "gridcell", "columnheader", "main", "navigation", "table"} <= roles
    headings = browser.run(
        "return [...document.querySelectorAll('h1, h2, h3')].map(one => Number(one.tagName[1]))"
    )
    assert headings[0] == 1
    assert all(later - former <= 1 for former, later in pairwise(headings))


@pytest.mark.slow
def test_the_page_is_light_or_dark_as_the_system_is(browser: Browser, page: Path) -> None:
    show(browser, page)
    seen = []
    for mode in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": mode}
        browser.command("Emulation.setEmulatedMedia", features=[feature])
        seen.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert seen == ["rgb(255, 255, 255)", "rgb(16, 20, 26)"]


def large_trace(path: Path, *, runs: int, depth: int) -> None:
    """Write a trace of that many items of one fan-out, and of a chain of runs."""
    draw = random.Random(1)
    lines: list[tuple[float, dict[str, object]]] = []

    def add(at: float, kind: str, run_id: str, **fields: object) -> None:
        lines.append((at, {"type": kind, "time": at, "run_id": run_id, **fields}))

    add(0, "run_started", "root", path="batch", depth=0, unix=0, process=1)
    at = [0.0] * 100
    for number in range(runs):
        worker = number % 100
        since, until = at[worker], at[worker] + draw.uniform(0.1, 2)
        at[worker] = until + 0.001
        run_id = f"abcdefgh-{number}"
        path_ = f"batch/ticket-{number:06}"
        add(since, "run_started", run_id, path=path_, depth=1, parent="root", index=number)
        add(since, "wait", run_id, wait=number, reason="limiter", on="provider")
        granted = {"requests": [1, 6000, 60]}
        add(
            since + 0.05,
            "wake",
            run_id,
            wait=number,
            reason="limiter",
            granted=granted,
            in_flight=9,
        )
        error = {"error": "ValueError", "message": f"no {number}", "traceback": ["a.py:1 f"]}
        failed = number % 10 == 0
        add(
            until,
            "run_ended",
            run_id,
            status="failed" if failed else "ok",
            **(error if failed else {}),
        )
    end = max(at)
    parent, path_ = "root", "batch"
    for level in range(depth):
        path_ += f"/level {level}"
        shown = path_ if len(path_) <= 2000 else f"{path_[:1000]}...{path_[-1000:]}"
        add(0, "run_started", f"deep-{level}", path=shown, depth=level + 1, parent=parent)
        parent = f"deep-{level}"
    for level in reversed(range(depth)):
        add(end, "run_ended", f"deep-{level}", status="ok")
    add(end, "run_ended", "root", status="ok")
    lines.sort(key=lambda line: line[0])
    path.write_text("".join(f"{json.dumps(line)}\n" for _, line in lines))


@pytest.mark.speed
def test_ten_thousand_runs_and_a_deep_tree_open_at_once_and_stay_smooth(
    browser: Browser, tmp_path: Path
) -> None:
    large_trace(tmp_path / "trace.jsonl", runs=9_500, depth=1_000)
    page = tmp_path / "report.html"
    write_report(tmp_path / "trace.jsonl", page)
    assert page.stat().st_size <= 2_000_000
    show(browser, page)
    opened = browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert opened < 2_000
    counts = browser.run("return document.getElementById('runs-count').innerText")
    assert counts == "10,000 of 10,501 runs"
    # Zooming and scrolling, frame by frame.
    took = browser.run(
        "expanded.fill(1); relist();"
        "const began = performance.now();"
        "for (let step = 0; step < 50; step += 1) {"
        "  timeline.zoom(step < 25 ? 0.8 : 1.25); timeline.draw();"
        "  tree.box.scrollTop = step * 4000; tree.draw();"
        "}"
        "return (performance.now() - began) / 50"
    )
    assert took < 100
    assert browser.run(f"return {ROWS}") <= 300
    # The deepest run that is shown can be found, chosen, and read.
    deepest = data_in(page)["runs"]["name"]
    names = [name for name in deepest if name.startswith("level ")]
    last = names[-1]
    browser.run(
        "const box = document.getElementById('filter'); box.value = arguments[0];"
        "box.dispatchEvent(new Event('input')); reveal(chosen)",
        last,
    )
    level = int(last.partition(" ")[2])
    assert level > 300
    row = browser.run(
        "const tree = document.getElementById('tree');"
        "const row = document.getElementById(tree.getAttribute('aria-activedescendant'));"
        "return [row.getAttribute('aria-level'), row.firstChild.textContent]"
    )
    assert row == [str(level + 2), f"▾ [{level + 1}] {last}"] or row[1] == f"[{level + 1}] {last}"


# Other sources ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_journal_alone_gives_a_page_with_what_it_has(browser: Browser, tmp_path: Path) -> None:
    async def program() -> None:
        async with open_journal(tmp_path / "run.db") as journal:
            await harness.fan_out(
                fail,
                range(20),
                policy=harness.BestEffort(),
                key=lambda item: f"<b>{item}</b>",
                journal=journal,
                name="nightly",
            )

    trio.run(program, clock=trio.testing.MockClock(autojump_threshold=0))
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "run.db"), "-o", str(page)]) == 0
    show(browser, page)
    said = browser.run("return document.body.innerText")
    assert "20 items of 1 batch (16 ok, 4 failed), 20 attempts" in said
    assert "4 errors, 1 of 1 kinds" in said
    assert "<b>3</b>" in said
    assert "no waits, no limits, no runs inside of items" in said  # What it hasn't.
    assert "harness batch --trace" in said
    assert "No limiter granted anything" not in said  # Nobody knows.


def test_a_report_of_a_journal_shows_what_follows_from_it() -> None:
    """Five at once; item 7 takes ten seconds, and a second session comes an hour later."""

    def item(number: int) -> JournalItem:
        began = number // 5 + (3_600 if number >= 50 else 0)
        took = 10 if number == 7 else 1
        return JournalItem(
            key=HOSTILE if number == 7 else number,
            status="ok",
            value_text="1",
            error_type=None,
            error_message=None,
            error_traceback=None,
            degraded=False,
            attempts=2,
            ended_at=1_000_000.0 + began + took,
            seconds=took,
            tokens=100,
            cost_usd=0.5,
        )

    journal = Mock()
    journal.name = "run.db"
    journal.batches.return_value = [Mock(sessions=2), Mock(sessions=0)]
    journal.batches.return_value[0].name, journal.batches.return_value[1].name = "nightly", "new"
    journal.progress.return_value.limits = "requests 97%"
    journal.items.side_effect = lambda name: map(item, range(60)) if name == "nightly" else ()
    data = _data_of(journal)
    assert data["facts"] == "60 items of 2 batches (60 ok), 120 attempts, 6,000 tokens, $30.0000"
    [(words, busy), (_, idle)] = data["parts"]
    assert words == "an item's last attempt under way"
    assert (busy, idle) == (11 + 2, 3_612 - 13)
    assert data["stragglers"]["total"] == 1
    [slowest] = data["stragglers"]["shown"]
    assert slowest[2:] == (10, 1)
    assert slowest[1].startswith("nightly/")
    assert not {"\x1b", "\x07", "\u202e"} & set(slowest[1])
    assert "sk-abcdef" not in json.dumps(data)
    assert [one["of"] for one in data["limits"]["shown"]] == [
        "items that ended",
        "tokens of items that ended",
    ]
    assert max(use for _, use in data["limits"]["shown"][0]["points"]) == 1
    assert "isn't in a journal" in data["limits"]["words"]
    assert "nightly: requests 97%" in data["limits"]["words"]
    assert data["ceiling"]["words"].startswith("At most 6 last attempts were under way at once")


def test_of_more_runs_than_there_is_room_for_the_telling_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.observe._report_data.RUNS_SHOWN", 20)
    large_trace(tmp_path / "trace.jsonl", runs=100, depth=0)
    data = data_of_trace(tmp_path / "trace.jsonl")
    assert (len(data["runs"]["id"]), data["total_runs"]) == (20, 101)
    assert data["runs"]["parent"].count(-1) == 1
    [group] = data["failures"]["groups"]
    assert group["total"] == 10
    assert all(number >= 0 for number, _ in group["runs"])
    assert all(step[0] >= 0 for step in data["path"]["shown"])


@pytest.mark.parametrize("content", ["", "no json\n", '{"a": 1}\n', "\xff\xfe\n"])
def test_what_is_no_trace_is_refused_and_leaves_no_page(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, page = tmp_path / "source", tmp_path / "report.html"
    source.write_text(content, encoding="latin-1")
    assert main(["report", str(source), "-o", str(page)]) == 2
    assert "trace" in capsys.readouterr().err or content == "no json\n"
    assert main(["report", str(tmp_path / "none"), "-o", str(page)]) == 2
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    "line",
    [
        {"type": "run_started", "time": "soon", "run_id": "a", "path": "a"},
        {"type": "run_started", "time": 0, "run_id": [1], "path": "a"},
        {"type": "run_started", "time": 0, "run_id": "a", "path": 7},
        {"type": "run_started", "time": 0},
        {"type": "wake", "time": 0, "run_id": "a", "wait": {}},
        {"type": ["run_started"], "time": 0, "run_id": "a"},
    ],
)
def test_a_line_that_record_never_writes_is_an_error_or_ignored(
    line: dict[str, object], tmp_path: Path
) -> None:
    source, page = tmp_path / "trace.jsonl", tmp_path / "report.html"
    good = {"type": "run_started", "time": 0, "run_id": "b", "path": "b"}
    source.write_text(f"{json.dumps(good)}\n{json.dumps(line)}\n")
    refusal = None
    try:
        write_report(source, page)
    except ValueError as error:
        refusal = str(error)
    assert refusal is None or "trace" in refusal
    assert page.exists() == (refusal is None)


@pytest.mark.slow
def test_megabytes_of_text_leave_the_page_small_and_are_cut_with_a_mark(tmp_path: Path) -> None:
    """Whoever wrote the trace may not have cut anything."""
    huge = "<b>x</b>" * 130_000
    lines: list[dict[str, object]] = [
        {"type": "run_started", "time": 0, "run_id": "a", "path": huge, "tags": {huge: huge}}
    ]
    for number in range(4):
        fields = {"status": "failed", "error": huge, "message": huge, "traceback": [huge] * 2}
        run = {"run_id": f"b{number}", "path": f"{huge}/{number}{huge}", "parent": "a"}
        lines.append({"type": "run_started", "time": number, **run})
        lines.append(
            {
                "type": "model_call",
                "time": number,
                "run_id": f"b{number}",
                "model": huge,
                "request": [{"role": huge, "text": huge}] * 3,
                "response": huge,
            }
        )
        lines.append({"type": "run_ended", "time": number + 1, "run_id": f"b{number}", **fields})
    source, page = tmp_path / "trace.jsonl", tmp_path / "report.html"
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_report(source, page)
    assert page.stat().st_size < 1_000_000
    data = data_in(page)
    assert max(map(len, data["runs"]["name"])) <= 83
    [group] = data["failures"]["groups"]
    assert group["total"] == 4
    assert group["messages"][0].endswith("...")
    calls = data["calls"]["1"]
    assert (calls["total"], calls["shown"][0]["messages"]["total"]) == (1, 4)


@pytest.mark.slow
async def test_the_names_of_deep_runs_are_kept(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Their paths are longer than a trace writes."""

    async def down(level: int) -> None:
        async with harness.open_run(f"level {level}"):
            if level < 400:
                await down(level + 1)

    async with record(tmp_path / "trace.jsonl"):
        await down(0)
    data = data_of_trace(tmp_path / "trace.jsonl")
    assert data["runs"]["name"] == [f"level {level}" for level in range(401)]
    assert data["runs"]["parent"] == list(range(-1, 400))


async def test_what_a_killed_program_left_open_is_lost(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "trace.jsonl"
    async with record(path):
        async with harness.open_run("all"):
            await harness.fan_out(trio.sleep, [1, 2])
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if b"_ended" not in line]
    path.write_bytes(b"".join(lines) + b'{"type": "run_en')
    data = data_of_trace(path)
    assert {data["statuses"][one] for one in data["runs"]["status"]} == {"lost"}
    assert "4 lost" in data["facts"]


def test_a_page_that_is_there_is_replaced_only_if_asked(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("mine")
    assert main(["report", str(trace), "-o", str(page)]) == 2
    assert page.read_text() == "mine"
    assert main(["report", str(trace), "-o", str(page), "--overwrite"]) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [page]
