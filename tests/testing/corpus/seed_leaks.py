"""The programs of the three documents that harness was made after, in the kind of each.

The case study's agent runs in a pool of threads, the proposal's four fields of one agent are
asyncio's. The guide to parallel work has no leak; its executor must raise no alarm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from tests.testing.corpus.leak import Leak, leaks_of

THREADS, of_threads = leaks_of()
ASYNCIO, of_asyncio = leaks_of()


class Model:
    def complete(self, messages: list[str]) -> str:
        time.sleep(1)
        return f"re: {messages[-1]}"


class Agent:
    messages: ClassVar[list[str]] = []

    def run(self, task: str) -> str:
        self.messages.append(task)
        reply = Model().complete(self.messages)
        self.messages.append(reply)
        return reply


class OwnAgent(Agent):
    def __init__(self) -> None:
        self.messages = []  # type: ignore[misc]


POOL = ThreadPoolExecutor(3)


@of_threads("the case study", "Agent.messages")
def list_of_the_class(task: str) -> str:
    """The agents of a pool of threads talk in one list."""
    return POOL.submit(Agent().run, task).result()


def list_of_the_class_right(task: str) -> str:
    return POOL.submit(OwnAgent().run, task).result()


class BaseAgent:
    def __init__(self) -> None:
        self.cancelled = False
        self.current_task: asyncio.Task[Any] | None = None
        self.events: list[str] = []
        self.injected: list[str] = []

    async def stop(self, prompt: str) -> str:
        self.cancelled = prompt == "bob"
        await asyncio.sleep(1)
        return f"{prompt} was stopped" if self.cancelled else f"{prompt} was answered"

    async def interrupt(self, prompt: str) -> str:
        self.current_task = asyncio.current_task()
        await asyncio.sleep(1)
        return f"{prompt}: {self.current_task is asyncio.current_task()}"

    async def stream(self, prompt: str) -> str:
        self.events.append(prompt)
        await asyncio.sleep(1)
        return self.events.pop()

    async def inject(self, prompt: str) -> list[str]:
        self.injected.append(prompt)
        await asyncio.sleep(1)
        found, self.injected = self.injected, []
        return found


ONE = BaseAgent()


@of_asyncio("the proposal, _cancelled", "ONE.cancelled", seen="ONE.cancelled")
async def flag_of_the_agent(prompt: str) -> str:
    """Stopping one stream stops all."""
    return await ONE.stop(prompt)


async def flag_of_the_agent_right(prompt: str) -> str:
    return await BaseAgent().stop(prompt)


@of_asyncio("the proposal, _current_stream_task", "ONE.current_task", seen="ONE.current_task")
async def task_of_the_agent(prompt: str) -> str:
    """The task that would be interrupted is another stream's."""
    return await ONE.interrupt(prompt)


async def task_of_the_agent_right(prompt: str) -> str:
    return await BaseAgent().interrupt(prompt)


@of_asyncio("the proposal, _event_queue", "ONE.events", seen="ONE.events")
async def queue_of_the_agent(prompt: str) -> str:
    """A stream takes another stream's event from the queue."""
    return await ONE.stream(prompt)


async def queue_of_the_agent_right(prompt: str) -> str:
    return await BaseAgent().stream(prompt)


@of_asyncio("the proposal, _injection_manager", "ONE.injected", seen="ONE.injected")
async def injections_of_the_agent(prompt: str) -> list[str]:
    """What is injected into one stream arrives in another."""
    return await ONE.inject(prompt)


async def injections_of_the_agent_right(prompt: str) -> list[str]:
    return await BaseAgent().inject(prompt)


class Executor:
    def __init__(self, limit: int) -> None:
        self.slots = asyncio.Semaphore(limit)
        self.active = 0

    async def run(self, work: Callable[[], Awaitable[str]]) -> str:
        async with self.slots:
            self.active += 1
            try:
                return await work()
            finally:
                self.active -= 1


EXECUTOR = Executor(2)


async def bounded(task: str) -> str:
    """The guide's executor: one semaphore and one count for all."""

    async def call() -> str:
        await asyncio.sleep(1)
        return task.upper()

    return await EXECUTOR.run(call)


LEAKS: list[tuple[str, Leak]] = [
    *(("threads", leak) for leak in THREADS),
    *(("asyncio", leak) for leak in ASYNCIO),
]
