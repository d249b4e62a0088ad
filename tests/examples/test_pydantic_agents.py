"""The example of an asyncio framework in a fan-out."""

import pytest

from tests.examples.headers import promised_output

pytest.importorskip("pydantic_ai", reason="the framework comes with the extra `bench`")
pydantic_agents = pytest.importorskip("pydantic_agents")
pytestmark = pytest.mark.real_clock


@pytest.mark.slow
async def test_it_prints_what_its_header_promises(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pydantic_agents, "TIMEOUT_SECONDS", 4.0)
    await pydantic_agents.main()
    assert capsys.readouterr().out.splitlines() == promised_output(pydantic_agents)
