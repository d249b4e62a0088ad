"""Find clients, connections and channels that are made when a module is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._finding import Rule
from harness.testing.audit._rules._names import assigned_name
from harness.testing.audit._rules._set_up import is_of_a_command_line
from harness.testing.audit._source_file import Source
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="client-at-import",
    title="a client, connection or channel made when the module is imported",
    why="it outlives every run and every event loop: connections with unread replies, messages "
    "and settings of one run reach the next, and no block closes it",
    fix="open it in an `async with` of the program and pass it on as deps, or in the run itself",
)

_ASYNC_HOMES = frozenset(
    (
        "aiohttp",
        "aioboto3",
        "aioredis",
        "aiosqlite",
        "anthropic",
        "asyncpg",
        "coredis",
        "cohere",
        "elasticsearch",
        "google",
        "groq",
        "grpc",
        "httpcore",
        "httpx",
        "litellm",
        "mcp",
        "mistralai",
        "motor",
        "openai",
        "psycopg",
        "psycopg_pool",
        "pymongo",
        "qdrant_client",
        "redis",
        "requests",
        "sqlalchemy",
        "sqlite3",
        "boto3",
        "trio_websocket",
    )
)
_CLIENT = re.compile(
    r"(Client|Session|Connection|Pool|Channel|OpenAI|Anthropic|Redis|Mistral|Groq|Engine)$"
    r"|^(connect|create_pool|create_engine|create_async_engine|client|resource|insecure_channel"
    r"|secure_channel|from_url)$"
)
_MESSAGE_HOLDERS = frozenset(
    (
        "anyio.create_memory_object_stream",
        "anyio.Event",
        "asyncio.Event",
        "asyncio.Queue",
        "trio.Event",
        "trio.open_memory_channel",
    )
)


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield calls that make something with a connection or a state, outside any function."""
    if is_of_a_command_line(source):
        return
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = source.dotted(node.func)
        home, _, name = called.partition(".")
        is_client = home in _ASYNC_HOMES and _CLIENT.search(name.rpartition(".")[2])
        if not is_client and called not in _MESSAGE_HOLDERS:
            continue
        if not source.is_at_import(node) or _decorates(node, source):
            continue
        symbol = assigned_name(node, source, called)
        yield Hit(
            node=node,
            symbol=symbol,
            message=f"{symbol} is made when the module is imported ({called}); all runs share it",
        )


def _decorates(node: ast.Call, source: Source) -> bool:
    return node in getattr(source.parents.get(node), "decorator_list", ())


CLIENT_AT_IMPORT = Checker(RULE, check)
