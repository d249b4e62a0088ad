"""Draw the means of evaluations as SVG: bars with their intervals."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from harness._words import harmless
from harness.evals._evaluation import LEVEL, Evaluation

pygal: Any = import_module("pygal")

# It leaves an import hook, for its maps, in a form that Python 3.12 no longer calls; 3.11 warns of
# it at any later import, which is an error for whoever has warnings be errors.
for _finder in [one for one in sys.meta_path if type(one).__module__ == "pygal"]:
    if not hasattr(_finder, "find_spec"):
        sys.meta_path.remove(_finder)


def write_chart(
    evaluations: Mapping[Any, Evaluation],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    level: float = LEVEL,
) -> None:
    """Draw a bar for each evaluation and scorer, with the interval of its mean, as an SVG file.

    The file is whole: it loads nothing from elsewhere.

    Args:
      evaluations: By name, such as `Evaluation.by_group` or `Sweep.evaluations`.
      path: The file.
      title: What is written above.
      level: The confidence of the intervals.

    Raises:
      TypeError: if ``evaluations`` is no mapping, such as the file in its place.
      ValueError: if there are no evaluations.
      OSError: if it can't be written.
    """
    if not isinstance(evaluations, Mapping):
        raise TypeError(
            "write_chart(evaluations, path) takes evaluations by name, such as "
            f"evaluation.by_group(), and then the file, not {evaluations!r}"
        )
    if not evaluations:
        raise ValueError("there are no evaluations to draw; give at least one")
    names = ["/".join(one) if isinstance(one, tuple) else str(one) for one in evaluations]
    names = [harmless(one) for one in names]  # XML has no place for a control character.
    chart = pygal.Bar(
        title=harmless(title) or None,
        x_labels=names,
        x_label_rotation=30 if len(names) > 4 else 0,
        js=(),  # By default it is loaded from a server, for tool tips.
        include_x_axis=True,
        y_title=f"mean, {100 * level:g} % interval",
    )
    scorers = dict.fromkeys(name for one in evaluations.values() for name in one.scorers)
    for scorer in scorers:
        bars = [_bar(evaluation, scorer, level) for evaluation in evaluations.values()]
        chart.add(harmless(scorer), bars, formatter=lambda value: f"{value:.3f}")
    Path(path).write_bytes(chart.render())


def _bar(evaluation: Evaluation, scorer: str, level: float) -> dict[str, Any] | None:
    try:
        mean = evaluation.mean_score(scorer, level=level)
    except ValueError:
        return None  # It scored nothing here: there is a gap.
    return {"value": mean.mean, "ci": {"low": mean.low, "high": mean.high}}
