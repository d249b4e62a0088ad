"""A refund waits for a person, over the end of the process. What is called when?"""

import asyncio
import json
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, RunState, Usage, function_tool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from benchmarks.comparison import _approval, _processes


class Scripted(Model):
    async def get_response(self, *args: Any, **named: Any) -> Any:
        _processes.note("model")
        if any(item.get("type") == "function_call_output" for item in named["input"]):
            text = ResponseOutputText(annotations=[], text=_approval.DONE, type="output_text")
            said: Any = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            said = ResponseFunctionToolCall(
                arguments=json.dumps(_approval.ARGUMENTS),
                call_id="1",
                name=_approval.TOOL,
                type="function_call",
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError


@function_tool(needs_approval=True)
async def refund(order: int, usd: int) -> str:
    _processes.note("tool")
    return "paid"


agent = Agent("refunds", tools=[refund], model=Scripted())


async def main() -> None:
    file = _processes.folder() / "state.json"
    quiet = RunConfig(tracing_disabled=True)
    if _processes.first_time():
        result = await Runner.run(agent, _approval.QUESTION, run_config=quiet)
        file.write_text(result.to_state().to_string())
        return
    state = await RunState.from_string(agent, file.read_text())
    for question in state.get_interruptions():
        state.approve(question)
    await Runner.run(agent, state, run_config=quiet)


if __name__ == "__main__":
    if _processes.is_child():
        asyncio.run(main())
    else:
        _approval.show(
            "benchmarks.comparison.approval.on_openai_agents", kept="its state, which you store"
        )
