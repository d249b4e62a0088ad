"""Which samples of an evaluation see each other's notes?"""

import asyncio
import tempfile
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import store

from benchmarks.comparison import _notes

seen: list[tuple[bool, ...]] = []


@solver
def agent() -> Any:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        number = int(state.input_text)
        for _ in range(3):
            _notes.take(number)
            store().set("own", [*store().get("own", []), number])
            await asyncio.sleep(0.01)
        seen.append(_notes.saw_others(store().get("own")))
        return state

    return solve


def main() -> None:
    samples = [Sample(input=str(number)) for number in _notes.RUNS]
    task = Task(dataset=samples, solver=agent())
    eval(task, model="mockllm/model", display="none", log_dir=tempfile.mkdtemp(), max_samples=20)
    _notes.show(seen, offered="store()")


if __name__ == "__main__":
    main()
