"""Tools of a real MCP server, in a process of its own, used by many runs at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import harness
from harness.agents import Agent, Tool, open_mcp_tools
from harness.errors import McpServerError, McpToolError
from harness.models import ModelRequest, ModelResponse, ToolCall
from tests.agents.fakes import Fake
from tests.scale import PATIENCE_SECONDS

pytestmark = pytest.mark.real_clock

SERVER = Path(__file__).with_name("mcp_server.py")
COMMAND = [sys.executable, str(SERVER)]


@pytest.fixture(autouse=True)
def started_before() -> None:
    """Remember the processes of the whole session, such as its PostgreSQL."""
    _STARTED_BEFORE.update(children())


_STARTED_BEFORE: set[str] = set()


def named(tools: tuple[Tool, ...], name: str) -> Tool:
    return next(tool for tool in tools if tool.name == name)


async def call(tools: tuple[Tool, ...], tool: str, **arguments: Any) -> Any:
    with trio.fail_after(PATIENCE_SECONDS):
        return await named(tools, tool).invoke(arguments, "c1")


@pytest.mark.slow
async def test_named_tools_with_a_prefix_as_the_server_describes_them() -> None:
    async with open_mcp_tools(COMMAND, only=["fail", "add"], prefix="math_") as tools:
        assert [tool.name for tool in tools] == ["math_fail", "math_add"]
        assert tools[1].description == "Add two numbers."
        assert set(tools[1].parameters["properties"]) == {"a", "b"}
        assert await call(tools, "math_add", a=1, b=2) == "3"
        with pytest.raises(McpToolError, match="out of stock"):
            await call(tools, "math_fail", why="out of stock")
    with pytest.raises(McpServerError, match="the connection is closed"):
        await call(tools, "math_add", a=1, b=2)


@pytest.mark.slow
async def test_process_ends_with_the_block_and_knows_no_keys_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    with pytest.raises(ZeroDivisionError):  # The body's error, and as itself.
        async with open_mcp_tools(COMMAND, env={"GIVEN": "yes"}) as tools:
            assert await call(tools, "environment", name="SOME_API_KEY") == "unset"
            assert await call(tools, "environment", name="GIVEN") == "yes"
            assert children() != []
            raise ZeroDivisionError
    assert children() == []


@pytest.mark.slow
async def test_twenty_runs_use_one_connection_at_once() -> None:
    """With a connection that serves one request at a time, all but the first would wait or hang."""

    def model(request: ModelRequest) -> str | ModelResponse:
        last = request.messages[-1]
        if last.role == "tool":
            return f"the sum is {last.content}"
        number = int(last.text)
        return ModelResponse(tool_calls=[ToolCall("c1", "add", {"a": number, "b": 1000})])

    async with open_mcp_tools(COMMAND) as tools:
        agent = Agent("adder", model=Fake(model), tools=tools)
        results = await harness.fan_out(agent, [str(number) for number in range(20)], limit=20)
        at_once = int((await call(tools, "busiest")).split()[0])
    outputs = [reply.output for reply in results.values()]
    assert outputs == [f"the sum is {number + 1000}" for number in range(20)]
    assert at_once > 10


@pytest.mark.slow
async def test_cancelling_one_call_leaves_the_others_alone_and_tells_the_server() -> None:
    async with open_mcp_tools(COMMAND) as tools:
        sums: list[str] = []

        async def one(number: int) -> None:
            sums.append(await call(tools, "add", a=number, b=0))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(one, number)
            with trio.move_on_after(0.02) as scope:
                await call(tools, "add", a=99, b=0)
        assert scope.cancelled_caught
        assert sorted(sums) == ["0", "1", "2", "3", "4"]
        assert (await call(tools, "busiest")).endswith("0 now")


@pytest.mark.slow
async def test_arguments_that_dont_fit_are_told_to_the_model_and_can_be_corrected() -> None:
    def model(request: ModelRequest) -> str | ModelResponse:
        last = request.messages[-1]
        if last.role == "user":
            return ModelResponse(tool_calls=[ToolCall("c1", "add", {"a": "one", "b": 2})])
        if "valid integer" in last.content:
            return ModelResponse(tool_calls=[ToolCall("c2", "add", {"a": 1, "b": 2})])
        return last.text

    async with open_mcp_tools(COMMAND) as tools:
        agent = Agent("adder", model=Fake(model), tools=tools)
        assert (await agent.run("one and two")).output == "3"


@pytest.mark.slow
async def test_server_that_dies_in_a_call_is_an_error_and_never_a_hang() -> None:
    async with open_mcp_tools(COMMAND) as tools:
        errors: list[McpServerError] = []

        async def hang() -> None:
            try:
                await call(tools, "hang")
            except McpServerError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang)
            await trio.sleep(0.1)
            with pytest.raises(McpServerError, match="exit_now"):
                await call(tools, "exit_now")
        assert len(errors) == 1
        with pytest.raises(McpServerError, match=r"mcp_server\.py"):
            await call(tools, "add", a=1, b=2)


@pytest.mark.slow
async def test_connection_is_open_in_the_clean_up_of_a_cancelled_block() -> None:
    """A service ends after its users, or their clean-up finds it gone."""
    said: list[str] = []
    with trio.move_on_after(PATIENCE_SECONDS) as scope:
        async with open_mcp_tools(COMMAND) as tools:
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with harness.cleanup():
                    said.append(await call(tools, "add", a=1, b=2))
    assert said == ["3"]


@pytest.mark.slow
async def test_connection_of_a_run_belongs_to_no_run() -> None:
    """Opened inside one run, it must serve the next with the next one's context."""
    async with harness.open_run("opener"), open_mcp_tools(COMMAND) as tools:
        text = harness.dump()
        results = await harness.fan_out(lambda n: call(tools, "add", a=n, b=0), range(3))
    assert results.values() == ["0", "1", "2"]
    assert "MCP server" in text


