"""The demo: an agent with a tool over HTTP."""

import re

import pytest

import triage_agent
from tests.examples.headers import promised_output

pytestmark = pytest.mark.real_clock

NUMBER = re.compile(r"[\d.,]+")


async def test_the_demo_prints_what_its_header_promises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Word for word; the numbers of the lines about failures and times depend on the machine."""
    await triage_agent.main()
    said, promised = capsys.readouterr().out.splitlines(), promised_output(triage_agent)
    assert [NUMBER.sub("N", line) for line in said] == [NUMBER.sub("N", line) for line in promised]
    for line in (0, 1, 2, 5):
        assert said[line] == promised[line]
