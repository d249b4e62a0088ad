"""The example of runs in a nursery of one's own."""

import pytest
import trio
from trio.testing import MockClock

import plain_nursery
from harness.testing import explore_schedules
from tests.examples.headers import promised_output


def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(plain_nursery.main, clock=MockClock(autojump_threshold=0))
    assert capsys.readouterr().out.splitlines() == promised_output(plain_nursery)


@pytest.mark.slow
def test_it_says_the_same_in_every_order(capsys: pytest.CaptureFixture[str]) -> None:
    said = set()

    @explore_schedules(schedules=50)
    async def program() -> None:
        await plain_nursery.main()
        said.add(tuple(capsys.readouterr().out.splitlines()))

    trio.run(program)
    assert said == {tuple(promised_output(plain_nursery))}
