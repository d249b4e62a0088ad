"""Tell the address of a Redis server from a path, and quote it without its password."""

from __future__ import annotations

import re

_SERVER = re.compile(r"rediss?://")

# No sign that ends a part of an address may be in a user or password: the rest would count as a
# host, and be quoted.
_ADDRESS = re.compile(
    r"(?P<scheme>rediss?://)(?:[^/?#\s]*@)?(?P<host>\[[^\]\s@]+\]|[^/?#\s:@\[\]]+)"
    r"(?::(?P<port>\d{1,5}))?(?P<database>/\d*)?(?:\?[^#\s@]*)?"
)


def is_server(where: str) -> bool:
    """Return whether this is the address of a Redis server."""
    return _SERVER.match(where) is not None


def without_password(address: str) -> str:
    """Return an address as messages may quote it.

    Raises:
      ValueError: if it isn't an address of a Redis server; nothing of it is quoted then.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None or int(parts["port"] or 0) > 65_535:
        raise ValueError(
            "the address of a Redis server must be redis://user:password@host:port/database, where "
            "all but the host may be left out, and this one isn't (it isn't shown, for its "
            "password); write what isn't a letter or a digit of a password as "
            'urllib.parse.quote(password, safe="") does'
        )
    port = "" if parts["port"] is None else f":{parts['port']}"
    return f"{parts['scheme']}{parts['host']}{port}{parts['database'] or ''}"
