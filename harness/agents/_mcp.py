"""Use the tools of an MCP server: one connection, owned by one task, used by many runs at once.

The connection has cancel scopes and tasks of its own, which must be entered and left in the same
task. So a service task opens, keeps and closes it; it belongs to no run, because it outlives the
one that happened to call first. A call is made in the task of the run that makes it: the client
matches answers to requests by number, so many can be in progress, and cancelling one tells the
server and leaves the others alone.

The service ends after the block's body, including its clean-up: it is shielded from a cancel of the
block, and told to close when the body has ended.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import CallToolResult, EmbeddedResource, TextContent
from mcp.types import Tool as ServerTool

from harness._arguments import check_seconds
from harness._events import happened
from harness._outside_trio import refuse_outside_trio
from harness.agents._tool import (
    TIMEOUT_SECONDS,
    OnError,
    Tool,
    check_call_options,
    check_tool_name,
    name_for_models,
)
from harness.errors import McpServerError, McpToolError
from harness.models import File
from harness.models._file import content_in_words
from harness.runs import start_soon
from harness.runs._endings import most_telling

CONNECT_SECONDS = 30.0
"""How long a server may take to start and to list its tools."""

CLOSE_SECONDS = 10.0
"""How long closing may take; the client itself kills a server that doesn't exit in about 6 s."""

PAGES_AT_MOST = 1_000
"""Pages in a list of tools. A server that always names a next page would be asked forever."""


_FILE = re.compile(r"[\w./\\-]*\w\.(py|pyz|js|mjs|cjs|ts|sh|jar|exe)")
"""Which argument of a command names the server's program."""


@asynccontextmanager
async def open_mcp_tools(
    server: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    only: Sequence[str] | None = None,
    prefix: str = "",
    timeout: float | None = TIMEOUT_SECONDS,
    on_error: OnError = "model",
    connect_timeout: float = CONNECT_SECONDS,
) -> AsyncIterator[tuple[Tool, ...]]:
    """Open a connection to an MCP server: ``async with open_mcp_tools([...]) as tools:``.

    Inside the block, any number of agents and runs may use the tools at once.

    Args:
      server: A URL, or the command that starts the server, which then talks through its standard
        input and output: ``["python", "server.py"]``. A string that isn't a URL is split as a shell
        would split it, but no shell runs it.
      env: Environment variables for the command, besides the few that are safe to pass on (such as
        ``PATH``). It doesn't get this process's others, such as keys.
      cwd: The folder that the command runs in.
      only: The names of the tools to use; None: all. The server's other tools stay out of reach.
      prefix: Put before each name, for servers whose names would clash. Characters in a server's
        names that providers refuse, such as dots, become ``_``, and names are cut to 64 characters.
      timeout: Seconds that one call may take; None for no limit.
      on_error: What happens when a call fails; see `tool`.
      connect_timeout: Seconds that the server may take to start and list its tools.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if a number is out of range, the command is empty or has an unclosed quotation, or
        ``only`` names a tool that the server lacks.
      McpServerError: if it can't be started or reached, or doesn't answer in time.
      Exception: the body's own, unchanged.

    Checkpoint: always.

    Cancellation: the connection stays open until the body has ended, clean-up included. Then it
    is closed, shielded, for up to 10 s; the server's process is ended.
    """
    target, words = _target(server, env, cwd)
    check_seconds("open_mcp_tools(connect_timeout=...)", connect_timeout, advice="in seconds")
    check_call_options("open_mcp_tools", timeout, on_error)
    if prefix != "":
        check_tool_name("open_mcp_tools(prefix=...)", prefix)
    if only is not None and (
        isinstance(only, str)
        or not isinstance(only, Collection)
        or not all(isinstance(name, str) for name in only)
    ):
        raise TypeError(f"open_mcp_tools(only=...) takes a list of names, not {only!r}")
    refuse_outside_trio("open_mcp_tools() was called")
    connection = Connection(words, target)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        start_soon(nursery, connection.serve, run=None, name=f"MCP server {words}")
        try:
            offered = await connection.tools(connect_timeout)
            yield tuple(
                McpTool(
                    name=name_for_models(prefix + offer.name),
                    description=offer.description or offer.title or "",
                    parameters=dict(offer.input_schema),
                    timeout=timeout,
                    on_error=on_error,
                    connection=connection,
                    server_name=offer.name,
                )
                for offer in _chosen(offered, only, words)
            )
        except BaseException as error:
            failure = error  # Raised below, outside the nursery, which would wrap it.
        finally:
            connection.close()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # Its traceback holds this frame.


