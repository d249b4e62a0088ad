"""Put a simulated provider behind HTTP/1.1 on a loopback address.

One task per connection, none per request, except while an async answer is
awaited. Closing ends idle and hanging connections at once and gives busy ones a
moment to finish.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import trio

from harness.testing.provider._core import Core
from harness.testing.provider._sockets._connection import HttpConnection

CLOSE_SECONDS = 1.0
"""How long busy connections may go on once the server is being closed."""
BACKLOG = 1024


@asynccontextmanager
async def open_server(core: Core, *, host: str, port: int) -> AsyncGenerator[tuple[str, int]]:
    """Serve ``core`` on ``host`` and ``port`` (0 for any that is free) inside the block.

    Gives the address it listens on. The block's exceptions come out unchanged, not in the group of
    the nursery that holds the connections.

    Raises:
      OSError: if the port is taken.

    Checkpoint: on entry and exit.

    Cancellation: every connection is closed, and no task is left.
    """
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    bound = listeners[0].socket.getsockname()
    accepting = trio.CancelScope()

    async def accept(connections: trio.Nursery) -> None:
        with accepting:
            await trio.serve_listeners(server.serve, listeners, handler_nursery=connections)

    server = _Server(core)
    try:
        async with trio.open_nursery() as connections:
            server.everything = connections.cancel_scope
            connections.start_soon(accept, connections)
            yield bound[0], bound[1]
            accepting.cancel()
            server.close()
            connections.cancel_scope.deadline = trio.current_time() + CLOSE_SECONDS
    except BaseExceptionGroup as group:
        if server.mistake is not None:
            raise BaseExceptionGroup(group.message, [server.mistake, *group.exceptions]) from group
        if len(group.exceptions) != 1:
            raise
        error = group.exceptions[0]
        context = error.__context__
        try:
            raise error
        finally:
            error.__context__ = context  # Not the group: that would be a circle.
            del error, context
    if server.mistake is not None:
        raise server.mistake


@attrs.define(eq=False)
class _Server:
    """The connections of one provider."""

    core: Core
    everything: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """The scope around all connections and the block."""
    mistake: Exception | None = attrs.field(default=None, init=False)
    closing: bool = attrs.field(default=False, init=False)
    _connections: set[HttpConnection] = attrs.field(factory=set[HttpConnection], init=False)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection until either side closes it."""
        connection = HttpConnection(self.core, stream)
        connection.closing = self.closing
        tally = self.core.tally
        tally.connections += 1
        tally.connections_opened += 1
        self._connections.add(connection)
        try:
            with connection.scope:
                await connection.run()
        except Exception as mistake:
            # From the test's answer function, or in here. Kept instead of raised: trio closes the
            # stream on the way out, and if everything is cancelled, that raises `trio.Cancelled`
            # instead of the mistake. And everything is cancelled before the stream is closed, so
            # that the client has no time to complain as well.
            self.mistake = self.mistake or mistake  # The first; others may follow from it.
            self.everything.cancel()
        finally:
            self._connections.discard(connection)
            tally.connections -= 1

    def close(self) -> None:
        """End idle and hanging connections; busy ones end after their answer."""
        self.closing = True
        for connection in self._connections:
            connection.closing = True
            if not connection.busy:
                connection.scope.cancel()
