"""Reach workers that are Ray actors: no more than Ray itself needs.

An actor runs trio in a thread. Two of its methods are called: one takes messages, the other waits
for some and returns them. Each has a thread of its own, so messages keep their order. Ray's own
cancel doesn't reach a call that runs; ours is a message.

Ray is imported by name: its own annotations would take a type checker minutes.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import socket
import threading
from collections.abc import AsyncGenerator, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from typing import Any

import trio

from harness._events import happened
from harness.cluster._messages import Message
from harness.cluster._spread import Connection, Transport, WorkerGone
from harness.cluster._worker import LogsToDriver, Worker
from harness.errors import ClusterError

ray: Any = import_module("ray")

LOOPBACK = "127.0.0.1"

OBJECT_STORE_BYTES = 100 << 20
"""For the store of a cluster that is started here. Messages this small don't use it."""

_TOO_SLOW = "timed out during startup"
"""What Ray says when its servers take more than half a minute to start, as on a busy machine."""


class Actor:
    """A worker's process."""

    def __init__(self) -> None:
        self._outbox: queue.SimpleQueue[list[Message] | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[trio.MemorySendChannel[list[Message]]]
        self._inbox = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken
        self._send: trio.MemorySendChannel[list[Message]] | None = None
        threading.Thread(target=self._run, name="harness worker", daemon=True).start()

    def tell(self, messages: list[Message]) -> None:
        """Take messages."""
        if self._send is None:
            self._send = self._inbox.get()
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._send.send_nowait, messages)

    def hear(self) -> list[Message] | None:
        """Wait for messages, and return all there are; None if there can be no more."""
        heard = self._outbox.get()
        while heard is not None:
            try:
                more = self._outbox.get_nowait()
            except queue.Empty:
                break
            heard = None if more is None else heard + more
        return heard

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        finally:
            self._outbox.put(None)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        send, receive = trio.open_memory_channel[list[Message]](math.inf)
        self._inbox.put(send)
        logging.getLogger().addHandler(LogsToDriver())
        words = f"process {os.getpid()} on {socket.gethostname()}"
        await Worker(ray.cloudpickle.dumps, self._outbox.put, words).serve(receive)


class RayConnection:
    """One actor."""

    def __init__(self, actor: Any, transport: RayTransport) -> None:
        self._actor = actor
        self._transport = transport
        self._token = trio.lowlevel.current_trio_token()

    def send(self, messages: list[Message]) -> None:
        """Send messages."""
        self._actor.tell.remote(messages)

    async def receive(self) -> list[Message]:
        """Return the next messages.

        Raises:
          WorkerGone: if there can be none.
        """
        _waiting_for = "messages of a worker"
        future = self._actor.hear.remote().future()
        came = trio.Event()

        def tell(_: object) -> None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(came.set)

        future.add_done_callback(tell)
        await happened(came)
        try:
            messages: list[Message] | None = future.result()
        except Exception as error:  # Of many classes, all of which mean the same here.
            raise WorkerGone(str(error).strip().splitlines()[0]) from error
        if messages is None:
            raise WorkerGone("its trio has ended")
        return messages

    def kill(self) -> None:
        """End the actor."""
        if not self._transport.is_gone:  # Else Ray would wait for it.
            with suppress(Exception):
                ray.kill(self._actor)


class RayTransport:
    """An open connection to a Ray cluster."""

    def __init__(self, cpus_per_worker: float, head: str) -> None:
        self._head = head
        self.is_gone: bool = False
        self._actor_class = ray.remote(
            num_cpus=cpus_per_worker, max_restarts=0, concurrency_groups={"in": 1, "out": 1}
        )(_grouped())

    def dumps(self, value: Any) -> bytes:
        """Pickle a value, functions of ``__main__`` included."""
        packed: bytes = ray.cloudpickle.dumps(value)
        return packed

    async def start(self, number: int) -> Connection:
        """Start a worker."""
        return RayConnection(self._actor_class.remote(), self)

    async def check(self) -> None:
        """Return once the head has answered.

        Raises:
          OSError: if it can't be reached.
        """
        host, _, port = self._head.rpartition(":")
        stream = await trio.open_tcp_stream(host.strip("[]"), int(port))
        await trio.aclose_forcefully(stream)

    def give_up(self) -> None:
        """Note that the head is gone, so that nobody waits for it."""
        self.is_gone = True


def _grouped() -> type:
    """Return the actor's class with a thread for each of the two methods."""

    class HarnessWorker(Actor):
        tell = ray.method(concurrency_group="in")(Actor.tell)
        hear = ray.method(concurrency_group="out")(Actor.hear)

    return HarnessWorker


@asynccontextmanager
async def open_transport(
    address: str | None,
    *,
    workers: int,
    cpus_per_worker: float,
    runtime_env: Mapping[str, Any] | None,
) -> AsyncGenerator[Transport]:
    """Connect to a cluster, or start one; leaving ends what was started.

    Raises:
      ClusterError: if that can't be done.
    """
    ours = not ray.is_initialized()
    # What Ray starts is killed by the kernel when the thread that started it ends, and a thread of
    # trio's ends after ten idle seconds.
    starter = ThreadPoolExecutor(1, "starter of Ray")
    if ours:
        try:
            if address is None:
                start = partial(start_here, workers * cpus_per_worker, runtime_env)
            else:
                start = partial(_init, address, runtime_env)
            await trio.to_thread.run_sync(lambda: starter.submit(start).result())
        except Exception as error:
            starter.shutdown(wait=False)
            raise ClusterError(
                f"Ray can't be {'started' if address is None else f'reached at {address!r}'} "
                f"({error}); see whether it runs, and whether a firewall is between"
            ) from error
    try:
        if address is not None and address.startswith("ray://"):
            head = address.removeprefix("ray://")
        else:
            head = ray.get_runtime_context().gcs_address
        if address is None and not ours and head.startswith(f"{LOOPBACK}:"):
            # In a cluster that another one of this program has started, for its own workers alone.
            cpus_per_worker = 0
        yield RayTransport(cpus_per_worker, head)
    finally:
        if ours:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(ray.shutdown)
        starter.shutdown(wait=False)  # Its thread ends.


def start_here(cpus: float, runtime_env: Mapping[str, Any] | None = None) -> None:
    """Start a cluster on this machine, for this process, which nobody reaches from elsewhere."""
    options = {
        "num_cpus": math.ceil(cpus),
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_node_ip_address": LOOPBACK,
    }
    try:
        _init("local", runtime_env, **options)
    except Exception as error:
        if _TOO_SLOW not in str(error):
            raise
        # Once more: what it has to read is in memory now.
        ray.shutdown()
        _init("local", runtime_env, **options)


@contextmanager
def _this_machine_alone() -> Generator[None]:
    """Have Ray take 127.0.0.1 as it is, so that all of its servers listen there.

    Else it takes it for the machine's own address, and listens on all interfaces. That is off by
    default where it has no clusters of several machines: this says that it has none here, either.
    """
    constants: Any = import_module("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", True)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _init(address: str, runtime_env: Mapping[str, Any] | None, **options: Any) -> None:
    if runtime_env is not None:
        options["runtime_env"] = dict(runtime_env)
    # It warns that it leaves SIGTERM alone in a thread, which is as it should be.
    is_here = address == "local" or address.startswith(f"{LOOPBACK}:")
    with _this_machine_alone() if is_here else nullcontext():
        ray.init(address, configure_logging=True, logging_level=logging.ERROR, **options)
