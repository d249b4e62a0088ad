"""What is recorded of one sample with a tool call?"""

import tempfile
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def look_up() -> Any:
    async def execute(card: str) -> str:
        """Look up where a card is.

        Args:
            card: Its number.
        """
        return "posted on Monday"

    return execute


if __name__ == "__main__":
    call = ModelOutput.for_tool_call("mockllm/model", "look_up", {"card": "17"})
    answer = ModelOutput.from_content("mockllm/model", "On its way.")
    for output in (call, answer):  # Else it would fetch a table to count tokens with.
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    model = get_model("mockllm/model", custom_outputs=[call, answer])
    sample = Sample(input="My card has not arrived")
    task = Task(dataset=[sample], solver=[use_tools(look_up()), generate()])
    (log,) = eval(task, model=model, display="none", log_dir=tempfile.mkdtemp())
    assert log.samples
    kinds = sorted({event.event for event in log.samples[0].events})
    print(f"recorded of a tool turn: {', '.join(kinds)}")
    print("where the time went: total_time and working_time of a sample, without waits")
    print("to look at: inspect view, a web application; VS Code extension")
