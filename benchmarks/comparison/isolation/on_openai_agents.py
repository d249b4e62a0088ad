"""Which runs of one agent see each other's notes? Its tool takes them."""

import asyncio
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from benchmarks.comparison import _notes


class Scripted(Model):
    async def get_response(self, *args: Any, **named: Any) -> Any:
        history = named["input"]
        turns = sum(item.get("type") == "function_call_output" for item in history)
        if turns < 3:
            number = history[0]["content"]
            said: Any = ResponseFunctionToolCall(
                arguments=f'{{"number": {number}}}',
                call_id=f"call {turns}",
                name="note",
                type="function_call",
            )
        else:
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            said = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError


async def note(number: int) -> int:
    """Take a note."""
    _notes.take(number)
    await asyncio.sleep(0.01)
    return number


agent = Agent(name="notes", model=Scripted(), tools=[function_tool(note)])


async def one(number: int) -> tuple[bool, ...]:
    config = RunConfig(tracing_disabled=True)
    ended = await Runner.run(agent, [{"role": "user", "content": str(number)}], run_config=config)
    outputs = [item.output for item in ended.new_items if item.type == "tool_call_output_item"]
    return _notes.saw_others(outputs)


async def main() -> None:
    seen = await asyncio.gather(*(one(number) for number in _notes.RUNS))
    _notes.show(seen, offered="its messages")


if __name__ == "__main__":
    asyncio.run(main())