def _target(
    server: str | Sequence[str], env: Mapping[str, str] | None, cwd: str | Path | None
) -> tuple[str | StdioServerParameters, str]:
    """Return what the client connects to, and a name for it without secrets in it."""
    if isinstance(server, str):
        if server.startswith(("http://", "https://")):
            if env is not None or cwd is not None:
                raise TypeError(
                    "open_mcp_tools(env=..., cwd=...) are for a server that is started; a URL "
                    "names one that runs already"
                )
            # Anything before the @ or after the ? may be a key.
            address = server.partition("?")[0].partition("://")
            return server, f"{address[0]}://{address[2].rpartition('@')[2]}"
        try:
            command = shlex.split(server)
        except ValueError as error:
            raise ValueError(
                f"open_mcp_tools() can't split its command as a shell would ({error}); give the "
                "parts as a list, such as ['python', 'server.py']"
            ) from error
    elif isinstance(server, Sequence) and not isinstance(server, bytes | bytearray):
        command = [str(part) for part in server]
    else:
        raise TypeError(
            "open_mcp_tools() takes a URL or a command as a string, or a command as a list, such "
            f"as ['python', 'server.py'], not {server!r}"
        )
    if not command or not command[0]:
        raise ValueError(
            "open_mcp_tools() takes a URL or a command, such as ['python', 'server.py'], not "
            f"{server!r}"
        )
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(  # Its value may be a key.
                f"open_mcp_tools(env=...) has a {type(value).__name__} for {name!r}, but must have "
                "only strings"
            )
    parameters = StdioServerParameters(
        command=command[0],
        args=command[1:],
        env=None if env is None else dict(env),
        cwd=cwd,
    )
    # An argument may be a key; one that names a file, or follows -m, says which server it is.
    shown = [Path(command[0]).name]
    if _FILE.fullmatch(command[1] if command[1:] else ""):
        shown.append(Path(command[1]).name)
    elif command[1:2] == ["-m"]:
        shown.extend(command[1:3])
    return parameters, " ".join(shown)


def _chosen(
    offered: Sequence[ServerTool], only: Sequence[str] | None, words: str
) -> list[ServerTool]:
    if only is None:
        return list(offered)
    by_name = {offer.name: offer for offer in offered}
    missing = [name for name in only if name not in by_name]
    if missing:
        raise ValueError(
            f"MCP server {words!r} has no tool {', '.join(map(repr, missing))}; it has "
            f"{', '.join(sorted(by_name)) or 'none'}"
        )
    return [by_name[name] for name in only]


