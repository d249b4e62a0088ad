"""Run an agent over records, in place of a function: which model answers, and what limits it.

A function is limited per item, an agent per call of its model: one item may take many. And an
agent's model may have to be opened, which a module that only defines the agent can't do.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from harness import models
from harness.cli._errors import InputError
from harness.cli._models import model_named
from harness.cli._options import BatchOptions, EvalOptions, VerifyOptions
from harness.cli._target import Target
from harness.errors import ModelError
from harness.limits import Limiter

if TYPE_CHECKING:
    from harness.agents import Agent


@asynccontextmanager
async def open_agent(
    options: BatchOptions | EvalOptions | VerifyOptions,
    agent: Agent[Any],
    limiter: Limiter | None,
) -> AsyncIterator[Target]:
    """Turn an agent into a batch's function, for the duration of a block.

    It runs the agent and returns its output. The agent's model, or the one that ``--model`` names,
    is open and respects ``limiter``. So do the models of the agents that it hands tasks to.

    Raises:
      InputError: if a model can't be opened, or limited.
    """
    async with AsyncExitStack() as stack:
        if options.model is not None:
            opening = model_named(
                options.model,
                limiter,
                prices=options.prices,
                needs_price=options.budget_usd is not None,
            )
            named = await stack.enter_async_context(opening)
            yield partial(_output, agent.with_models(lambda _: named))
            return
        found: dict[int, Any] = {}
        agent.with_models(lambda model: found.setdefault(id(model), model))
        opened: dict[int, models.Model] = {}
        for number, own in found.items():
            model: Any = own if limiter is None else _limited(own, agent.name, limiter)
            if hasattr(model, "__aenter__"):
                try:
                    await stack.enter_async_context(model)
                except ModelError as error:
                    raise InputError(str(error)) from error
            opened[number] = model
        yield partial(_output, agent.with_models(lambda model: opened[id(model)]))


async def _output(agent: Agent[Any], prompt: str) -> Any:
    """Run the agent, and return its output in a form that JSON can hold."""
    reply = await agent.run(prompt)
    return agent.output_as_json(reply.output)


def _limited(model: Any, agent: str, limiter: Limiter) -> models.Model:
    """Return an agent's own model, kept within the limits of the command line."""
    if getattr(model, "limiter", None) is not None:
        raise InputError(
            f"a model of agent {agent!r} has a limiter of its own; leave out --rpm, --tpm "
            "and --concurrent, or name another model with --model"
        )
    if hasattr(model, "limiter"):
        # The agent's own stays as it is: one batch must leave nothing for the next to find.
        model = copy.copy(model)
        model.limiter = limiter
        return model  # type: ignore[no-any-return]
    return models.FunctionModel(model.complete, name=agent, limiter=limiter)
