"""Hand a task to another agent, as a tool of the agent that asks.

Each call is a run of its own below the caller's, with its own history, so one agent can be asked
several things at once. Its events reach whoever listens to the caller, and say which run they come
from.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import attrs

from harness.agents._events import Delegated
from harness.agents._reply import Reply
from harness.agents._tool import Tool, name_for_models, one_string
from harness.agents._work import work_in
from harness.runs import Run, current_run

INSTRUCTIONS_AT_MOST = 500
"""How much of an agent's instructions tells other agents what it is for, in characters."""


class Answering(Protocol):
    """Runs an agent once."""

    def __call__(
        self, prompt: str, *, private: bool, on_start: Callable[[Run], None]
    ) -> Coroutine[Any, Any, Reply[Any]]:
        """Answer ``prompt``, and call ``on_start`` with the run once it has begun."""
        ...


@attrs.frozen(eq=False, kw_only=True, repr=False)
class DelegateTool(Tool):
    """A tool made of an agent, by `Agent.as_tool`."""

    _agent: str = attrs.field(alias="agent")
    _answer: Answering = attrs.field(alias="answer")
    _private: bool = attrs.field(alias="private")

    async def invoke(self, arguments: Mapping[str, Any], call_id: str) -> Any:
        """Get the agent's answer, in a run below the current one."""
        prompt = one_string(arguments, self.name)
        caller = current_run()

        runs: list[Run] = []

        def tell(run: Run) -> None:
            runs.append(run)
            caller.emit_nowait(Delegated(call_id, self._agent, run.id))

        try:
            reply = await self._answer(prompt, private=self._private, on_start=tell)
        finally:
            work = work_in(caller)
            if work is not None:
                for run in runs:
                    work.hand_back(run.undelivered)
        return reply.output

    def settings(self) -> Any:
        """Return what decides the answers of the agent, as plain data; None if it is no agent."""
        agent: Any = getattr(self._answer, "__self__", None)
        return agent.batch_settings() if hasattr(type(agent), "batch_settings") else None

    def with_answer(self, change: Callable[[Any], Answering]) -> DelegateTool:
        """Return a tool like this one for which another agent answers.

        Args:
          change: Given the method that answers here, returns the one to use instead.
        """
        return attrs.evolve(self, answer=change(self._answer))


def delegate_tool(agent: str, instructions: str, answer: Answering, *, private: bool) -> Tool:
    """Return the tool that hands a task to an agent.

    It has no timeout: an agent's turns are limited, and may well take longer than a function.
    """
    about = instructions[:INSTRUCTIONS_AT_MOST]
    return DelegateTool(
        name=name_for_models(agent),
        description=f"Hand a task to the agent {agent!r} and get its answer."
        + (f" It is told: {about}" if about else ""),
        parameters={
            "type": "object",
            "properties": {
                "prompt": {
                    "type": "string",
                    "description": "The task, with all that the agent needs to know of it.",
                }
            },
            "required": ["prompt"],
            "additionalProperties": False,
        },
        timeout=None,
        agent=agent,
        answer=answer,
        private=private,
    )
