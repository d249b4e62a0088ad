"""Print the table of speed budgets: ``python -m benchmarks [NAME ...] [--quick]``."""

import argparse
import importlib
import pkgutil
import platform
import time

import trio

import benchmarks
from benchmarks import _measure
from benchmarks._measure import Row

FORMAT = "{:<66} {:>9} {:>9}  {:<13} {:<4}  {}"


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
    parser.add_argument("name", nargs="*", help=f"which; by default all of {', '.join(names())}")
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
    options = parser.parse_args()
    if unknown := set(options.name) - set(names()):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names())}")

    _measure.rounds_divisor = options.fewer
    started_at = time.monotonic()
    print(f"Python {platform.python_version()}, trio {trio.__version__}; medians, their intervals")
    print(FORMAT.format("", "budget", "measured", "interval", "", ""))
    for name in options.name or names():
        print(name)
        for row in importlib.import_module(f"benchmarks.{name}").rows(quick=options.quick):
            print(f"  {line(row, margin=options.margin)}", flush=True)
    print(f"{time.monotonic() - started_at:.0f} s in all")


if __name__ == "__main__":
    main()
