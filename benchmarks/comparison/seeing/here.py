"""What is recorded of one agent run with a tool call?"""

import tempfile
from collections import Counter
from pathlib import Path

import trio
from trio.testing import MockClock

from harness.agents import Agent, tool
from harness.models import ModelResponse, ScriptedModel, ToolCall
from harness.observe import analyse, read_trace, record


@tool
async def look_up(card: str) -> str:
    """Look up where a card is."""
    await trio.sleep(2)
    return "posted on Monday"


call = ModelResponse(tool_calls=[ToolCall("c1", "look_up", {"card": "17"})])
agent = Agent("triage", model=ScriptedModel([call, "On its way."]), tools=[look_up])


async def main(path: Path) -> None:
    async with record(str(path)):
        await agent.run("My card has not arrived")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        trio.run(main, path, clock=MockClock(autojump_threshold=0))
        kinds = Counter(event["type"] for event in read_trace(str(path)))
        parts = {
            part: f"{spent:.0f} s" for part, spent in analyse(str(path)).parts.items() if spent
        }
    print(f"recorded of a tool turn: {', '.join(sorted(kinds))}")
    print(f"where the time went: {parts}")
    print("to look at: a file; harness report and Perfetto")
