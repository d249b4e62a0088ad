"""Let the threads of a pool work for one function after the other, as they do outside.

What a function leaves in a `threading.local`, the next one in the same thread finds. A controlled
program has pools of its own, which end with it, so no program meets what another one left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import attrs

from harness.testing.schedules._thread_patches import start_daemon
from harness.testing.schedules._threads import (
    Crew,
    ThreadStrand,
    current_strand,
    new_lock,
    own_context,
)


@attrs.define(eq=False)
class _Worker:
    """A thread, and what it works for."""

    crew: Crew
    strand: ThreadStrand
    function: Callable[[], Any]
    given: Any = attrs.field(factory=new_lock, init=False)
    """Locked while there is nothing new to work for."""

    def run(self) -> None:
        """Work until the program ends."""
        while not self.crew.closing or not self.strand.done:
            self.crew.run(self.strand, self.function)
            self.given.acquire()


@attrs.define(eq=False)
class ThreadPool:
    """Runs each function in the first thread that has nothing to do, else in a new one."""

    crew: Crew
    initialize: Callable[[], object] | None
    """Called in each thread before its first function."""

    _workers: list[_Worker] = attrs.field(factory=list[_Worker], init=False)

    def run(self, strand: ThreadStrand, function: Callable[[], Any]) -> None:
        """Run a function as a strand."""
        for worker in self._workers:
            if worker.strand.done:
                strand.thread = worker.strand.thread
                worker.strand, worker.function = strand, function
                assert strand.thread is not None
                strand.thread.name = strand.name
                self.crew.by_thread[strand.thread] = strand
                worker.given.release()
                return
        worker = _Worker(self.crew, strand, self._first(function))
        worker.given.acquire()
        self._workers.append(worker)
        start_daemon(self.crew, strand, worker.run)

    def _first(self, function: Callable[[], Any]) -> Callable[[], Any]:
        initialize = self.initialize
        if initialize is None:
            return function

        def initialized() -> Any:
            initialize()
            return function()

        return initialized

    def close(self) -> None:
        """Let the threads end that have nothing to do."""
        for worker in self._workers:
            if (
                worker.given.locked()
            ):  # Else its last work hasn't begun, and it will see for itself.
                worker.given.release()


def pool_of(
    crew: Crew, key: Hashable, initialize: Callable[[], object] | None = None
) -> ThreadPool:
    """Return a crew's threads for an executor, or whatever else the key stands for."""
    pool = crew.pools.get(key)
    if pool is None:
        pool = crew.pools[key] = ThreadPool(crew, initialize)
    return pool


def run_in_pool(key: Hashable, name: str, function: Callable[[], Any]) -> None:
    """Run a function in a thread of the pool for the key, and have the calling thread wait."""
    here = current_strand()
    assert here is not None
    strand = here.crew.begin(name, name, own_context())
    pool_of(here.crew, key).run(strand, function)
    while not strand.done:
        here.crew.wait(here, lambda: strand.done, None, joins=strand)
