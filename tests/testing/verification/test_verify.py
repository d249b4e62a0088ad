"""A sample of a batch is run again, each item alone, and what differs is told."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import harness
from harness.errors import HarnessError
from harness.testing import Recorded, Verification, verify
from harness.testing.verification import SampleDraw, _alone
from harness.testing.verification._differences import differences


class Desk:
    messages: list[str] = []  # noqa: RUF012  # The leak.

    async def answer(self, text: str) -> str:
        self.messages.append(text)
        return " / ".join(self.messages)


async def leaking(text: str) -> str:
    return await Desk().answer(text)


async def upper(text: str) -> str:
    return text.upper()


async def at_random(text: str) -> float:
    return random.SystemRandom().random()


def recorded(*values: Any, status: str = "ok") -> list[Recorded]:
    return [
        Recorded(key=number, item=f"t{number}", value=value, status=status)
        for number, value in enumerate(values)
    ]


def verdicts(found: Verification) -> list[str]:
    return [one.verdict for one in sorted(found.checked, key=lambda one: one.key)]


@pytest.mark.slow
def test_each_item_is_alone_with_what_the_program_has_at_its_start() -> None:
    """In one process, the second item found the first one's messages, and nothing matched."""
    found = verify(leaking, recorded("t0", "t0 / t1", "t2"))
    assert verdicts(found) == ["same", "differs", "same"]
    (one,) = found.differing
    assert str(one) == "1: 't0 / t1' in the batch, 't1' alone"
    assert Desk.messages == []


@pytest.mark.slow
def test_results_of_a_fan_out_can_be_verified() -> None:
    async def batch() -> harness.Results[str]:
        return await harness.fan_out(upper, ["a", "b", "c"])

    found = verify(upper, trio.run(batch))
    assert str(found) == "0 of 3 differ, and that is all of them\ndrawn with seed 0"


@pytest.mark.slow
def test_an_item_that_differs_from_itself_is_counted_apart() -> None:
    found = verify(at_random, recorded(*[2.0] * 4))
    assert verdicts(found) == ["varies"] * 4
    assert found.differing == ()
    assert len(found.varying) == 4
    assert not found.ran
    assert str(found.estimates[0]) == "none of the 4 could be compared"


@pytest.mark.slow
def test_a_comparer_says_what_is_the_same() -> None:
    close = verify(at_random, recorded(0.5, 9.5), equal=lambda one, other: abs(one - other) < 1)
    assert verdicts(close) == ["same", "differs"]


@pytest.mark.slow
def test_what_differs_once_is_not_taken_for_a_leak() -> None:
    """With one run alone, a model that varies looks like a leak."""
    assert verdicts(verify(at_random, recorded(2.0), repeats=1)) == ["differs"]
    (one,) = verify(at_random, recorded(2.0), repeats=5).checked
    assert (one.verdict, one.runs) == ("varies", 2)


async def breaks(text: str) -> str:
    if text == "t0":
        os._exit(7)
    if text == "t1":
        sys.exit("enough")
    if text == "t2":
        raise ValueError(text)
    return text


@pytest.mark.slow
def test_what_fails_alone_is_told_and_ends_nothing_else() -> None:
    found = verify(breaks, recorded("t0", "t1", "t2", "t3"))
    assert verdicts(found) == ["failed", "failed", "failed", "same"]
    words = [str(one).partition(", ")[2] for one in sorted(found.differing, key=lambda x: x.key)]
    assert words == [
        "raised RuntimeError: the process that ran it was ended with status 7 alone",
        "raised RuntimeError: it raised SystemExit: enough alone",
        "raised ValueError: t2 alone",
    ]


@pytest.mark.slow
def test_if_all_fail_nothing_was_verified() -> None:
    assert not verify(breaks, recorded("t0", "t1")).ran