class Connection:
    """A connection to one server, and the task that owns it."""

    def __init__(self, words: str, target: str | StdioServerParameters) -> None:
        self.words = words
        self._target = target
        self._client: Client | None = None
        self._offered: list[ServerTool] = []
        self._ready = trio.Event()
        self._closing = trio.Event()
        self._failure: BaseException | None = None
        self._scope = trio.CancelScope(shield=True)

    async def serve(self) -> None:
        """Own the connection: open it, list the tools, and close it when told to."""
        try:
            with self._scope:
                async with Client(self._target) as client:
                    self._offered = await _all_tools(client)
                    self._client = client
                    self._ready.set()
                    await happened(self._closing)
        except (Exception, BaseExceptionGroup) as error:
            if isinstance(most_telling(error), (KeyboardInterrupt, SystemExit)):
                raise
            self._failure = most_telling(error)
        finally:
            self._client = None
            self._ready.set()

    async def tools(self, timeout: float) -> list[ServerTool]:
        """Wait until it is open, and return what the server offers.

        Raises:
          McpServerError: if it can't be opened.
        """
        _waiting_for = f"MCP server {self.words!r} to start"
        with trio.move_on_after(timeout):
            await happened(self._ready)
        if self._client is not None:
            return self._offered
        if self._ready.is_set():
            raise self._error("could not be started or reached") from self._failure
        raise McpServerError(
            f"MCP server {self.words!r} has not listed its tools within {timeout:g} s; give it "
            "more with connect_timeout=..., or look at what it writes to its standard error"
        )

    def close(self) -> None:
        """Tell the owner to close; sync, never fails."""
        self._closing.set()
        # Before it is open, there is nothing to close properly.
        wait_seconds = CLOSE_SECONDS if self._client is not None else 0.0
        self._scope.deadline = trio.current_time() + wait_seconds

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool, in the caller's task.

        Raises:
          McpServerError: if the connection is closed or breaks, or the server breaks the protocol.
        """
        client = self._client
        if client is None or self._closing.is_set():
            raise self._error(f"can't be asked for {name!r}: the connection is closed")
        _waiting_for = f"{name} of MCP server {self.words!r}"
        said: list[CallToolResult | Exception] = []

        async def ask() -> None:
            try:
                said.append(await client.call_tool(name, dict(arguments)))
            except Exception as error:
                said.append(error)

        # In a task that carries no run, because the client passes the context on to tasks of its
        # own, which live in the service. The nursery is the caller's, and so are its cancel and
        # deadline.
        async with trio.open_nursery() as nursery:
            start_soon(nursery, ask, run=None, name=f"call of {name}")
        (result,) = said
        if not isinstance(result, Exception):
            return result
        if isinstance(result, MCPError):
            raise self._error(f"failed at {name!r}") from result
        if isinstance(result, trio.ClosedResourceError):
            raise self._error(f"went away during {name!r}") from result
        # A result that breaks the protocol, or a broken transport.
        raise self._error(f"gave no valid answer to {name!r}") from result

    def _error(self, what: str) -> McpServerError:
        # A client's error may quote the URL, key and all; the cause has it for whoever looks.
        told = str(self._failure).replace(str(self._target), self.words)
        because = "" if self._failure is None else f" ({told})"
        where = "log" if isinstance(self._target, str) else "standard error"
        return McpServerError(
            f"MCP server {self.words!r} {what}{because}; see the cause, and what the server "
            f"writes to its {where}"
        )


async def _all_tools(client: Client) -> list[ServerTool]:
    offered: list[ServerTool] = []
    cursor: str | None = None
    for _ in range(PAGES_AT_MOST):
        page = await client.list_tools(cursor=cursor)
        offered.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return offered


@attrs.frozen(eq=False, kw_only=True, repr=False)
class McpTool(Tool):
    """A tool of an MCP server. The server validates the arguments."""

    _connection: Connection = attrs.field(alias="connection")
    _server_name: str = attrs.field(alias="server_name")

    async def invoke(self, arguments: Mapping[str, Any], call_id: str) -> Any:
        """Make the server call it.

        Returns:
          The text of the result, with its images, sounds and files if it has any; or, if it has
          neither, the structured value.

        Raises:
          McpToolError: if the server says that the call failed, with what it says.
          McpServerError: if the connection is closed or breaks.

        Checkpoint: always.

        Cancellation: the server is told; what it has done by then stays done.
        """
        result = await self._connection.call(self._server_name, arguments)
        parts = [_part(block) for block in result.content]
        text = content_in_words(tuple(parts))
        if result.is_error:
            raise McpToolError(text or f"{self.name} failed, and the server doesn't say why")
        if any(isinstance(part, File) for part in parts):
            return parts
        return text if text or result.structured_content is None else result.structured_content


def _part(block: object) -> str | File:
    """Return a piece of a result as text or a file; what is neither is described."""
    if isinstance(block, TextContent):
        return block.text
    held: Any = block
    name = None
    if isinstance(block, EmbeddedResource):
        held = block.resource
        text = getattr(held, "text", None)
        if isinstance(text, str):
            return text
        name = PurePosixPath(urlsplit(str(held.uri)).path).name or None
    data = getattr(held, "blob", None) or getattr(held, "data", None)
    if isinstance(data, str):
        try:
            return File(
                data=base64.b64decode(data, validate=True),
                media_type=getattr(held, "mime_type", None) or "",
                name=name,
            )
        except ValueError as error:
            return f"[a file that can't be read: {error}]"
    kind = getattr(block, "type", type(block).__name__)
    about = {
        name: value
        for name in ("uri", "name", "mime_type")
        if (value := getattr(block, name, None)) is not None
    }
    return f"[{kind} {json.dumps(about, default=str)}]"
