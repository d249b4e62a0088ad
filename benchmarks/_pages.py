"""Write the pages of the docs that are about what was measured, from the records alone.

Run: python -m benchmarks page
"""

from __future__ import annotations

import importlib
import json
import textwrap
from pathlib import Path
from typing import Any

from benchmarks import _pictures, _record
from benchmarks._scaling import CASES, SCALING
from benchmarks.fan_out import LIMIT

_FEWEST_WITH_MEMORY = 100

DOCS = _record.ROOT / "docs"

BENCHMARKS = """\
# What it costs

<!-- written by `python -m benchmarks page` -->

`python -m benchmarks` measures all of this; it takes minutes, and `pip install '.[bench]'` adds the
libraries to compare with. The command above each table measures that one alone, and `--quick` only
shows that it works. `--json FILE` keeps what was measured, `--history` adds it to
`benchmarks/history.jsonl`, and `--plot FOLDER` draws it; this page is made of such a record. How
costs grow with the number of items, runs and processes is on [another page](scaling.md).

Unless a unit says otherwise, the figures are ratios of CPU time: medians of interleaved rounds in
one process, with the interval that the true median is in, 99 times out of 100. Compare the ratios,
not two machines. The note at the end of a row says what one thing costs in absolute terms. A
*chain* is the best that plain trio could do: a hundred tasks with a cancel scope each, where
whichever ends starts the next.

{conditions}

{over}

{picture}
{tables}"""

SCALING_PAGE = """\
# How costs grow

<!-- written by `python -m benchmarks page` -->

`python -m benchmarks scaling` measures this, each case in a process of its own, in some minutes.
The time is the processor's per item, in the process that asks; the memory is how far that process's
peak rises, per item. A case is left out (–) where the one before it shows that it would take more
than 90 seconds or 1 GiB, and where it couldn't be measured.

{conditions}

## Many items

An item is one checkpoint, and {limit} are under way at a time. `open_fan_out` hands on each result;
`fan_out` keeps them all. The peers keep none, and those with a task group make all tasks at once.

{items}

## Many runs at once

All runs wait until the last one has begun.

{runs}

## Several processes

Two thousand items are sent to worker processes that are started already, {limit} at a time; the
body returns its item. What is measured is the process that sends them.

{processes}
"""

TITLES = {
    "items": "items of one checkpoint, 100 at a time",
    "runs": "runs that all wait at once",
    "processes": "items sent to worker processes",
}
UNITS = {"seconds": ("CPU time, µs", 1e-6), "bytes": ("memory, KiB", 1024.0)}


def pages() -> dict[Path, str]:
    """Return the text of each page and picture, by where it belongs."""
    latest = json.loads(_record.LATEST.read_text())
    scaling = json.loads(SCALING.read_text())
    pictures = _pictures.of_run(latest) | _pictures.of_history()
    for part, title in TITLES.items():
        for field, (unit, size) in UNITS.items():
            shown = [one for one in scaling["points"] if is_shown(part, field, one["count"])]
            pictures |= _pictures.of_scaling(
                shown, part, field, title=f"{unit} per item: {title}", unit=size
            )
    return {
        DOCS / "benchmarks.md": _benchmarks(latest),
        DOCS / "scaling.md": _scaling(scaling),
        **{DOCS / "pictures" / name: text for name, text in pictures.items()},
    }


def is_shown(part: str, field: str, count: int) -> bool:
    """Return whether a measurement says anything: a few items take no page of memory."""
    return part == "processes" or field == "seconds" or count >= _FEWEST_WITH_MEMORY


def write() -> None:
    """Write them all."""
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _benchmarks(record: dict[str, Any]) -> str:
    rows = record["rows"]
    parts = [
        picture("budgets", "What each row uses of its budget"),
        picture("history", "What the worst row of each benchmark used of its budget, over time"),
    ]
    over = [row["what"] for row in rows if row["keeps"] is False]
    tables = []
    for name in dict.fromkeys(row["benchmark"] for row in rows):
        question = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").partition("\n\n")[
            0
        ]
        tables.append(
            f"## {' '.join(question.split())}\n\n`python -m benchmarks {name}`\n\n"
            + _table(
                ["what / against what", "measured", "interval", "budget", ""],
                [_cells(row) for row in rows if row["benchmark"] == name],
            )
        )
    return BENCHMARKS.format(
        conditions=textwrap.fill(_record.in_words(record), 100, break_on_hyphens=False),
        over=textwrap.fill(
            f"Over budget: {'; '.join(over)}." if over else "All rows keep their budgets.", 100
        ),
        picture="\n".join(parts),
        tables="\n".join(tables),
    )


def _cells(row: dict[str, Any]) -> list[str]:
    unit = row["unit"]
    if row["median"] is None:
        return [row["what"], "–", "", _budget(row), row["note"]]
    low, high = row["low"], row["high"]
    interval = "" if low == high else f"{low:.2f}–{high:.2f}"
    return [row["what"], f"{row['median']:.2f} {unit}", interval, _budget(row), row["note"]]


def _budget(row: dict[str, Any]) -> str:
    return (
        "–" if row["budget"] is None else f"{row['budget'][0]} {row['budget'][1]:g} {row['unit']}"
    )


def _scaling(record: dict[str, Any]) -> str:
    return SCALING_PAGE.format(
        limit=LIMIT,
        conditions=textwrap.fill(_record.in_words(record), 100, break_on_hyphens=False),
        **{part: _part(record, part) for part in TITLES},
    )


def _part(record: dict[str, Any], part: str) -> str:
    known = {
        (point["name"], point["count"]): point
        for point in record["points"]
        if point["part"] == part
    }
    names = [case.name for case in CASES if case.part == part]
    parts = []
    for field, (words, size) in UNITS.items():
        counts = sorted({count for _, count in known if is_shown(part, field, count)})
        rows = [
            [name, *(_number(known.get((name, count)), field, size) for count in counts)]
            for name in names
        ]
        head = "processes" if part == "processes" else part
        parts.append(
            _table([f"{words} per item; {head}:", *(f"{count:,}" for count in counts)], rows)
        )
        parts.append(picture(f"scaling-{part}-{field}", f"{words} per item: {TITLES[part]}"))
    return "\n".join(parts).rstrip()


def _number(point: dict[str, Any] | None, field: str, size: float) -> str:
    if point is None:
        return "–"
    number = point[field] / size
    return (
        f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def picture(name: str, alt: str) -> str:
    """Return the lines that show a picture, as the page's look wants it."""
    return "".join(
        f"```{{image}} pictures/{name}-{look}.svg\n:alt: {alt}\n:class: only-{look}\n```\n"
        for look in _pictures.STYLES
    )
