"""An MCP server for the tests: ``python mcp_server.py [PORT]``.

Without a port, it talks through its standard input and output.
"""

import os
import sys

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("numbers", log_level="CRITICAL")
under_way = 0
most_at_once = 0


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    global under_way, most_at_once
    under_way += 1
    most_at_once = max(most_at_once, under_way)
    try:
        await anyio.sleep(0.1)
    finally:
        under_way -= 1
    return a + b


@server.tool()
def busiest() -> str:
    """Say how many additions were in progress at once."""
    return f"{most_at_once} at once, {under_way} now"


@server.tool()
def fail(why: str) -> str:
    """Fail, and say why."""
    raise ToolError(why)


@server.tool()
async def hang() -> str:
    """Never return."""
    await anyio.sleep(3600)
    return "never"


@server.tool()
def environment(name: str) -> str:
    """Return an environment variable."""
    return os.environ.get(name, "unset")


@server.tool()
def exit_now() -> str:
    """End the server's process in the middle of a call."""
    os._exit(3)


@server.tool("stock.count/all")
def stock() -> str:
    """Count all that is in stock."""
    return "12"


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
