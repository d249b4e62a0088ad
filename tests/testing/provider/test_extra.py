"""What works without the extra ``provider``."""

from __future__ import annotations

import subprocess
import sys

import pytest
from trio.testing import MockClock

from harness.testing.provider import open_provider
from tests.testing.provider.asks import CHAT, ask, echo


async def test_without_h11_sockets_are_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    for module in ("_server", "_connection"):
        monkeypatch.delitem(
            sys.modules, f"harness.testing.provider._sockets.{module}", raising=False
        )
    with pytest.raises(ImportError, match=r"pip install 'trio-harness\[provider\]', or open it"):
        async with open_provider(answer=echo):
            pass
    async with open_provider(answer=echo, http=False) as provider:
        assert (await provider.request(CHAT, ask(CHAT))).status == 200


@pytest.mark.slow
def test_importing_it_imports_no_extra() -> None:
    code = (
        "import sys, harness.testing.provider;"
        "print({'h11', 'click', 'openai', 'anthropic'} & set(sys.modules))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.strip() == "set()"
