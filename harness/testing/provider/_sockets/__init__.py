"""The simulated provider on a socket. Needs the extra ``provider``, loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.testing.provider._sockets._server import open_server

__all__ = ["open_server"]


def __getattr__(name: str) -> Any:
    if name != "open_server":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from harness.testing.provider._sockets._server import open_server  # noqa: PLC0415 (lazy)
    except ModuleNotFoundError as error:
        if error.name != "h11":
            raise
        raise ImportError(
            "a simulated provider that listens on a socket needs h11; install "
            "trio-harness[provider], or open it with http=False"
        ) from error
    return open_server
