"""Print the table of speed budgets: ``python -m benchmarks [NAME ...] [--quick]``.

``python -m benchmarks scaling`` measures how costs grow, and ``python -m benchmarks page`` writes
the pages and pictures of the docs from what was recorded.
"""

import argparse
import importlib
import pkgutil
import platform
import time
from pathlib import Path

import trio

import benchmarks
from benchmarks import _measure, _record
from benchmarks._measure import Row

FORMAT = "{:<66} {:>9} {:>9}  {:<13} {:<4}  {}"
SCALING, PAGE = "scaling", "page"


def names() -> list[str]:
    """Return the name of each benchmark: the files of this folder that have rows."""
    found = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return [name for name in found if not name.startswith("_")]


def line(row: Row, *, margin: float = 0.0) -> str:
    """Return a row as a line of the table."""
    measured = "–" if row.measured is None else f"{row.measured} {row.unit}"
    interval = "" if row.measured is None else row.measured.interval()
    verdict = {True: "ok", False: "over", None: ""}[row.keeps(margin=margin)]
    return FORMAT.format(row.what, row.budget, measured, interval, verdict, row.note).rstrip()


def main() -> None:
    """Measure what was asked for, and print each row as soon as it is known."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="What harness costs, as ratios to floors. Takes minutes; less with a name.",
    )
    parser.add_argument(
        "name",
        nargs="*",
        help=f"which; by default all of {', '.join(names())}. {SCALING}, alone: measure how costs "
        f"grow, and record it. {PAGE}, alone: write the pages of the docs from the records",
    )
    parser.add_argument("--quick", action="store_true", help="small counts: only to see it work")
    parser.add_argument(
        "--margin",
        type=float,
        default=0.0,
        metavar="PART",
        help="by which part of itself a budget may be missed, such as 0.2; by default none",
    )
    parser.add_argument(
        "--fewer",
        type=int,
        default=1,
        metavar="TIMES",
        help="how many times fewer rounds: wider intervals sooner; by default 1",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the record there")
    parser.add_argument(
        "--history", action="store_true", help="also add it to benchmarks/history.jsonl"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FOLDER",
        help="also draw this run and the history there, as SVG",
    )
    options = parser.parse_args()
    # Neither is needed by whoever looks at one row, and both need extras.
    if options.name == [SCALING]:
        scaling = importlib.import_module("benchmarks._scaling")
        scaling.measure(options.json or scaling.SCALING, most=1_000 if options.quick else 10**9)
        return
    if options.name == [PAGE]:
        importlib.import_module("benchmarks._pages").write()
        return
    if unknown := set(options.name) - set(names()):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names())}")

    _measure.rounds_divisor = options.fewer
    started_at = time.monotonic()
    print(f"Python {platform.python_version()}, trio {trio.__version__}; medians, their intervals")
    print(FORMAT.format("", "budget", "measured", "interval", "", ""))
    kept = []
    for name in options.name or names():
        print(name)
        for row in importlib.import_module(f"benchmarks.{name}").rows(quick=options.quick):
            print(f"  {line(row, margin=options.margin)}", flush=True)
            kept.append(_record.row_as_json(name, row, margin=options.margin))
    print(f"{time.monotonic() - started_at:.0f} s in all")
    record = {**_record.conditions(), "rows": kept}
    if options.json is not None:
        _record.write_record(options.json, record)
    if options.history:
        _record.append_to_history(record)
    if options.plot is not None:
        pictures = importlib.import_module("benchmarks._pictures")
        pictures.write(options.plot, pictures.of_run(record) | pictures.of_history())


if __name__ == "__main__":
    main()
