"""Workers in this process, on its clock: what a cluster is tested with, but for Ray itself."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context, ContextVar
from typing import Any, ClassVar

import trio

from harness.cluster import RayCluster
from harness.cluster._messages import Message
from harness.cluster._spread import Connection, Transport, WorkerGone
from harness.cluster._worker import Worker


class ByName:
    """Stands for what can't be pickled, such as a function in a test."""

    kept: ClassVar[dict[int, Any]] = {}

    @classmethod
    def get(cls, number: int) -> Any:
        return cls.kept[number]


class Pickler(pickle.Pickler):
    """Pickles functions of tests too, as cloudpickle does."""

    def reducer_override(self, value: Any) -> Any:
        if callable(value) and "<locals>" in getattr(value, "__qualname__", ""):
            if any(isinstance(cell.cell_contents, Unpicklable) for cell in value.__closure__ or ()):
                raise TypeError("cannot pickle 'Unpicklable' object")
            ByName.kept[id(value)] = value
            return ByName.get, (id(value),)
        return NotImplemented


class Unpicklable:
    """A connection, say."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'Unpicklable' object")


def dumps(value: Any) -> bytes:
    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


here: ContextVar[FakeConnection] = ContextVar("here")
"""The worker that code runs in."""


class FakeConnection:
    """One worker."""

    def __init__(self, number: int, seconds_per_message: float) -> None:
        self.number = number
        self.sent: list[list[Message]] = []
        """What it was sent, list by list."""
        self.scope = trio.CancelScope()
        self.answers = 0
        """How many lists it has sent."""
        self._slow = seconds_per_message
        self._inbox, self._inbox_end = trio.open_memory_channel[list[Message]](math.inf)
        self._outbox, self._heard = trio.open_memory_channel[list[Message]](math.inf)

    async def live(self) -> None:
        """Serve until killed."""
        here.set(self)
        with self.scope, self._inbox, self._inbox_end, self._outbox:
            await Worker(dumps, self._answer, f"worker {self.number}").serve(self._inbox_end)

    def _answer(self, messages: list[Message]) -> None:
        if self.scope.cancel_called:
            return  # A killed process says nothing about how its calls ended.
        self.answers += 1
        self._outbox.send_nowait(messages)

    def send(self, messages: list[Message]) -> None:
        self.sent.append(messages)
        if not self.scope.cancel_called:
            self._inbox.send_nowait(messages)

    async def receive(self) -> list[Message]:
        if self._slow:
            await trio.sleep(self._slow)
        try:
            return await self._heard.receive()
        except trio.EndOfChannel:
            raise WorkerGone(f"worker {self.number} was killed") from None

    def kill(self) -> None:
        """As SIGKILL: nothing more comes from it."""
        self.scope.cancel()

    @property
    def calls(self) -> int:
        return sum(message[0] == "call" for messages in self.sent for message in messages)


class FakeTransport:
    """Starts workers in a nursery."""

    def __init__(self, nursery: trio.Nursery, delay: Callable[[int], float]) -> None:
        self._nursery = nursery
        self._delay = delay
        self.connections: list[FakeConnection] = []
        self.die_at_start = 0
        """How many of those started next die before they are ready."""
        self.head_answers = True

    async def check(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.head_answers:
            raise ConnectionRefusedError("nobody listens")

    def give_up(self) -> None: ...

    def dumps(self, value: Any) -> bytes:
        return dumps(value)

    async def start(self, number: int) -> Connection:
        connection = FakeConnection(number, self._delay(number))
        self.connections.append(connection)
        # In a context of its own, like another process.
        Context().run(self._nursery.start_soon, connection.live)
        if self.die_at_start:
            self.die_at_start -= 1
            connection.kill()
        return connection


class FakeCluster(RayCluster):
    """A cluster whose workers are in this process."""

    def __init__(
        self,
        *,
        workers: int = 2,
        delay: Callable[[int], float] = lambda number: 0.0,
        die_at_start: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(workers=workers, **options)
        self.delay = delay
        self.die_at_start = die_at_start
        self.transport: FakeTransport

    def _transport(self) -> AbstractAsyncContextManager[Transport]:
        return self._fake()

    @asynccontextmanager
    async def _fake(self) -> AsyncGenerator[Transport]:
        nursery_manager = trio.open_nursery()
        nursery = await nursery_manager.__aenter__()
        self.transport = FakeTransport(nursery, self.delay)
        self.transport.die_at_start = self.die_at_start
        try:
            yield self.transport
        finally:
            nursery.cancel_scope.cancel()
            await nursery_manager.__aexit__(None, None, None)

    @property
    def connections(self) -> list[FakeConnection]:
        return self.transport.connections
