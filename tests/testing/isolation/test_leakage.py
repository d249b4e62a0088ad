"""Measure how often runs leak, against programs of which arithmetic says how often they do."""

import asyncio
import pickle
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import trio
import trio.lowlevel

from harness.errors import ScheduleError
from harness.testing import Isolation, Leakage, assert_isolated
from tests.scale import scaled

pytestmark = pytest.mark.slow

HERE = __name__
SCHEDULES = 600


class Desk:
    """Where a run leaves its ticket and finds it later, or another's."""

    ticket: str
    note: str


desk = Desk()


async def on_trio(ticket: str) -> str:
    desk.ticket = ticket
    await trio.lowlevel.checkpoint()
    return desk.ticket


async def on_asyncio(ticket: str) -> str:
    desk.ticket = ticket
    await asyncio.sleep(0)
    return desk.ticket


def in_threads(ticket: str) -> str:
    desk.ticket = ticket
    return desk.ticket


def by_arithmetic(runs: int, *, steps: int, writes: int, reads: int) -> tuple[Fraction, Fraction]:
    """Return the chance that any of so many runs leaks, and how many do on average.

    A run writes in one of its steps and reads in a later one; it leaks if another has written in
    between. At every step each run that hasn't ended is as likely to make it.
    """

    @cache
    def chances(made: tuple[int, ...], last: int, leaked: bool) -> tuple[Fraction, Fraction]:
        alive = [run for run, count in enumerate(made) if count < steps]
        if not alive:
            return Fraction(leaked), Fraction(0)
        schedules = average = Fraction(0)
        for run in alive:
            step = made[run] + 1
            leaks = step == reads and last != run
            after = (*made[:run], step, *made[run + 1 :])
            wrote = run if step == writes else last
            some, more = chances(after, wrote, leaked or leaks)
            schedules += some / len(alive)
            average += (more + leaks) / len(alive)
        return schedules, average

    return chances((0,) * runs, -1, False)


async def measured(agent: Callable[[str], Any], inputs: str = "abc", **options: Any) -> Leakage:
    """Return what is measured of an agent that leaks."""
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(
            agent, list(inputs), **{"schedules": 20, "measure": SCHEDULES, **options}
        )
    leakage = caught.value.leakage
    assert str(leakage) in str(caught.value)
    assert isinstance(leakage, Leakage)
    assert pickle.loads(pickle.dumps(caught.value)).leakage == leakage
    return leakage


def test_the_arithmetic_of_two_runs() -> None:
    """Whoever writes first is overtaken with a chance of a half; the other never is."""
    assert by_arithmetic(2, steps=2, writes=1, reads=2) == (Fraction(1, 2), Fraction(1, 2))


@pytest.mark.parametrize(
    ("agent", "steps"),
    [
        (on_trio, {"steps": 2, "writes": 1, "reads": 2}),
        (on_asyncio, {"steps": 2, "writes": 1, "reads": 2}),
        # Before each global and each attribute, a thread can be left for another.
        (in_threads, {"steps": 5, "writes": 3, "reads": 5}),
    ],
)
async def test_the_shares_are_those_of_arithmetic(
    agent: Callable[[str], Any], steps: dict[str, int]
) -> None:
    leakage = await measured(agent, measure=scaled(SCHEDULES, full=6_000))
    assert [row.at_once for row in leakage.at_once] == [2, 3]
    for row in leakage.at_once:
        schedules, runs = by_arithmetic(row.at_once, **steps)
        assert row.schedules.of == scaled(SCHEDULES, full=6_000) / 2
        assert row.runs.of == row.schedules.of * row.at_once
        assert row.schedules.low <= schedules <= row.schedules.high
        assert row.runs.low <= runs / row.at_once <= row.runs.high
        assert row.schedules.high - row.schedules.low < 0.12
    (through,) = leakage.through
    assert through.path == f"{HERE}.desk.ticket"
    assert through.schedules.share == through.runs.share == 1


async def test_the_interval_is_right_for_most_seeds() -> None:
    """One in 20 is expected to miss; three times that would be a wrong interval."""
    schedules, runs = by_arithmetic(2, steps=2, writes=1, reads=2)
    right, seeds = 0, scaled(7, full=40)
    for seed in range(seeds):
        (row,) = (await measured(on_asyncio, "ab", measure=100, seed=seed)).at_once
        right += row.schedules.low <= schedules <= row.schedules.high
        right += row.runs.low <= runs / 2 <= row.runs.high
    assert right >= 2 * seeds * 0.85


async def test_each_object_gets_the_share_of_what_leaks_through_it() -> None:
    """One in three leaks through one object, two through the other: a third against two thirds."""

    async def agent(name: str) -> str:
        desk.ticket = desk.note = name
        await trio.lowlevel.checkpoint()
        return desk.note if name == "a" else desk.ticket

    leakage = await measured(agent)
    shares = {one.path.rpartition(".")[2]: one.runs for one in leakage.through}
    assert list(shares) == ["ticket", "note"]
    assert shares["ticket"].low < 2 / 3 < shares["ticket"].high
    assert shares["note"].low < 1 / 3 < shares["note"].high
    assert shares["ticket"].found + shares["note"].found == shares["note"].of


async def test_a_right_agent_leaks_in_no_schedule_and_the_interval_says_how_sure_that_is() -> None:
    async def agent(name: str) -> str:
        await trio.lowlevel.checkpoint()
        return name

    seen = await assert_isolated(agent, list("abcde"), schedules=20, measure=300)
    assert isinstance(seen, Isolation)
    assert seen.leakage is not None
    assert [row.at_once for row in seen.leakage.at_once] == [2, 4, 5]
    for row in seen.leakage.at_once:
        assert row.schedules.found == row.runs.found == 0
        assert row.schedules.of == 100
        assert 0.03 < row.schedules.high < 0.04
    assert seen.leakage.through == ()
    assert (await assert_isolated(agent, ["a", "b"], schedules=20)).leakage is None


async def test_what_only_the_measurement_finds_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search tries one schedule here, the plain one, in which runs don't meet."""
    with pytest.raises(ScheduleError, match="measured in 50 schedules") as caught:
        await assert_isolated(on_asyncio, ["a", "b"], schedules=1, measure=50)
    assert caught.value.objects == (f"{HERE}.desk.ticket",)
    assert caught.value.schedules_run == 51
    with pytest.raises(ScheduleError):
        await assert_isolated(on_asyncio, ["a", "b"], schedule=caught.value.schedule)


async def test_the_same_seed_measures_the_same() -> None:
    one, other = [await measured(on_trio, seed=3, measure=50) for _ in range(2)]
    assert one == other


async def test_calls_inside_one_run_are_measured_there() -> None:
    leakage = await measured(on_trio, "ab", same_run=True, measure=100)
    assert leakage.at_once[0].schedules.low < 0.5 < leakage.at_once[0].schedules.high


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"measure": 0},
            r"measure=\.\.\.\) takes a whole number from 1 upwards, not 0; leave it out",
        ),
        ({"measure": 5, "schedule": "h1:-:-:-"}, "got measure= and schedule="),
    ],
)
async def test_bad_input_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        await assert_isolated(on_trio, ["a", "b"], **options)
