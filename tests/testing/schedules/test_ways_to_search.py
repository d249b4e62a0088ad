"""Priorities find what their bound says, and a search that draws ends when it has seen enough."""

import statistics
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio

from harness.testing import Found, NotFound, find_schedule
from harness.testing.schedules._choosers import Priorities
from harness.testing.schedules._orders_seen import Seen, most_expected
from tests.scale import scaled
from tests.testing.schedules.programs import letters
from tests.testing.schedules.toys import steps


def in_a_row(depth: int, before: int) -> Callable[[], Any]:
    """Return a test that fails if so many things happen in one order of two tasks."""

    async def program() -> None:
        stage = 0

        async def even() -> None:
            nonlocal stage
            await steps(before)
            for number in range(0, depth, 2):
                stage = number + 1 if stage == number else stage
                await steps(2)

        async def odd() -> None:
            nonlocal stage
            for number in range(1, depth, 2):
                stage = number + 1 if stage == number else stage
                await steps(2)
            await steps(before)

        async def idle() -> None:
            await steps(before)

        async with trio.open_nursery() as nursery:
            for task in (odd, even, idle, idle):
                nursery.start_soon(task)
        assert stage < depth

    return program


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "before"), [(2, 12), (3, 12)])
def test_priorities_find_a_fault_at_least_as_often_as_their_bound_says(
    depth: int, before: int
) -> None:
    tries = scaled(60, full=2_000)
    program = in_a_row(depth, before)
    failed = 0

    def judge(run: Any) -> None:
        nonlocal failed
        failed += run.error is not None

    found = find_schedule(program, schedules=tries, search="priorities", depth=depth, judge=judge)
    assert isinstance(found, NotFound)
    assert found.bound is not None
    assert failed / tries >= 1 / found.bound.one_in


@pytest.mark.long
def test_priorities_find_deep_faults_sooner_than_choices_at_random() -> None:
    """Of a task that must stay put while others get far."""
    seeds = scaled(5, full=30)

    def median(way: Any) -> float:
        return statistics.median(
            found.schedules_run if isinstance(found, Found) else 100
            for seed in range(seeds)
            for found in [
                find_schedule(
                    in_a_row(2, 12), schedules=100, seed=seed, search=way, depth=2, shrink=False
                )
            ]
        )

    assert median("priorities") * 3 < median("random")


@pytest.mark.slow
def test_the_bound_is_said() -> None:
    found = find_schedule(lambda: letters("ab", 3), schedules=100, search="priorities", depth=2)
    assert isinstance(found, NotFound)
    assert found.bound is not None
    assert found.bound.one_in == found.bound.tasks * found.bound.decisions
    assert found.bound.tasks == 3, "the main one counts"
    assert found.bound.chance == pytest.approx(1 - (1 - 1 / found.bound.one_in) ** 100)
    assert f"at least 1 in {found.bound.one_in} (3 tasks" in found.in_words


def test_the_last_task_to_drop_need_not_be_the_lowest() -> None:
    """With drops that only ever get lower, some orders of depth 3 never came."""
    orders = set()
    for seed in range(40):
        chooser = Priorities(Random(seed), 2, 2)
        orders.add(tuple(sorted(chooser.falls_to, key=chooser.falls_to.__getitem__)))
    assert orders == {(0, 1), (1, 0)}


# When to stop -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", ["random", "priorities"])
def test_a_search_ends_when_one_more_schedule_would_hardly_show_anything(way: Any) -> None:
    found = find_schedule(lambda: letters("ab"), schedules=2_000, search=way, enough_below=0.1)
    assert isinstance(found, NotFound)
    assert found.seen is not None
    assert found.seen.distinct == 6
    assert found.schedules_run < 120
    assert found.seen.chance_of_new is not None
    assert found.seen.chance_at_most is not None
    assert found.seen.chance_of_new <= found.seen.chance_at_most < 0.1
    assert not found.exhausted, "it is only unlikely"
    assert "one more shows a new one with a chance of about" in found.in_words


@pytest.mark.slow
def test_a_search_that_still_finds_new_orders_goes_on() -> None:
    found = find_schedule(
        lambda: letters("abc", 4), schedules=40, search="random", enough_below=0.1
    )
    assert isinstance(found, NotFound)
    assert found.schedules_run == 40


@pytest.mark.parametrize(("count", "limit"), [(0, 3.689), (1, 5.572), (10, 18.39)])
def test_the_limit_is_the_usual_one_of_a_count(count: int, limit: float) -> None:
    assert most_expected(count) == pytest.approx(limit, abs=0.01)


@pytest.mark.slow
def test_the_chance_of_something_new_is_below_its_limit_19_times_in_20() -> None:
    """Checked with drawn kinds of known chances: the true chance is that of all that are unseen."""
    random = Random(5)
    below = 0
    trials = 400
    for _ in range(trials):
        weights = [random.random() ** 4 for _ in range(60)]
        drawn = random.choices(range(60), weights, k=150)
        seen = Seen(independent=True)
        seen.runs = len(drawn)
        seen.counts = {kind: drawn.count(kind) for kind in set(drawn)}
        unseen = sum(weight for kind, weight in enumerate(weights) if kind not in seen.counts)
        below += unseen / sum(weights) <= seen.chance_at_most()
    assert below / trials >= 0.95


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"search": "pct"}, "must be one of 'mixed', 'distinct', 'priorities', 'random'"),
        ({"search": "priorities", "depth": 0}, "depth"),
        ({"search": "random", "enough_below": 1.5}, "between 0 and 1, not 1.5"),
        ({"enough_below": 0.1}, 'ask for search="random" or search="priorities"'),
        ({"starved_after": 0}, "starved_after"),
        ({"search": "distinct", "arrivals_only": True}, "about the order of steps alone"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        find_schedule(letters, **settings)
