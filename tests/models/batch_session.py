"""One session of a journaled fan-out over batches, which may kill itself at a boundary.

Run with the provider's address and what to do as JSON; prints the values. The boundaries are
patched into this process; nothing in harness knows of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from openai.resources.files import AsyncFiles

import harness
from harness.agents import Agent
from harness.journal import open_journal
from harness.journal._effects import JournalEffects
from harness.models import open_batched
from harness.models._batch_apis import AnthropicBatches, OpenAIBatches
from harness.models._batched import BatchedModel
from tests.models.providers import make_model

ITEMS = 6

BOUNDARIES = {
    "before anything is intended": (JournalEffects, "intend", "before"),
    "when all is intended": (BatchedModel, "_send_group", "before"),
    "before it is sent": ("api", "send", "before"),
    "between the file and the batch": ("files", "create", "after"),
    "after it is sent": ("api", "send", "after"),
    "when the first is recorded as sent": (JournalEffects, "complete", "after"),
    "while it is waited for": ("api", "state", "after"),
    "when it has been answered": ("api", "entries", "after"),
    "when an answer has been read": (BatchedModel, "_ask", "after"),
}
"""For each: the class, its method, and whether to die before or after a call of it."""


def die_at(boundary: str) -> None:
    """Patch in the end of this process."""
    owner, name, when = BOUNDARIES[boundary]
    if owner == "files":
        owners: list[Any] = [AsyncFiles]
    else:
        owners = [OpenAIBatches, AnthropicBatches] if owner == "api" else [owner]
    for one in owners:
        method: Callable[..., Awaitable[Any]] = getattr(one, name)

        async def dying(
            *args: Any, _method: Callable[..., Awaitable[Any]] = method, **named: Any
        ) -> Any:
            if when == "after":
                await _method(*args, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(one, name, dying)


async def main(way: str, base_url: str, path: str) -> None:
    """Label a few items, and print what came out."""
    async with (
        make_model(way, base_url) as model,
        open_journal(path) as journal,
        open_batched(model, journal=journal, within=0.1, poll_seconds=0.05) as batched,
    ):
        agent = Agent("label", model=batched)
        prompts = [f"item {number}" for number in range(ITEMS)]
        results = await harness.fan_out(agent, prompts, journal=journal, key=str)
        print(json.dumps([reply.output for reply in results.values()]))


if __name__ == "__main__":
    way, base_url, path, boundary = sys.argv[1:]
    if boundary:
        die_at(boundary)
    trio.run(main, way, base_url, path)
