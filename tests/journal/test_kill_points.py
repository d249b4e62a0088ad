"""Killed at any boundary, a batch loses no result that was acknowledged, and doubles none.

Every session is a process of its own, and it kills itself with SIGKILL at one place: before, in and
after a commit of the journal, and around each call of the function and each result.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from harness.journal import read_journal
from tests.scale import FULL, scaled
from tests.support.killed_sessions import Sessions, open_sessions

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.skipif(os.name != "posix", reason="forks and kills processes"),
]

ITEMS = list(range(10))
LIMIT = 3
WINDOW = 6
KILLED = -9

PLACES = [
    "before commit",
    "in transaction",
    "after commit",
    "before start",
    "after start",
    "before end",
    "after end",
    "before result",
    "after result",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[Sessions]:
    with open_sessions() as started:
        yield started


@pytest.fixture
def sessions(server: Sessions, folder: Path) -> Sessions:
    server.folder = folder
    return server


@attrs.define
class Session:
    """What a session wrote into its log, by key."""

    starts: list[str] = attrs.field(factory=list)
    results: dict[str, tuple[str, int]] = attrs.field(factory=dict)
    done: bool = False


def sessions_of(folder: Path) -> list[Session]:
    found: list[Session] = []
    for line in (folder / "log.txt").read_text().splitlines():
        what, _, about = line.partition(" ")
        if what == "session":
            found.append(Session())
        elif what == "start":
            found[-1].starts.append(about)
        elif what == "result":
            key, status, attempts = about.split()
            assert key not in found[-1].results, "a result came twice in one session"
            found[-1].results[key] = (status, int(attempts))
        elif what == "done":
            found[-1].done = True
    return found


def check(folder: Path, *, window: int = WINDOW) -> list[Session]:
    """Check what must hold whatever was killed where; return the sessions."""
    all_sessions = sessions_of(folder)
    acknowledged: set[str] = set()
    begun: set[str] = set()
    for session in all_sessions:
        again = [key for key in session.starts if key in begun]
        assert not acknowledged & set(session.starts), "an acknowledged result was computed again"
        assert len(again) == len(set(again))
        assert len(again) <= window, "more than what was in flight ran again"
        begun |= set(session.starts)
        acknowledged |= set(session.results)
    return all_sessions


def finish(sessions: Sessions, folder: Path, *, sessions_at_most: int = 2) -> None:
    """Resume until it ends, and check that all is there once."""
    for _ in range(sessions_at_most):
        if sessions.run(items=ITEMS, limit=LIMIT, window=WINDOW) == 0:
            break
    *_, last = check(folder)
    assert last.done
    assert sorted(last.results) == sorted(map(str, ITEMS))
    assert {status for status, _ in last.results.values()} == {"ok"}
    with read_journal(folder / "run.db") as reader:
        items = list(reader.items("batch"))
        assert sorted(str(item.key) for item in items) == sorted(map(str, ITEMS))
        assert {item.key: item.value_text for item in items} == {
            str(item): f'{{"item":{item}}}' for item in ITEMS
        }


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_killed_at_each_boundary(place: str, sessions: Sessions, folder: Path) -> None:
    """Once at each boundary of its kind, each time from an empty journal."""
    killed = 0
    for count in range(1, 200) if FULL else (1, 2, 5):
        for left in folder.glob("run.db*"):
            left.unlink()
        (folder / "log.txt").unlink(missing_ok=True)
        ended = sessions.run(
            items=ITEMS, limit=LIMIT, window=WINDOW, point=[place, count], seed=count
        )
        assert ended in (0, KILLED), (folder / "stderr.txt").read_text()
        killed += ended == KILLED
        finish(sessions, folder)
        if ended == 0:
            break
    assert killed >= 2


def test_killed_again_and_again_in_one_batch(sessions: Sessions, folder: Path) -> None:
    """Each session gets a little further, until one gets to the end."""
    for count in range(100):
        place = PLACES[count % len(PLACES)]
        ended = sessions.run(items=ITEMS, limit=LIMIT, window=WINDOW, point=[place, 4], seed=count)
        if ended == 0:
            break
        assert ended == KILLED
    assert ended == 0
    finish(sessions, folder)


@pytest.mark.parametrize("on_unknown", ["raise", "retry"])
@pytest.mark.parametrize(
    "place",
    ["before effect", "after effect", "before commit", "in transaction", "after commit"],
)
def test_killed_around_an_effect(
    place: str, on_unknown: str, sessions: Sessions, folder: Path
) -> None:
    """An effect that may have taken place is never made again silently: it is told, or it is asked
    for with the same idempotency key, by which its receiver can tell."""
    order = {"items": ITEMS, "limit": LIMIT, "window": WINDOW, "on_unknown": on_unknown}
    killed = 0
    for count in range(1, 60) if FULL else (2, 5):
        for left in folder.glob("run.db*"):
            left.unlink()
        (folder / "log.txt").unlink(missing_ok=True)
        ended = sessions.run(**order, point=[place, count], seed=count)
        assert ended in (0, KILLED), (folder / "stderr.txt").read_text()
        killed += ended == KILLED
        assert sessions.run(**order) == 0, (folder / "stderr.txt").read_text()
        *_, last = check(folder)
        assert sorted(last.results) == sorted(map(str, ITEMS))
        effects: dict[str, list[str]] = {str(item): [] for item in ITEMS}
        for line in (folder / "log.txt").read_text().splitlines():
            if line.startswith("effect "):
                _, item, key = line.split()
                effects[item].append(key)
        assert all(len(set(keys)) <= 1 for keys in effects.values()), "another key for the same"
        failed = {key for key, (status, _) in last.results.items() if status != "ok"}
        if on_unknown == "raise":
            assert all(len(keys) <= 1 for keys in effects.values()), "silently twice"
            assert len(failed) <= LIMIT, "only what was in flight can be unknown"
        else:
            assert not failed
            assert all(keys for keys in effects.values())
        if ended == 0:
            break
    assert killed >= 1


def test_killed_half_way_the_rest_runs_and_no_more(sessions: Sessions, folder: Path) -> None:
    half = scaled(150, full=500)
    items = list(range(2 * half))
    order = {"items": items, "limit": 10, "window": 20}
    assert sessions.run(**order, point=["after result", half]) == KILLED
    assert sessions.run(**order) == 0
    first, second = check(folder, window=20)
    assert len(first.results) == half
    assert len(second.starts) <= half + 20
    assert len(second.results) == len(items)


def test_shuffled_appended_and_changed_items_after_a_kill(sessions: Sessions, folder: Path) -> None:
    assert sessions.run(items=ITEMS, limit=LIMIT, point=["after result", 5]) == KILLED
    [first] = check(folder, window=100)
    shuffled = [7, 3, 11, 9, 1, 0, 8, 2, 10, 6, 4, 5]
    assert sessions.run(items=shuffled, limit=LIMIT) == 0
    _, second = check(folder, window=100)
    assert len(first.results) == 5
    assert not set(first.results) & set(second.starts)
    assert {"10", "11"} <= set(second.starts)
    assert sorted(second.results) == sorted(map(str, shuffled))


def test_an_item_that_always_kills_the_process_is_set_aside(
    sessions: Sessions, folder: Path
) -> None:
    """And none of its neighbours, which died with it each time but the last."""
    order = {"items": ITEMS, "limit": LIMIT, "window": WINDOW, "deadly": [4], "max_attempts": 3}
    ended = [sessions.run(**order)]
    while ended[-1] == KILLED and len(ended) < 10:
        ended.append(sessions.run(**order))
    assert ended == [KILLED, KILLED, KILLED, 0]
    *_, third, last = check(folder)
    assert last.results.pop("4") == ("failed", 3)
    assert {status for status, _ in last.results.values()} == {"ok"}
    assert third.starts[-1] == "4", "its last attempt was the last thing that was started"
    with read_journal(folder / "run.db") as reader:
        [failure] = reader.items("batch", statuses=["failed"])
    assert failure.error_type == "SetAside"
    assert "nothing else in flight" in str(failure.error_message)


@pytest.mark.slow
def test_an_item_that_always_hangs_ends(sessions: Sessions, folder: Path) -> None:
    order = {"items": ITEMS, "limit": LIMIT, "hanging": [4], "max_attempts": 2}
    for lines in (25, 11):  # All there are but for the item's end and result.
        assert sessions.run(**order, signals=[(lines, 0.1, signal.SIGKILL)]) == KILLED
    assert sessions.run(**order) == 0
    *_, last = check(folder, window=100)
    assert last.results.pop("4") == ("failed", 2)
    assert {status for status, _ in last.results.values()} == {"ok"}
