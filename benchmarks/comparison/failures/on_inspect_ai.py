"""What is left of ten samples when two fail, under each `fail_on_error`?"""

import asyncio
import tempfile
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.solver import Generate, TaskState, solver

from benchmarks.comparison._failing import ITEMS, NOTHING, STEP_SECONDS, answer, show


@solver
def agent() -> Any:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await asyncio.sleep(int(state.input_text) * STEP_SECONDS)
        state.output.completion = answer(int(state.input_text))
        return state

    return solve


def left(fail_on_error: bool | int) -> str:
    (log,) = eval(
        Task(dataset=[Sample(input=str(number)) for number in ITEMS], solver=agent()),
        model="mockllm/model",
        display="none",
        log_dir=tempfile.mkdtemp(),
        max_samples=10,
        fail_on_error=fail_on_error,
    )
    done = [sample for sample in log.samples or [] if not sample.error and sample.output.completion]
    return f"{len(done)}, and the error" if log.status == "error" else f"{len(done)} of 10"


def main() -> None:
    show(first_error=left(True), collect=left(False), quorum=NOTHING, threshold=left(2))


if __name__ == "__main__":
    main()
