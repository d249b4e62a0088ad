"""What is recorded of one agent run with a tool call? Tracing is on by default there."""

import asyncio
import os
from typing import Any

from agents import RunConfig, Runner, set_trace_processors
from agents.tracing import TracingProcessor

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "0"  # What is imported next turns it off.

from benchmarks import _agent_peers


class Kinds(TracingProcessor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_trace_start(self, trace: Any) -> None: ...

    def on_trace_end(self, trace: Any) -> None:
        self.seen.append("trace")

    def on_span_start(self, span: Any) -> None: ...

    def on_span_end(self, span: Any) -> None:
        self.seen.append(span.span_data.type)

    def shutdown(self) -> None: ...

    def force_flush(self) -> None: ...


if __name__ == "__main__":
    kinds = Kinds()
    set_trace_processors([kinds])  # In place of the one that sends to OpenAI.
    original = Runner.run

    async def traced(agent: Any, question: str, run_config: Any) -> Any:
        return await original(agent, question, run_config=RunConfig())

    Runner.run = traced
    asyncio.run(_agent_peers.openai_agents(with_tool=True)())
    print(f"recorded of a tool turn: {', '.join(sorted(set(kinds.seen)))}")
    print("where the time went: spans; no analysis of its own")
    print("to look at: OpenAI's dashboard, or a processor of yours")
