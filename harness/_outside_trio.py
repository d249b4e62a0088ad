"""Say in one voice that something needs trio, where there is none, and where to read on."""

from __future__ import annotations

import sys

import trio

PAGE = "docs/how-to/web.md"
"""The page that shows how to get from asyncio, a server or a notebook into trio."""


def refuse_outside_trio(what: str) -> None:
    """Refuse to go on unless a trio task is running.

    Args:
      what: What was called, and how, such as ``fan_out() was called``.

    Raises:
      RuntimeError: outside trio.
    """
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise outside_trio(what) from None


def outside_trio(
    what: str, *, instead: str = "use it in a function that trio.run() runs"
) -> RuntimeError:
    """Return the error that says that something needs trio.

    Args:
      what: What was called, and how, such as ``fan_out() was called``.
      instead: What to do, as an order.
    """
    where = "outside trio, in asyncio" if in_asyncio() else "outside trio"
    return RuntimeError(
        f"{what} {where}; {instead} ({PAGE} shows how, from asyncio, a server or a notebook)"
    )


def in_asyncio() -> bool:
    """Return whether an asyncio loop runs the code that calls."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
