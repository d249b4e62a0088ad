"""A window in shared memory gives the answers of the one that each process keeps for itself."""

from __future__ import annotations

from math import inf

import hypothesis.strategies as st
import pytest
from hypothesis import given

from harness.limits._across_processes._shared_window import RING, SharedWindow
from harness.limits._window import EXACT_CELLS, SlidingCap


def shared_window(*, limit: float, period: float, shift: float = 0.0) -> SharedWindow:
    memory: memoryview[float] = memoryview(bytearray(8 * (5 + 2 * RING))).cast("d")

    def poke(index: int, number: float) -> None:
        memory[index] = number

    return SharedWindow(limit=limit, period=period, shift=shift, memory=memory, start=5, poke=poke)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "adjust", "look"]),
        st.floats(0, 3),  # How much later than the step before.
        st.integers(1, 12),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([0.0, 1000.5, -250.25]))
@pytest.mark.slow
def test_it_answers_as_a_window_of_lists_does(
    steps: list[tuple[str, float, int]], shift: float
) -> None:
    plain = SlidingCap(limit=20, period=6)
    shared = shared_window(limit=20, period=6, shift=shift)
    now = 1000.0
    taken_at = [now]
    for step, later, amount in steps:
        now += round(later * 1024) / 1024  # So that no sum of times is rounded.
        if step == "take":
            free_at = plain.free_at(amount, now), shared.free_at(amount, now)
            assert abs(free_at[0] - free_at[1]) < 1e-9
            assert (free_at[0] <= now) == (free_at[1] <= now)
            plain.take(amount, now)
            shared.take(amount, now)
            taken_at.append(now)
        elif step == "adjust":
            moment = taken_at[amount % len(taken_at)]
            plain.adjust(amount - 6, taken_at=moment, now=now)
            shared.adjust(amount - 6, taken_at=moment, now=now)
        other = shared_window(limit=20, period=6, shift=shift)
        other.memory, other.poke = shared.memory, shared.poke
        other.restore(shared.numbers())
        shared = other  # As if each step were another process's.
        assert shared.used(now) == plain.used(now)
        assert shared.taken_since(now - 2) == plain.taken_since(now - 2)


def test_many_moments_share_cells_and_are_counted_late_rather_than_early() -> None:
    window = shared_window(limit=inf, period=1.0)
    for number in range(10 * EXACT_CELLS):
        window.take(1, 100 + number / (10 * EXACT_CELLS))
    assert window._count <= 2 * EXACT_CELLS
    assert window.used(100.99999) == 10 * EXACT_CELLS
    assert 0 <= window.used(101.5) - 5 * EXACT_CELLS <= 10


def test_what_was_taken_at_an_unknown_time_counts_as_taken_now() -> None:
    window = shared_window(limit=10, period=6)
    window.take(4, 1.0)
    window.take(3, 2.0)
    window.charge_all_now(500.0)
    assert window.used(505.9) == 7
    assert window.used(506.1) == 0
