"""Tell the address of a Redis server from a path, and quote it without its password."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_SERVER = re.compile(r"rediss?://")


def is_server(where: str) -> bool:
    """Return whether this is the address of a Redis server."""
    return _SERVER.match(where) is not None


def without_password(address: str) -> str:
    """Return an address as messages may quote it."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
