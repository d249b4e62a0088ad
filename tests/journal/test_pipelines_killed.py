"""Killed at any boundary, a pipeline or a router goes on behind the steps that are done.

Each session is a process of its own that kills itself with SIGKILL at one place, as in
``test_kill_points``; the pipelines and routers are drawn from a seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scale import scaled
from tests.support.killed_sessions import Sessions, open_sessions
from tests.support.random_pipelines import check

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


@pytest.mark.parametrize("seed", range(scaled(4, full=300)))
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
    check((tmp_path / "log.txt").read_text(), seed, ITEMS)
