"""The example of what runs share."""

import pytest
import trio
from trio.testing import MockClock

import shared_refunds
from tests.examples.headers import promised_output


def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(shared_refunds.main, clock=MockClock(autojump_threshold=0))
    assert capsys.readouterr().out.splitlines() == promised_output(shared_refunds)
