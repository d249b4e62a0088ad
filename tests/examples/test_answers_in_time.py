"""The example of a time limit on the whole."""

import pytest
import trio
from trio.testing import MockClock

import answers_in_time
from tests.examples.headers import promised_output


def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    clock = MockClock(autojump_threshold=0)
    trio.run(answers_in_time.main, clock=clock)
    assert capsys.readouterr().out.splitlines() == promised_output(answers_in_time)
