"""What is recorded of one agent run with a tool call?"""

import asyncio
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, InstrumentationSettings
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))


def model(messages: list[Any], info: Any) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("look_up", {"card": "17"})])
    return ModelResponse(parts=[TextPart("On its way.")])


Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
agent = Agent(FunctionModel(model), name="triage")


@agent.tool_plain
async def look_up(card: str) -> str:
    return "posted on Monday"


if __name__ == "__main__":
    asyncio.run(agent.run("My card has not arrived"))
    names = sorted({span.name for span in exporter.get_finished_spans()})
    print(f"recorded of a tool turn: {', '.join(names)}")
    print("where the time went: spans; no analysis of its own")
    print("to look at: any OpenTelemetry backend; Logfire")
