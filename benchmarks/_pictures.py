"""Draw what was recorded as SVG, each picture once for light pages and once for dark ones.

The files are whole: they load nothing from elsewhere, and the same record gives the same file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import _record
from harness.evals._chart import pygal  # Without the import hook that it leaves behind.

_style: Any = import_module("pygal.style").Style

Pictures = dict[str, str]
"""The text of each file, by its name."""

_COLORS = ("#2f6db5", "#c2571a", "#3b8a4d", "#9a4a9c", "#8a6d1f", "#b23a48")
_LIGHT_COLORS = ("#7fb2f0", "#f0a070", "#7fd093", "#d79bd9", "#d9bd6a", "#f08a96")
_FONT = {"font_family": "sans-serif", "label_font_size": 12, "legend_font_size": 13}
STYLES = {
    "light": _style(
        background="white",
        plot_background="white",
        foreground="#333333",
        foreground_strong="#111111",
        foreground_subtle="#888888",
        colors=_COLORS,
        **_FONT,
    ),
    "dark": _style(
        background="#131416",
        plot_background="#131416",
        foreground="#cfd0d0",
        foreground_strong="#ffffff",
        foreground_subtle="#777777",
        colors=_LIGHT_COLORS,
        **_FONT,
    ),
}


def write(folder: Path, pictures: Mapping[str, str]) -> None:
    """Write all files into a folder, which is made if it isn't there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pictures.items():
        (folder / name).write_text(text, encoding="utf-8")


def of_run(record: dict[str, Any]) -> Pictures:
    """Draw how much of its budget each row uses, with the interval of its median."""
    rows = [row for row in record["rows"] if _record.share_of_budget(row) is not None]

    def draw(style: Any) -> Any:
        chart = _chart(
            pygal.HorizontalBar,
            style,
            title="What is used of each budget; 100 % is all of it",
            height=120 + 22 * len(rows),
            show_legend=False,
            x_labels=[row["what"] for row in reversed(rows)],
            truncate_label=70,
            value_formatter=lambda share: f"{share:.0%}",
        )
        chart.add("", [_bar(row) for row in reversed(rows)])
        return chart

    return _both("budgets", draw)


def of_history(records: Iterable[dict[str, Any]] | None = None) -> Pictures:
    """Draw the largest part that any row of a benchmark used of its budget, over all runs."""
    records = _record.history() if records is None else list(records)
    worst: dict[str, list[float | None]] = {}
    for index, record in enumerate(records):
        for row in record["rows"]:
            share = _record.share_of_budget(row)
            if share is not None:
                line = worst.setdefault(row["benchmark"], [None] * len(records))
                line[index] = max(share, line[index] or 0.0)

    def draw(style: Any) -> Any:
        chart = _chart(
            pygal.Line,
            style,
            title="The row of each benchmark that uses most of its budget",
            x_labels=[f"{record['date']} {record['commit'] or ''}" for record in records],
            x_label_rotation=30,
            value_formatter=lambda share: f"{share:.0%}",
        )
        for name, line in worst.items():
            chart.add(name, line)
        return chart

    return _both("history", draw) if records else {}


def of_scaling(
    points: list[dict[str, Any]], part: str, field: str, *, title: str, unit: float
) -> Pictures:
    """Draw time or memory over the count, both logarithmic."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        if point["part"] == part and point[field] > 0:
            line = lines.setdefault(point["name"], [])
            line.append((point["count"], point[field] / unit))

    counts = sorted({count for line in lines.values() for count, _ in line})

    def draw(style: Any) -> Any:
        chart = _chart(
            pygal.Line,
            style,
            title=title,
            logarithmic=True,
            x_labels=[f"{count:,}" for count in counts],
            value_formatter=lambda value: f"{value:,.3g}",
        )
        for name, line in lines.items():
            known = dict(line)
            chart.add(name, [known.get(count) for count in counts])
        return chart

    return _both(f"scaling-{part}-{field}", draw)


def _bar(row: dict[str, Any]) -> dict[str, Any]:
    share = _record.share_of_budget(row)
    assert share is not None
    bar: dict[str, Any] = {"value": share}
    ends = [_record.share_of_budget({**row, "median": row[end]}) for end in ("low", "high")]
    if None not in ends and ends[0] != ends[1]:
        bar["ci"] = {"low": min(ends), "high": max(ends)}  # type: ignore[type-var]
    if row["keeps"] is False:
        bar["color"] = "#c0392b"
    return bar


def _chart(kind: Callable[..., Any], style: Any, **options: Any) -> Any:
    # By default a script for tool tips is loaded from a server.
    return kind(style=style, js=(), width=900, legend_at_bottom=True, **options)


def _both(name: str, draw: Callable[[Any], Any]) -> Pictures:
    pictures = {}
    for look, style in STYLES.items():
        text: str = draw(style).render(is_unicode=True)
        # The date, and what tells a script of pygal's which chart this is: no page has that script.
        text = re.sub(r"<!--.*?-->|<script.*?</script>", "", text, flags=re.DOTALL)
        # The identity is drawn at random.
        pictures[f"{name}-{look}.svg"] = re.sub(r"chart-[\w-]{36}", f"chart-{name}-{look}", text)
    return pictures
