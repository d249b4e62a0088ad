"""A refund waits for a person, over the end of the process. What is called when?"""

import trio

import harness
from benchmarks.comparison import _approval, _processes
from harness.agents import Agent, tool
from harness.journal import edit_journal, open_journal
from harness.models import FunctionModel, ModelRequest, ModelResponse, ToolCall


@tool(approve=True)
async def refund(order: int, usd: int) -> str:
    _processes.note("tool")
    await trio.lowlevel.checkpoint()
    return "paid"


def model(request: ModelRequest) -> ModelResponse | str:
    _processes.note("model")
    if request.messages[-1].role == "tool":
        return _approval.DONE
    return ModelResponse(tool_calls=[ToolCall("1", _approval.TOOL, _approval.ARGUMENTS)])


agent = Agent("refunds", model=FunctionModel(model), tools=[refund])


async def answer(question: str) -> str:
    return (await agent.run(question)).output


async def main() -> None:
    file = _processes.folder() / "journal.db"
    if not _processes.first_time():
        with edit_journal(file) as editor:
            editor.answer("refunds", _approval.QUESTION, True)
    async with open_journal(file) as journal:
        await harness.fan_out(
            answer,
            [_approval.QUESTION],
            policy=harness.BestEffort(),
            journal=journal,
            key=str,
            name="refunds",
        )


if __name__ == "__main__":
    if _processes.is_child():
        trio.run(main)
    else:
        _approval.show("benchmarks.comparison.approval.here", kept="the journal")
