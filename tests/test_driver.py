"""Whatever strikes at whatever step, under every pair of options: nothing is lost, left or held."""

from __future__ import annotations

import itertools
import warnings

import pytest

from tests.scale import scaled
from tests.support.driver import OPTIONS, POLICIES, case_of, drive

SEEDS = scaled(600, full=20_000)
AT_ONCE = 100
"""How many seeds are one test."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_whatever_strikes_nothing_is_lost_left_or_held(first: int) -> None:
    with warnings.catch_warnings():
        # A task that is struck before its first step leaves what it was to await.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")
        for seed in range(first, first + AT_ONCE):
            drive(seed)


def test_every_pair_of_options_is_among_the_cases() -> None:
    choices = {"policy": list(POLICIES), **OPTIONS}
    met = set()
    for seed in range(SEEDS):
        case = case_of(seed)
        drawn = {"policy": case.policy, "fault": case.fault, **case.options}
        met |= set(itertools.combinations(sorted(drawn.items()), 2))
    wanted = {
        ((one, first), (other, second))
        for one, other in itertools.combinations(sorted(choices), 2)
        for first in choices[one]
        for second in choices[other]
    }
    missing = {pair for pair in wanted - met if not _excluded(dict(pair))}
    assert not missing


def _excluded(pair: dict[str, object]) -> bool:
    """Return whether two options are not for each other: results in order are a stream's."""
    order, form = pair.get("order"), str(pair.get("form", ""))
    in_order = order == "ordered" and bool(form) and "stream" not in form
    return in_order or (order in ("priority", "serial_by") and form.startswith("pipeline"))
