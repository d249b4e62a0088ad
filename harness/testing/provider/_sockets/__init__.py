"""Serve the simulated provider on a socket. Needs the extra ``provider``; loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness._lazy import lazy

if TYPE_CHECKING:
    from harness.testing.provider._sockets._server import open_server
else:
    __getattr__, __dir__ = lazy(
        extras={"h11": "provider"},
        subject="a simulated provider that listens on a socket",
        otherwise="open it with http=False",
    )

__all__ = ["open_server"]
