"""Keep what a run of the benchmarks measured, where, and of which code.

A record is JSON: the conditions, and a row per line of the table. `HISTORY` has one per line. It
says what a machine is like, but neither its name nor anything of its user.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from benchmarks._measure import Row

ROOT = Path(__file__).parent.parent
HISTORY = ROOT / "benchmarks" / "history.jsonl"
LATEST = ROOT / "benchmarks" / "latest.json"

_SHOWN = {"trio-harness", "trio", "attrs", "outcome"}


def conditions() -> dict[str, Any]:
    """Return of which code a record is, when it was measured, and on what machine."""
    needs = [need.partition(";") for need in distribution("trio-harness").requires or ()]
    peers = {_name(need) for need, _, marker in needs if "bench" in marker or "'ray'" in marker}
    return {
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "versions": {
            name: known for name in sorted(_SHOWN | peers) if (known := _version(name)) is not None
        },
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "processors": os.cpu_count(),
            "memory_gib": _memory_gib(),
        },
    }


def row_as_json(benchmark: str, row: Row, *, margin: float = 0.0) -> dict[str, Any]:
    """Return a line of the table as it is kept."""
    measured = row.measured
    return {
        "benchmark": benchmark,
        "what": row.what,
        "unit": row.unit,
        "median": None if measured is None else _short(measured.middle),
        "low": None if measured is None else _short(measured.low),
        "high": None if measured is None else _short(measured.high),
        "budget": [row.sign, row.limit] if row.sign else None,
        "keeps": row.keeps(margin=margin),
        "note": row.note,
    }


def share_of_budget(row: dict[str, Any]) -> float | None:
    """Return how much of its budget a row uses, where 1 is all; None if nothing can be said."""
    if row["budget"] is None or row["median"] is None:
        return None
    sign, limit = row["budget"]
    part, whole = (row["median"], limit) if sign == "≤" else (limit, row["median"])
    return part / whole if whole else None


def append_to_history(record: dict[str, Any]) -> None:
    """Add a record to the history, without the notes."""
    rows = [{key: row[key] for key in row if key != "note"} for row in record["rows"]]
    with HISTORY.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**record, "rows": rows}, ensure_ascii=False) + "\n")


def history() -> list[dict[str, Any]]:
    """Return the records of the history, the oldest first."""
    if not HISTORY.exists():
        return []
    return [json.loads(line) for line in HISTORY.read_text(encoding="utf-8").splitlines()]


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write one record, with a row per line."""
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def in_words(record: dict[str, Any]) -> str:
    """Return the conditions of a record as a sentence."""
    machine = record["machine"]
    names = ", ".join(
        f"{name} {record['versions'][name]}" for name in ("trio", *_peers(record["versions"]))
    )
    return (
        f"Measured on {record['date']} at commit {record['commit']}, with Python "
        f"{record['python']}, {names}; {machine['system']} {machine['architecture']}, "
        f"{machine['processors']} processors, {machine['memory_gib']} GiB."
    )


def _peers(versions: Iterable[str]) -> list[str]:
    return [name for name in versions if name not in _SHOWN]


def _name(need: str) -> str:
    return need.partition(">")[0].partition("[")[0].strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit, with a + if files differ from it; None outside of a checkout."""
    try:
        head, changes = (
            subprocess.run(
                ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+" if changes else head


def _memory_gib() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None


def _short(number: float) -> float:
    """Return it with as many digits as any measurement is good for."""
    return float(f"{number:.4g}")
