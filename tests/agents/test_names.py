"""What is said about names that need msgspec if it is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.scale import PATIENCE_SECONDS

WITHOUT_MSGSPEC = """
import sys
sys.modules["msgspec"] = None
import harness.agents
harness.agents.Reply, harness.agents.TextDelta
for name in ("Agent", "AgentStream", "Conversation", "FunctionTool", "Tool", "tool"):
    try:
        getattr(harness.agents, name)
    except ImportError as error:
        print(error)
"""


@pytest.mark.slow
def test_without_msgspec_the_names_that_need_it_name_the_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MSGSPEC],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert all("pip install 'trio-harness[agents]'" in line for line in lines)
    assert lines[0].startswith("harness.agents.Agent needs msgspec")
