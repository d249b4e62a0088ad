"""A real Ctrl-C, at any moment, ends the program as it ends one in plain trio: nothing hangs."""

from __future__ import annotations

import os

import pytest

from tests.scale import scaled
from tests.support.signals import strikes

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.skipif(os.name != "posix", reason="needs the system's timer"),
]

SEEDS = scaled(300, full=10_000)
AT_ONCE = scaled(100, full=500)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_a_ctrl_c_leaves_nothing_and_hangs_nowhere(first: int) -> None:
    """Only what strikes code of the user's, or unprotected functions of trio, may do harm."""
    found = strikes("harness", first, first + AT_ONCE)
    assert len(found) == AT_ONCE
    assert sum(bool(one.place) for one in found) > AT_ONCE / 10, "they hardly struck"
    assert [one for one in found if one.wrong and one.is_ours] == []


def test_plain_trio_is_no_better_where_we_do_not_look() -> None:
    """The control: the same signals into plain trio come out, or strike what is unprotected."""
    found = strikes("trio", 0, SEEDS)
    assert sum(bool(one.place) for one in found) > SEEDS / 10
    assert [one for one in found if one.wrong and one.is_ours] == []
