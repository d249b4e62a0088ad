"""Run an agent function on several inputs at once, or on one alone, as one program.

Each input is a run of its own, in a task of its own. The program keeps how each of them ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import trio

from harness.runs import open_run, start_soon
from harness.testing._outcomes import Outcome, returned
from harness.testing.isolation._watch import member
from harness.testing.schedules import faultable

AgentFunction = Callable[[Any], Awaitable[Any]]


@attrs.define(eq=False)
class Program:
    """Several runs of one function, as a program that a schedule is run on."""

    agent: AgentFunction
    inputs: Sequence[Any]
    members: Sequence[int]
    """Which of the inputs take part, by index."""

    in_turn: bool = False
    """Whether each begins when the one before has ended."""

    outcomes: dict[int, Outcome] = attrs.field(factory=dict[int, Outcome], init=False)
    """How the runs ended, by index of the input."""

    async def __call__(self) -> None:
        """Run it once."""
        self.outcomes.clear()
        groups = [[index] for index in self.members] if self.in_turn else [self.members]
        for group in groups:
            async with trio.open_nursery() as nursery:
                for index in group:
                    # A task takes on what is set when it is started: so also its first step has it.
                    member.set(index)
                    # A run of the caller's belongs to another `trio.run`: these are in none of it.
                    start_soon(nursery, self._one, index, run=None, name=run_name(index))
                member.set(None)

    async def _one(self, index: int) -> None:
        try:
            with faultable(index + 1):
                await self._run(index)
        except Exception as error:
            # The errors of a run's tasks that came together with its being cancelled by a fault.
            self.outcomes[index] = Outcome("raised", error=error)

    async def _run(self, index: int) -> None:
        try:
            async with open_run(run_name(index)):
                value = await self.agent(self.inputs[index])
                self.outcomes[index] = returned(value)
        except Exception as error:
            self.outcomes[index] = Outcome("raised", error=error)
        except trio.Cancelled:
            self.outcomes.pop(index, None)
            raise
        else:
            # A run that its own code has cancelled is left quietly.
            self.outcomes.setdefault(index, Outcome("cancelled"))


def run_name(index: int) -> str:
    """Return what reports call the run on the input of this index."""
    return f"run {index + 1}"
