"""A night with all its commands, from plan to export."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.examples.headers import promised_output
from tests.scale import PATIENCE_SECONDS

pytestmark = pytest.mark.real_clock

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
BY_CHANCE = re.compile(r"\d+ slower|[\d,]+ tokens")


def night(*files: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "nightly_batch.py"), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_a_night_prints_what_its_header_promises() -> None:
    pytest.importorskip("pyarrow", reason="the night ends with an export to Parquet")
    said, promised = night(), promised_output(importlib.import_module("nightly_batch"))
    assert [line.split()[0] for line in said[:4]] == ["plan:", "meanwhile:", "first", "second"]
    assert " needed, 0.4 s given: " in said[0]
    first, left = map(int, re.findall(r"(\d+) (?:sorted|did)", said[2]))
    assert first + left == 132
    assert said[3] == f"second session: 132 sorted, {first} of them in the first"
    assert [BY_CHANCE.sub("...", line) for line in said[4:]] == [
        BY_CHANCE.sub("...", line) for line in promised[4:]
    ]


@pytest.mark.full
@pytest.mark.skipif(not DATA.exists(), reason="the messages to a bank are not here")
def test_a_night_of_3080_messages_takes_less_than_two_minutes() -> None:
    pytest.importorskip("pyarrow", reason="the night ends with an export to Parquet")
    began = time.monotonic()
    said = night(DATA / "banking77.csv", DATA / "banking77_train.csv")
    assert time.monotonic() - began < 120
    assert said[3].startswith("second session: 3,080 sorted, ")
    assert "alone: 0 of 300 differ" in "\n".join(said)
    assert said[-1].startswith("exported: 3,080 rows of 21 columns; ")
