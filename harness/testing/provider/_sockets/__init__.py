"""The simulated provider on a socket. Needs the extra ``provider``, loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness._extras import load_with_extra

if TYPE_CHECKING:
    from harness.testing.provider._sockets._server import open_server

__all__ = ["open_server"]


def __getattr__(name: str) -> Any:
    if name != "open_server":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_with_extra(
        "harness.testing.provider._sockets._server",
        name,
        subject="a simulated provider that listens on a socket",
        extras={"h11": "provider"},
        otherwise="open it with http=False",
    )