@pytest.mark.slow
async def test_server_reached_by_url() -> None:
    async with http_server() as url, open_mcp_tools(url) as tools:
        results = await harness.fan_out(lambda n: call(tools, "add", a=n, b=1), range(20))
        assert results.values() == [str(n + 1) for n in range(20)]


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "server",
    [
        ["no-such-program-here"],
        [sys.executable, "-c", "raise SystemExit(1)"],
        "http://127.0.0.1:9/mcp",
    ],
    ids=["no program", "exits at once", "nobody listens"],
)
async def test_server_that_cant_be_reached(server: Any) -> None:
    with trio.fail_after(PATIENCE_SECONDS), pytest.raises(McpServerError, match="MCP server"):
        async with open_mcp_tools(server):
            pass  # pragma: no cover


@pytest.mark.slow
async def test_server_that_never_answers_is_given_up() -> None:
    silent = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with trio.fail_after(PATIENCE_SECONDS), pytest.raises(McpServerError, match=r"within 0\.3 s"):
        async with open_mcp_tools(silent, connect_timeout=0.3):
            pass  # pragma: no cover
    assert children() == []


@pytest.mark.slow
async def test_unknown_tool_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="has no tool 'subtract'; it has add, busiest"):
        async with open_mcp_tools(COMMAND, only=["subtract"]):
            pass  # pragma: no cover


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [
        ([], {}, ValueError),
        ("", {}, ValueError),
        ("python 'server.py", {}, ValueError),
        ([""], {}, ValueError),
        (None, {}, TypeError),
        (5, {}, TypeError),
        (SERVER, {}, TypeError),
        (b"python server.py", {}, TypeError),
        ({"command": "python"}, {}, TypeError),
        (COMMAND, {"only": 5}, TypeError),
        (COMMAND, {"only": ["add", 5]}, TypeError),
        (COMMAND, {"env": {"KEY": b"secret"}}, TypeError),
        ("http://127.0.0.1:9/mcp", {"cwd": "."}, TypeError),
        (COMMAND, {"only": "add"}, TypeError),
        (COMMAND, {"timeout": -1}, ValueError),
        (COMMAND, {"on_error": "runs"}, ValueError),
        (COMMAND, {"prefix": "my server."}, ValueError),
        (COMMAND, {"prefix": None}, TypeError),
    ],
)
async def test_bad_arguments_are_refused_before_anything_starts(
    given: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match="open_mcp_tools") as refused:
        async with open_mcp_tools(given, **options):
            pass  # pragma: no cover
    assert "secret" not in str(refused.value)
    assert children() == []


def test_no_secret_of_a_url_stands_in_an_error() -> None:
    async def main() -> None:
        async with open_mcp_tools("http://user:secret@127.0.0.1:9/mcp?key=secret"):
            pass  # pragma: no cover

    with pytest.raises(McpServerError) as failed:
        trio.run(main)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["no-such-server", "--api-key=secret"], "no-such-server"),
        (["no-such-server", "http://user:secret@host/sse?key=secret"], "no-such-server"),
        (["no-such-python", "-m", "package.server", "secret"], "no-such-python -m package.server"),
        (["no-such-python", "folder/server.py", "secret"], "no-such-python server.py"),
    ],
)
async def test_no_secret_of_a_command_stands_in_an_error(command: list[str], shown: str) -> None:
    with pytest.raises(McpServerError, match=f"^MCP server '{shown}' could not") as failed:
        async with open_mcp_tools(command):
            pass  # pragma: no cover
    assert "secret" not in str(failed.value)


@pytest.mark.slow
async def test_name_that_providers_refuse_is_one_that_they_take() -> None:
    """One dot in a server's tool name got every request of the agent refused."""
    async with open_mcp_tools(COMMAND, only=["stock.count/all"], prefix="shop_") as tools:
        assert [tool.name for tool in tools] == ["shop_stock_count_all"]
        assert await call(tools, "shop_stock_count_all") == "12"


def children() -> list[str]:
    """Return the process ids of live servers that this test started."""
    listed = subprocess.run(
        ["ps", "-eo", "ppid=,pid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 3) for line in listed.stdout.splitlines()]

    me = str(os.getpid())
    return [
        pid
        for parent, pid, state, args in (row for row in rows if len(row) == 4)
        if parent == me
        and pid not in _STARTED_BEFORE
        and not state.startswith("Z")
        and "python" in args
    ]


@asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with trio.open_nursery() as nursery:
        run_server = partial(
            trio.run_process, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
        process = await nursery.start(run_server, [*COMMAND, str(port)])
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", port)
                except OSError:
                    await trio.sleep(0.05)
                else:
                    await stream.aclose()
                    break
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()
