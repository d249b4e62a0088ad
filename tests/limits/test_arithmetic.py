"""The pure parts: bucket, window, line, estimates, adaptive limit, pauses, health."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.limits import ProviderProfile, Rate, requested_output_tokens
from harness.limits._aimd import Aimd
from harness.limits._bucket import PacedBucket
from harness.limits._estimates import UNKNOWN_OUTPUT_TOKENS, Estimates
from harness.limits._health import Health
from harness.limits._line import MAX_OVERTAKES, Line, Place
from harness.limits._pauses import Pauses, jitter_seconds
from harness.limits._provider_count import ProviderCount
from harness.limits._window import EXACT_CELLS, SlidingCap

EXAMPLES = settings(max_examples=150, deadline=None)


# The bucket ------------------------------------------------------------------------------------


def test_a_bucket_holds_a_burst_and_no_more() -> None:
    bucket = PacedBucket(per_second=2, burst=4)
    assert bucket.wait_seconds(4, now=0) == 0
    bucket.take(4, now=0)
    assert bucket.wait_seconds(1, now=0) == 0.5
    assert bucket.level(now=1) == 2
    assert bucket.level(now=1_000) == 4


def test_what_is_above_the_burst_waits_for_a_full_bucket_and_leaves_a_debt() -> None:
    bucket = PacedBucket(per_second=1, burst=5)
    bucket.take(1, now=0)
    assert bucket.wait_seconds(20, now=0) == 1
    bucket.take(20, now=1)
    assert bucket.level(now=1) == -15
    assert bucket.wait_seconds(1, now=1) == 16


def test_what_is_given_back_beyond_the_burst_doubles_the_pace_until_it_is_used() -> None:
    bucket = PacedBucket(per_second=1, burst=5)
    bucket.take(1, now=0)
    bucket.give(4, now=0)
    assert bucket.level(now=0) == 5, "never more than the burst at once"
    bucket.take(5, now=0)
    assert bucket.wait_seconds(5, now=0) == 2.5
    assert bucket.wait_seconds(10, now=0) == 2.5
    bucket.take(5, now=2.5)
    assert bucket.wait_seconds(5, now=2.5) == 4.5, "half of it at double pace"


def test_idle_time_uses_up_what_was_given_back() -> None:
    bucket = PacedBucket(per_second=1, burst=5)
    bucket.take(1, now=0)
    bucket.give(4, now=0)
    assert bucket.surplus == 3
    bucket.level(now=10)
    assert bucket.surplus == 0
    bucket.give(4, now=10)
    assert bucket.surplus == 0, "time had filled the bucket before"


def test_a_pause_ends_with_a_trickle() -> None:
    bucket = PacedBucket(per_second=10, burst=10)
    bucket.drain_until(30, now=0, keep=1)
    assert bucket.wait_seconds(1, now=0) == 30
    assert bucket.level(now=30) == 1
    bucket.take(1, now=30)
    assert bucket.wait_seconds(1, now=30) == pytest.approx(0.1)


def test_a_wait_that_the_clock_cannot_show_is_none() -> None:
    bucket = PacedBucket(per_second=1e6, burst=1)
    now = 1e6
    bucket.take(1, now)
    for _ in range(50):
        wait = bucket.wait_seconds(1, now)
        if now + wait == now:
            break
        now += wait
    else:
        pytest.fail("the bucket never had enough")


# The window ------------------------------------------------------------------------------------


def test_a_charge_leaves_after_exactly_one_period() -> None:
    window = SlidingCap(limit=2, period=10)
    window.take(1, now=0)
    window.take(1, now=3)
    assert window.free_at(1, now=5) == 10
    assert window.free_at(2, now=5) == 13
    assert window.free_at(1, now=10) == 10
    window.take(1, now=10)
    assert window.free_at(1, now=10) == 13


def test_more_than_the_limit_waits_for_an_empty_window() -> None:
    window = SlidingCap(limit=5, period=10)
    window.take(1, now=0)
    window.take(1, now=4)
    assert window.free_at(50, now=5) == 14
    window.take(50, now=14)
    assert window.free_at(1, now=20) == 24


def test_a_charge_can_be_changed_while_it_is_in_the_window() -> None:
    window = SlidingCap(limit=10, period=10)
    window.take(4, now=0)
    window.take(4, now=1)
    window.adjust(-3, taken_at=0, now=2)
    assert window.used(2) == 5
    window.adjust(2, taken_at=1, now=2)
    assert window.used(2) == 7
    assert window.used(10) == 6
    window.adjust(-1, taken_at=0, now=10)
    assert window.used(10) == 6, "it is gone, with all that it charged"
    window.adjust(2, taken_at=0, now=10)
    assert window.used(10) == 8, "what it used beyond itself is charged now"
    assert window.used(11) == 2


@pytest.mark.slow
@given(
    limit=st.integers(1, 20),
    steps=st.lists(
        st.tuples(st.floats(0, 7, allow_nan=False), st.integers(1, 25)), min_size=1, max_size=60
    ),
)
@EXAMPLES
def test_no_window_is_over_the_limit_and_no_grant_is_late(
    limit: int, steps: list[tuple[float, int]]
) -> None:
    """Against an obvious, slow model: sum all charges that are less than a period old."""
    window = SlidingCap(limit=limit, period=10)
    charges: list[tuple[float, int]] = []
    now = 0.0

    def used(moment: float) -> int:
        return sum(amount for stamp, amount in charges if moment - stamp < 10)

    for gap, amount in steps:
        now += gap
        moment = window.free_at(amount, now)
        assert moment >= now
        if moment > now:
            assert used(moment - 1e-9) + min(amount, limit) > limit, "too late"
        assert used(moment) + min(amount, limit) <= limit, "too early"
        now = moment
        window.take(amount, now)
        charges.append((now, amount))
        assert window.used(now) == used(now)


@pytest.mark.slow
def test_memory_is_bounded_and_the_promise_stays_exact() -> None:
    """Past 2,048 moments cells are shared, and free their charges late, never early."""
    limit, period = 50_000, 60.0
    window = SlidingCap(limit=limit, period=period)
    draws = random.Random(1)
    stamps: list[float] = []
    now, most_cells = 0.0, 0
    while now < 4 * period:
        now = max(now + draws.uniform(0, 0.002), window.free_at(1, now))
        window.take(1, now)
        stamps.append(now)
        most_cells = max(most_cells, window.cells())
    assert most_cells <= 3 * EXACT_CELLS + 1
    for first, last in zip(stamps, stamps[limit:], strict=False):
        assert last - first >= period
    free = SlidingCap(limit=limit, period=period)
    for _ in range(limit):
        free.take(1, now=0)
    assert free.cells() == 1


def test_a_shared_cell_frees_at_most_a_two_thousandth_late() -> None:
    limit, period = 10_000, 60.0
    window = SlidingCap(limit=limit, period=period)
    for index in range(limit):
        window.take(1, now=index * period / limit / 2)
    late = window.free_at(1, now=period) - period
    assert 0 <= late <= period / EXACT_CELLS


@pytest.mark.parametrize("seed", range(5))
def test_charges_in_shared_cells_can_be_changed(seed: int) -> None:
    draws = random.Random(seed)
    window = SlidingCap(limit=10**9, period=10)
    now, total = 0.0, 0
    taken: list[tuple[float, int]] = []
    for _ in range(6_000):
        now += draws.uniform(0, 0.003) * draws.choice([0, 1, 1, 1])
        amount = draws.randint(1, 400)
        window.take(amount, now)
        taken.append((now, amount))
        total += amount
    assert now < 10
    assert window.cells() < 6_000
    for stamp, amount in draws.sample(taken, 3_000):
        window.adjust(-amount, taken_at=stamp, now=now)
        total -= amount
    assert window.used(now) == total == sum(window._amounts)
    assert min(window._amounts) >= 0
    assert window.free_at(10**9 - total, now) == now
    assert window.used(now + 10) == 0


# The line --------------------------------------------------------------------------------------


class Waiting(Place):
    def __init__(self, name: str) -> None:
        self.name = name


def serve_all(line: Line[Waiting]) -> list[str]:
    served = []
    while (head := line.head()) is not None:
        line.serve(head)
        served.append(head.name)
    return served


def test_first_come_first_served_inside_a_priority() -> None:
    line: Line[Waiting] = Line()
    for index in range(300):
        line.join(Waiting(f"{index % 3}-{index:03}"), priority=index % 3)
    served = serve_all(line)
    assert served == sorted(served, key=lambda name: (-int(name[0]), name))


def test_starving_changes_no_order_inside_a_priority() -> None:
    line: Line[Waiting] = Line()
    for index in range(3_000):
        line.join(Waiting(f"{index % 3}-{index:04}"), priority=index % 3)
    served = serve_all(line)
    assert len(served) == 3_000
    for priority in "012":
        own = [name for name in served if name[0] == priority]
        assert own == sorted(own)


def test_who_leaves_is_not_served() -> None:
    line: Line[Waiting] = Line()
    waiters = [Waiting(str(index)) for index in range(10)]
    for waiter in waiters:
        line.join(waiter, 0)
    for waiter in waiters[::2]:
        line.leave(waiter)
    assert line.count == 5
    assert serve_all(line) == ["1", "3", "5", "7", "9"]


def test_join_says_whether_the_head_may_have_changed() -> None:
    line: Line[Waiting] = Line()
    first = Waiting("first")
    assert line.join(first, 0)
    assert not line.join(Waiting("second"), 0)
    assert line.join(Waiting("urgent"), 1)
    line.leave(first)
    alone: Line[Waiting] = Line()
    gone = Waiting("gone")
    alone.join(gone, 0)
    alone.leave(gone)
    assert alone.join(Waiting("next"), 0)


def test_nobody_starves_behind_an_endless_stream_of_a_higher_priority() -> None:
    line: Line[Waiting] = Line()
    low = Waiting("low")
    line.join(low, 0)
    served = 0
    while low.in_line:
        line.join(Waiting("high"), 10)
        line.join(Waiting("high"), 10)
        head = line.head()
        assert head is not None
        line.serve(head)
        served += 1
        assert served <= MAX_OVERTAKES + 2
    assert served > MAX_OVERTAKES, "before that, priority holds"


def test_many_starving_ones_leave_every_second_place_to_others() -> None:
    line: Line[Waiting] = Line()
    for _ in range(1_000):
        line.join(Waiting("low"), 0)
    served = []
    for _ in range(2 * MAX_OVERTAKES + 200):
        line.join(Waiting("high"), 1)
        head = line.head()
        assert head is not None
        line.serve(head)
        served.append(head.name)
    assert served[-100:].count("high") == 50


def test_those_that_left_do_not_pile_up_behind_a_head_that_waits() -> None:
    line: Line[Waiting] = Line()
    line.join(Waiting("head"), 0)
    for index in range(10_000):
        waiter = Waiting("impatient")
        line.join(waiter, index % 7 - 10)
        line.leave(waiter)
    assert line._in_lanes + len(line._arrivals) < 200


def test_those_that_starved_do_not_pile_up_in_their_lane() -> None:
    """Served out of turn, they stay in a lane that never comes to the front by itself."""
    line: Line[Waiting] = Line()
    for _ in range(5_000):
        line.join(Waiting("low"), 0)
        line.join(Waiting("high"), 1)
        for _ in range(2 if line.count > 700 else 1):
            head = line.head()
            assert head is not None
            line.serve(head)
        assert line._in_lanes + len(line._arrivals) <= 4 * line.count + 66
    assert line._in_lanes == sum(map(len, line._lanes.values()))


@pytest.mark.slow
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["join", "serve", "leave"]), st.integers(0, 40)), max_size=200
    )
)
@EXAMPLES
def test_the_order_is_that_of_an_obvious_line(steps: list[tuple[str, int]]) -> None:
    """A short line, in which nobody starves: the largest priority, then the first to come."""
    line: Line[Waiting] = Line()
    waiting: list[tuple[float, int, Waiting]] = []
    for number, (step, value) in enumerate(steps):
        if step == "join":
            priority = value % 5 - 2
            waiter = Waiting(str(number))
            waiting.append((-priority, number, waiter))
            waiting.sort(key=lambda place: place[:2])
            assert line.join(waiter, priority) == (waiting[0][2] is waiter)
        elif waiting and step == "serve":
            head = line.head()
            assert head is waiting.pop(0)[2]
            line.serve(head)
        elif waiting:
            line.leave(waiting.pop(value % len(waiting))[2])
        assert line.count == len(waiting)
        assert line.head() is (waiting[0][2] if waiting else None)
    assert line.clear() == [place[2] for place in sorted(waiting, key=lambda place: place[1])]
    assert line.head() is None


# Estimates -------------------------------------------------------------------------------------


def test_an_estimate_is_the_input_and_the_mean_of_real_outputs() -> None:
    estimates = Estimates()
    assert estimates.output_tokens("m", input_tokens=10) == UNKNOWN_OUTPUT_TOKENS
    for output in (100, 200, 300):
        estimates.learn("m", input_tokens=50, output_tokens=output, total_tokens=None)
    assert estimates.output_tokens("m", input_tokens=10) == 200
    assert estimates.input_tokens("m") == 50
    assert estimates.output_tokens("other", input_tokens=10) == UNKNOWN_OUTPUT_TOKENS


def test_a_total_alone_tells_the_output() -> None:
    estimates = Estimates()
    estimates.learn("m", input_tokens=None, output_tokens=None, total_tokens=500)
    assert estimates.output_tokens("m", input_tokens=100) == 400
    assert estimates.output_tokens("m", input_tokens=900) == 0


def test_the_average_moves() -> None:
    estimates = Estimates()
    for _ in range(50):
        estimates.learn("m", input_tokens=0, output_tokens=100, total_tokens=None)
    for _ in range(60):
        estimates.learn("m", input_tokens=0, output_tokens=1_000, total_tokens=None)
    assert estimates.output_tokens("m", input_tokens=0) > 990


def test_names_of_models_are_bounded() -> None:
    estimates = Estimates()
    for index in range(5_000):
        estimates.learn(str(index), input_tokens=1, output_tokens=1, total_tokens=None)
    assert len(estimates._models) <= 256
    assert estimates.output_tokens("4999", input_tokens=1) == 1


@pytest.mark.parametrize(
    ("request_body", "largest"),
    [
        ({"max_tokens": 1, "max_completion_tokens": 10_000}, 10_000),
        ({"max_tokens": 50}, 50),
        ({"max_output_tokens": 70, "n": 3}, 210),
        ({"max_tokens": "many"}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": -1}, None),
        ({}, None),
    ],
)
def test_the_larger_of_two_caps_is_reserved(
    request_body: dict[str, object], largest: int | None
) -> None:
    assert requested_output_tokens(request_body) == largest


# The adaptive limit ----------------------------------------------------------------------------


def test_a_long_retry_after_does_not_freeze_the_limit() -> None:
    """Each 429 moved one common clock by 89 s, so the limit was cut once and never again."""
    aimd = Aimd(minimum=1, start=100, maximum=100, cooldown=15)
    for step in range(400):
        aimd.record(status=429, in_use=1, now=2.0 * step)
    assert aimd.limit == 1


def test_one_overload_is_one_cut() -> None:
    aimd = Aimd(minimum=1, start=64, maximum=100, cooldown=15)
    for _ in range(50):
        aimd.record(status=429, in_use=64, now=1.0)
    assert aimd.limit == 32


def test_it_grows_by_one_per_full_round_and_only_when_saturated() -> None:
    aimd = Aimd(minimum=1, start=10, maximum=12, cooldown=15)
    for _ in range(100):
        aimd.record(status=200, in_use=9, now=0.0)
    assert aimd.limit == 10
    for _ in range(11):
        aimd.record(status=200, in_use=10, now=0.0)
    assert aimd.limit == 11
    for _ in range(100):
        aimd.record(status=200, in_use=100, now=0.0)
    assert aimd.limit == 12


def test_a_server_error_freezes_growth_and_cuts_nothing() -> None:
    aimd = Aimd(minimum=1, start=2, maximum=100, cooldown=15)
    aimd.record(status=503, in_use=2, now=0.0)
    for _ in range(100):
        aimd.record(status=200, in_use=100, now=14.0)
    assert aimd.limit == 2
    for _ in range(3):
        aimd.record(status=200, in_use=100, now=15.0)
    assert aimd.limit == 3


# Pauses, health, the provider's count ----------------------------------------------------------


@pytest.mark.parametrize(("seconds", "most"), [(30, 10), (2, 3), (120, 10), (0, 3)])
def test_jitter_is_positive_and_bounded(seconds: float, most: float) -> None:
    assert jitter_seconds(seconds, draw=0) == 0
    assert 0 < jitter_seconds(seconds, draw=1) <= most


def test_refusals_of_one_epoch_are_one_pause() -> None:
    pauses = Pauses()
    assert pauses.refused(10, epoch=0, now=0, draw=0)
    assert not pauses.refused(60, epoch=0, now=5, draw=0)
    assert pauses.closed_until == 10
    assert not pauses.refused(60, epoch=0, now=20, draw=0), "sent before the pause"
    assert pauses.refused(60, epoch=1, now=20, draw=0)
    assert pauses.closed_until == 80


def test_without_a_delay_the_pauses_grow_until_something_gets_through() -> None:
    pauses = Pauses()
    ends = []
    for epoch in range(9):
        now = 1_000.0 * epoch
        assert pauses.refused(None, epoch=epoch, now=now, draw=0)
        ends.append(pauses.closed_until - now)
    assert ends == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    pauses.got_through(epoch=3)
    assert pauses.streak == 9, "an answer to an old request proves nothing"
    pauses.got_through(epoch=9)
    assert pauses.streak == 0


def test_a_first_failure_decides_and_one_among_many_does_not() -> None:
    health = Health()
    health.failed(now=0)
    assert health.rests_until == 10
    health.good += 1
    health.failed(now=11)
    assert health.rests_until == 31, "twice as long"
    health.good += 50
    health.failed(now=40)
    assert health.rests_until == 31


def test_others_use_spaces_our_own_before_the_wall() -> None:
    def granted_in_a_second(*, remaining: float, shared: bool) -> int:
        count = ProviderCount(
            remaining=remaining,
            limit=600,
            per_second=10,
            heard_at=0,
            forget_at=60,
            shared=shared,
        )
        now, granted = 0.0, 0
        while (now := count.free_at(1, now)) < 1:
            count.take(1, now)
            granted += 1
        return granted

    assert granted_in_a_second(remaining=5, shared=False) == 14, "5, and 9 that come back"
    assert granted_in_a_second(remaining=60, shared=True) <= 6
    assert granted_in_a_second(remaining=12, shared=True) <= 2
    assert granted_in_a_second(remaining=500, shared=True) > 300


@pytest.mark.parametrize(
    ("amount", "period", "error"),
    [
        (0, 60, ValueError),
        (-1, 60, ValueError),
        (math.nan, 60, ValueError),
        (math.inf, 60, ValueError),
        ("5", 60, TypeError),
        (True, 60, TypeError),
        (5, 0, ValueError),
        (5, -1, ValueError),
        (5, None, TypeError),
    ],
)
def test_a_senseless_rate_is_refused(
    amount: object, period: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Rate(amount, period)  # type: ignore[arg-type]


def test_a_profile_can_be_ones_own() -> None:
    own = ProviderProfile(name="mine", renamed={"requests": "requests_day"})
    assert own.renamed["requests"] == "requests_day"
    with pytest.raises(TypeError):
        own.renamed["requests"] = "tokens"  # type: ignore[index]
