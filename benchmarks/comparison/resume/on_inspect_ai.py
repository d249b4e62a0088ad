"""An evaluation is killed and tried again with `eval_retry`. What runs twice?"""

import asyncio
from typing import Any

from inspect_ai import Task, eval, eval_retry, task
from inspect_ai.dataset import Sample
from inspect_ai.log import list_eval_logs
from inspect_ai.solver import Generate, TaskState, solver

from benchmarks.comparison import _killed, _processes


@solver
def agent() -> Any:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if _killed.begin(int(state.input_text)):
            await asyncio.sleep(3600)
        state.output.completion = str(_killed.end(int(state.input_text)))
        return state

    return solve


@task
def nightly() -> Task:
    samples = [Sample(input=str(number), id=number) for number in _killed.ITEMS]
    return Task(dataset=samples, solver=agent())


def main() -> None:
    logs = str(_processes.folder() / "logs")
    if _processes.first_time():
        eval(
            nightly(),
            model="mockllm/model",
            display="none",
            log_dir=logs,
            max_samples=_killed.AT_ONCE,
            log_buffer=1,
        )
    else:
        eval_retry(list_eval_logs(logs)[0].name, display="none", log_dir=logs)


if __name__ == "__main__":
    if _processes.is_child():
        main()
    else:
        _killed.show("benchmarks.comparison.resume.on_inspect_ai")
