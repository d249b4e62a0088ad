"""Take calls to a Redis server, one after the other, so that a cancel cuts off none.

One task of a process, the *courier*, talks to the server. Each call may be made again after a lost
connection, so what it changes is marked with a number, and a second time changes nothing.

What a process works on, it holds by a lease, which that task renews.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Self
from urllib.parse import quote

import attrs
import trio
from trio.lowlevel import (
    checkpoint,
    checkpoint_if_cancelled,
    current_trio_token,
    enable_ki_protection,
)

from harness._arguments import check_seconds
from harness._async_with import AsyncWithOnly
from harness._events import happened
from harness._outside_trio import refuse_outside_trio
from harness._root_errors import root_errors
from harness._words import repr_of
from harness.cluster import _redis
from harness.cluster._addresses import without_password
from harness.errors import SharedClosedError
from harness.limits._across_processes._server_link import (
    ServerLink,
    reason_in_words,
    run_in_time,
)

_PATIENCE_SECONDS = 10.0
_RETRY_SECONDS = 0.25


@attrs.define(eq=False)
class _Call:
    script: str
    keys: tuple[str, ...]
    arguments: tuple[str, ...]
    give_up_at: float
    answered: Callable[[list[str] | None], None] | None = None
    reply: list[str] | None = None
    done: trio.Event = attrs.field(factory=trio.Event)

    def end(self) -> None:
        """Tell whoever waits that it is answered, or never will be."""
        self.done.set()
        if self.answered is not None:
            self.answered(self.reply)


class Courier(AsyncWithOnly):
    """An open connection to a server, for the state that has one name there; see `FleetStore`."""

    def __init__(self, where: str, name: str, *, lease: float = 10.0) -> None:
        if not isinstance(where, str):
            raise TypeError(f"FleetStore(where) takes redis://host:port, not {repr_of(where)}")
        self.name = name
        self._lease = check_seconds("FleetStore(lease=...)", lease, least=0.1, advice="10 is usual")
        self._address = without_password(where)
        self._make_link: Callable[[], ServerLink] = partial(_redis.RedisLink, where)
        self._is_open = False
        self.is_served: bool = False
        """Whether what is posted will be sent."""

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        refuse_outside_trio("a FleetStore was entered")
        await checkpoint()
        self._calls: deque[_Call] = deque()
        self._renewals: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {}
        self._bell, self._answered = trio.Event(), trio.Event()
        self._closing, self._ended = trio.Event(), trio.Event()
        self._error: Exception | None = None
        self._trio_token, self._thread_id = current_trio_token(), threading.get_ident()
        self.is_served = True
        trio.lowlevel.spawn_system_task(self._serve, name="harness.cluster: fleet store")
        try:
            await happened(self._answered)
        except BaseException:
            self._closing.set()
            raise
        if self._error is not None:
            raise self.gone() from self._error
        self._is_open = True
        return self

    @enable_ki_protection
    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        self._closing.set()
        self._bell.set()
        with trio.CancelScope(deadline=trio.current_time() + _PATIENCE_SECONDS, shield=True):
            await checkpoint()
            await happened(self._ended)

    def key(self, kind: str, *parts: str) -> str:
        """Return the name of a key; those that begin alike are on one node of a cluster."""
        tag = quote(f"{self.name}:{kind}:{parts[0]}", safe=":")
        return ":".join([f"{{harness:{tag}}}", *parts[1:]])

    async def call(self, script: str, *keys: str, arguments: tuple[object, ...] = ()) -> list[str]:
        """Run a script, again after a lost connection.

        Raises:
          ConnectionError: if the server can't be reached for 10 s.
          SharedClosedError: if the store's block was left.
        """
        await checkpoint_if_cancelled()
        self.refuse_closed()
        call = self.post(script, *keys, arguments=arguments)
        with trio.CancelScope(shield=True):  # The courier answers each in time.
            await happened(call.done)
        if call.reply is None:
            raise self.gone() from self._error
        return call.reply

    def refuse_closed(self) -> None:
        """Raise unless the store is open."""
        if not self._is_open:
            raise SharedClosedError(
                f"the store {self.name!r} is not open; use it inside "
                "`async with FleetStore(...) as store:`"
            )

    def post(
        self,
        script: str,
        *keys: str,
        arguments: tuple[object, ...],
        answered: Callable[[list[str] | None], None] | None = None,
    ) -> _Call:
        """Have a script run, like `call`, without waiting for it.

        Args:
          script: What to run.
          keys: All its keys.
          arguments: What it is told.
          answered: If given, the script is sent until there is a reply, which this is called with;
            with None if the store is closed before.
        """
        patience = _PATIENCE_SECONDS if answered is None else math.inf
        give_up_at = trio.current_time() + patience
        call = _Call(script, keys, tuple(map(str, arguments)), give_up_at, answered)
        self._calls.append(call)
        self._bell.set()
        return call

    def in_its_thread(self, function: Callable[[], None]) -> None:
        """Call a function here, or soon if this is another thread than the store's."""
        if threading.get_ident() == self._thread_id:
            function()
        else:
            with suppress(trio.RunFinishedError):
                self._trio_token.run_sync_soon(function)

    def renew(self, number: str, script: str, *keys: str, arguments: tuple[object, ...]) -> None:
        """Run a script three times per lease, until `done_with`."""
        self._renewals[number] = (script, keys, tuple(map(str, arguments)))
        self._bell.set()

    def done_with(self, number: str) -> None:
        """Renew a lease no more."""
        self._renewals.pop(number, None)

    @property
    def lease(self) -> float:
        """After how many seconds without a word a process counts as dead."""
        return self._lease

    patience_seconds = _PATIENCE_SECONDS
    """How long to wait for the server before that is an error."""

    def gone(self) -> ConnectionError:
        """Return the error that says that the server can't be reached."""
        why = "" if self._error is None else f": {reason_in_words(self._error)}"
        return ConnectionError(f"Redis can't be used at {self._address}{why}")

    async def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    async with self._make_link() as link:
                        if not self._answered.is_set():  # May this user run scripts on these keys?
                            await run_in_time(link, "return {KEYS[1]}", [self.key("may", "I")], [])
                        self._error = None
                        self._answered.set()
                        await self._answer(link)
                except Exception as error:
                    root = root_errors(error)[0]
                    self._error = root if isinstance(root, Exception) else error
                    if not self._answered.is_set():
                        return
                    now = trio.current_time()
                    for call in [call for call in self._calls if call.give_up_at <= now]:
                        self._calls.remove(call)
                        call.end()
                    with trio.move_on_after(_RETRY_SECONDS):
                        await happened(self._closing)
        finally:
            self.is_served = False
            while self._calls:
                self._calls.popleft().end()
            self._answered.set()
            self._ended.set()

    async def _answer(self, link: ServerLink) -> None:
        renew_at = trio.current_time()
        while self._calls or not self._closing.is_set():
            # harness: shared (only the one task that makes calls takes them away)
            while self._calls:
                call = self._calls[0]
                try:
                    call.reply = await run_in_time(link, call.script, call.keys, call.arguments)
                except Exception:
                    self._calls.rotate(-1)  # One that can't be answered holds up no others.
                    raise
                self._calls.popleft()
                call.end()
            if self._renewals and trio.current_time() >= renew_at:
                for script, keys, arguments in list(self._renewals.values()):
                    await run_in_time(link, script, keys, arguments)
                renew_at = trio.current_time() + self._lease / 3
            if not self._calls and not self._closing.is_set():
                self._bell = trio.Event()
                with trio.move_on_at(renew_at if self._renewals else math.inf):
                    await happened(self._bell)
