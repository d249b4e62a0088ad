"""Killed at any boundary, a pipeline or a router goes on behind the steps that are done.

Each session is a process of its own that kills itself with SIGKILL at one place, as in
``test_kill_points``; the pipelines and routers are drawn from a seed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scale import scaled
from tests.support.killed_sessions import Sessions, open_sessions
from tests.support.random_pipelines import kinds_of, outcome_of

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="forks and kills processes"),
]

ITEMS = [[str(number), number] for number in range(8)]
KILLED = -9
PLACES = (
    "before commit",
    "in transaction",
    "after commit",
    "before start",
    "after start",
    "before result",
    "after result",
)


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with open_sessions() as started:
        yield started


def check(folder: Path, seed: int) -> None:
    """Check that no step was made again once the next one, or the result, had shown it done."""
    done: set[tuple[int, str]] = set()
    results: dict[str, str] = {}
    begun: Counter[tuple[int, str]] = Counter()
    sessions = (folder / "log.txt").read_text().split("session \n")[1:]
    for lines in sessions:
        results = {}
        starts: Counter[tuple[int, str]] = Counter()
        for line in lines.splitlines():
            what, _, about = line.partition(" ")
            if what == "start":
                stage, _, item = about.partition(" ")
                call = int(stage), item
                assert call not in done, f"{call} was done, and was made again"
                starts[call] += 1
                # Behind a stage that yields several, outputs go on before it is done.
                mine = {before for before, one in starts | begun if one == item}
                done |= {(before, item) for before in mine if before < call[0]}
            elif what == "result":
                key, _, came = about.partition(" ")
                results[key] = came
                whose = {call for call in starts | begun if call[1].partition(".")[0] == key}
                done |= whose
        assert set(starts.values()) <= {1}, "a step was made twice in one session"
        begun |= starts
    expected = {item[0]: json.dumps(outcome_of(seed, item), default=str) for item in ITEMS}
    assert results == expected, kinds_of(seed)


@pytest.mark.parametrize("seed", range(scaled(6, full=300)))
def test_any_pipeline_killed_anywhere_comes_to_what_it_comes_to_in_one_go(
    seed: int, sessions: Sessions, tmp_path: Path
) -> None:
    sessions.folder = tmp_path
    order = {"pipeline": seed, "items": ITEMS}
    killed = 0
    for kill in range(3):
        place = PLACES[(seed + kill) % len(PLACES)]
        point = [place, 1 + (seed * 7 + kill * 3) % 9]
        ended = sessions.run(**order, point=point, seed=seed + kill)
        assert ended in (0, KILLED), (tmp_path / "stderr.txt").read_text()
        killed += ended == KILLED
    assert killed
    assert sessions.run(**order) == 0, (tmp_path / "stderr.txt").read_text()
    check(tmp_path, seed)
