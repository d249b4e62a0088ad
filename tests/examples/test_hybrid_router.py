"""The example of questions that go the cheapest way."""

import pytest
import trio
from trio.testing import MockClock

import hybrid_router
from tests.examples.headers import promised_output


@pytest.mark.slow
def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # Nothing of the first run is in the figures of the second.
        trio.run(hybrid_router.main, clock=MockClock(autojump_threshold=0))
        assert capsys.readouterr().out.splitlines() == promised_output(hybrid_router)
