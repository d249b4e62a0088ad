"""The example of runs in a nursery of one's own."""

import pytest
import trio
from trio.testing import MockClock

import plain_nursery
from tests.examples.headers import promised_output


def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(plain_nursery.main, clock=MockClock(autojump_threshold=0))
    assert capsys.readouterr().out.splitlines() == promised_output(plain_nursery)


@pytest.mark.slow
def test_it_says_the_same_whoever_goes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """trio draws the order of the tasks that can go on; in 20 runs it draws many."""
    for _ in range(20):
        trio.run(plain_nursery.main, clock=MockClock(autojump_threshold=0))
        assert capsys.readouterr().out.splitlines() == promised_output(plain_nursery)