@pytest.mark.real_clock
@pytest.mark.slow
def test_a_timeout_kills_the_process() -> None:
    async def blocks(text: str) -> str:
        time.sleep(60)  # noqa: ASYNC251  # No cancel from inside can end this.
        return text

    found = verify(blocks, recorded("t0"), each=harness.Attempt(timeout=0.05), limit=3)
    assert verdicts(found) == ["failed"]
    assert "ran out of time" in str(found)


@pytest.mark.slow
def test_a_process_leads_its_group_before_anybody_can_kill_it() -> None:
    async def blocks(text: str) -> None:
        time.sleep(60)  # noqa: ASYNC251

    groups: list[bool] = []
    with _alone.open_keepers(blocks, [""], count=1) as keepers:
        (keeper,) = keepers._free
        for _ in range(20):
            os.write(keeper.orders, _alone._ORDER.pack(_alone._START, 0))
            _, _, pid = _alone._ANSWER.unpack(os.read(keeper.answers, _alone._ANSWER.size))
            groups.append(os.getpgid(pid) == pid)
            os.kill(pid, signal.SIGKILL)
            os.read(keeper.answers, _alone._ANSWER.size)
    assert groups == [True] * 20


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> set[str]:
    """Return the ids of this process's children; a session's server may be among them."""
    found: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        found.update((thread / "children").read_text().split())
    return found


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs Linux's /proc")
def test_no_process_and_no_descriptor_is_left(tmp_path: Any) -> None:
    before = open_descriptors(), children()
    verify(upper, recorded("T0", "T1", "T2"), limit=3)
    assert (open_descriptors(), children()) == before


@pytest.mark.slow
def test_attempts_are_made_as_in_a_batch(tmp_path: Any) -> None:
    marks = tmp_path / "marks"
    marks.write_text("")

    async def second_time(text: str) -> str:
        with marks.open("a") as file:
            file.write("x")
        if len(marks.read_text()) < 2:
            raise ConnectionError("try again")
        return text

    retry = harness.Retry(3, first_delay=0)
    found = verify(second_time, recorded("t0"), each=harness.Attempt(retry=retry))
    assert verdicts(found) == ["same"]
    assert marks.read_text() == "xx"


dice = random.Random(4)


@pytest.mark.slow
def test_what_an_attempt_leaves_behind_the_next_one_finds() -> None:
    """With a process for each attempt, each drew the same number, and all failed alike."""
    first = random.Random(4).random()

    async def fails_at_first(text: str) -> str:
        if dice.random() == first:
            raise ConnectionError("try again")
        return text

    each = harness.Attempt(retry=harness.Retry(3, first_delay=0))
    assert verdicts(verify(fails_at_first, recorded("t0", "t1"), each=each)) == ["same"] * 2


@pytest.mark.slow
@pytest.mark.real_clock
def test_an_attempt_that_ran_out_of_time_leaves_its_state_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_alone, "_GRACE_SECONDS", 60)
    times: list[str] = []

    async def waits_at_first(text: str) -> str:
        times.append(text)
        if len(times) == 1:
            await trio.sleep_forever()
        return text

    each = harness.Attempt(timeout=0.1, retry=harness.Retry(3, first_delay=0))
    assert verdicts(verify(waits_at_first, recorded("t0"), each=each)) == ["same"]


def test_a_run_local_is_there_in_every_call() -> None:
    local = harness.RunLocal(list[str], name="messages")

    async def keeps(text: str) -> str:
        local.get().append(text)
        return " ".join(local.get())

    assert verdicts(verify(keeps, recorded("t0", "t1"))) == ["same", "same"]


async def test_inside_trio_it_is_refused() -> None:
    with pytest.raises(RuntimeError, match="worker thread"):
        verify(upper, recorded("a"))


def test_without_fork_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(RuntimeError, match="which this system lacks"):
        verify(upper, recorded("a"))


def test_bad_numbers_and_empty_batches_are_refused() -> None:
    for options in ({"sample": 0}, {"limit": 0}, {"repeats": 0}, {"confidence": 1.5}):
        with pytest.raises((ValueError, HarnessError)):
            verify(upper, recorded("a"), **options)
    with pytest.raises(ValueError, match=r"no result is ok \(1 failed\); stratify=True"):
        verify(upper, recorded("a", status="failed"))


