"""The example of approvals by a person."""

import pytest
import trio

import approved_refunds
from tests.examples.headers import promised_output


def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(approved_refunds.main)
    assert capsys.readouterr().out.splitlines() == promised_output(approved_refunds)