@pytest.mark.slow
def test_failed_items_are_verified_if_asked() -> None:
    batch = [
        Recorded(key="a", item="t3", value="t3"),
        Recorded(key="b", item="t2", status="failed", error="ValueError: t2"),
        Recorded(key="c", item="t4", status="failed", error="KeyError: 't9'"),
        Recorded(key="d", item="t5", status="cancelled", error="RunCancelled: x"),
    ]
    found = verify(breaks, batch, stratify=True)
    assert {one.key: one.verdict for one in found.checked} == {
        "a": "same",
        "b": "same",
        "c": "differs",
    }
    assert [(one.status, one.population, one.differ) for one in found.estimates] == [
        ("ok", 1, 0),
        ("failed", 2, 1),
    ]
    assert "not verified, because they are not ok: 1 cancelled" in str(found)
    assert {one.key for one in verify(breaks, batch).checked} == {"a"}


# The sample ------------------------------------------------------------------------------------


def drawn(keys: list[int], seed: int = 0, size: int = 20) -> list[int]:
    sample = SampleDraw(size, seed=seed)
    for key in keys:
        sample.add(Recorded(key=key))
    return [one.key for one in sample.draw().recorded]


def test_a_seed_draws_the_same_sample_whatever_the_order() -> None:
    keys = list(range(500))
    shuffled = random.Random(1).sample(keys, 500)
    assert drawn(keys) == drawn(shuffled)
    assert drawn(keys) != drawn(keys, seed=1)
    assert len(set(drawn(keys))) == 20


def test_every_item_has_the_same_chance() -> None:
    """Of 10 items 3 are drawn; over 2,000 seeds each comes 600 times, give or take 5 sigmas."""
    counts = [0] * 10
    for seed in range(2000):
        for key in drawn(list(range(10)), seed=seed, size=3):
            counts[key] += 1
    assert sum(counts) == 6000
    assert all(abs(count - 600) < 103 for count in counts)


def test_each_status_has_its_share_and_one_at_least() -> None:
    sample = SampleDraw(20, stratify=True)
    for key in range(1000):
        status = "timed_out" if key == 5 else "failed" if key % 4 == 0 else "ok"
        sample.add(Recorded(key=key, status=status))
    statuses = [one.status for one in sample.draw().recorded]
    assert {one: statuses.count(one) for one in set(statuses)} == {
        "ok": 14,
        "failed": 5,
        "timed_out": 1,
    }


@pytest.mark.slow
def test_of_duplicates_the_first_counts() -> None:
    found = verify(upper, [*recorded("T0", "T1"), *recorded("no")])
    assert verdicts(found) == ["same", "same"]
    assert "results with the key of an earlier one, which counts alone: 1" in str(found)


# Differences -----------------------------------------------------------------------------------


@attrs.frozen
class Point:
    x: int
    label: str = ""


def test_differences_are_told_field_by_field() -> None:
    one = {"a": 1, "b": [1, {"c": "x"}], "d e": True, "gone": 0}
    other = {"a": 1.0, "b": [1, {"c": "y"}, 3], "d e": 1, "new": None}
    assert [str(each) for each in differences(one, other)] == [
        ".b[1].c: 'x' in the batch, 'y' alone",
        ".b[2]: nothing in the batch, 3 alone",
        "['d e']: True in the batch, 1 alone",
        ".gone: 0 in the batch, nothing alone",
        ".new: nothing in the batch, None alone",
    ]
    assert [each.path for each in differences(Point(1, "a"), Point(2, "a"))] == [".x"]
    assert differences({"a": 1, "b": 2}, {"b": 2, "a": 1}) == ()


def test_deep_values_are_compared() -> None:
    deep: list[Any] = [1]
    other: list[Any] = [2]
    for _ in range(200):
        deep, other = [deep], [other]
    assert len(differences(deep, other)) == 1
