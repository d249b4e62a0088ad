"""Keep large bytes once, however many values have them.

Bytes are base64 in the text of a value. Where a text goes into the database, each long piece of
base64 becomes the digest of its bytes, and these go into a table of their own, once per digest. A
hundred thousand answers about one picture then hold it once. Where a text comes out again, it is as
it was, character by character; so nobody who writes or reads values needs to know.

What is left behind when items are forgotten goes with the next `vacuum`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from harness.journal._backend import Backend

CHARACTERS_AT_LEAST = 1_024
"""Of base64 that is kept apart; a shorter piece is no larger than what refers to it needs."""

# A whole JSON string, but no key of an object.
_LONG = re.compile(rf'(?<!\\)"([A-Za-z0-9+/]{{{CHARACTERS_AT_LEAST},}}={{0,2}})"(?!\s*:)')
_KEPT = re.compile(r'\{"\$":"kept","v":"([0-9a-f]{64})"\}')
_MARK = '{"$":"kept"'


def keep_apart(backend: Backend, text: str, known: set[str]) -> str:
    """Return the text with digests in place of large bytes, once these are durable.

    Args:
      backend: The database.
      text: The text of a value or an input.
      known: Digests of what is kept already; new ones are added.
    """
    if len(text) < CHARACTERS_AT_LEAST:
        return text
    new: dict[str, bytes] = {}

    def keep(found: re.Match[str]) -> str:
        try:
            content = base64.b64decode(found[1], validate=True)
        except binascii.Error:
            return found[0]
        if base64.b64encode(content).decode() != found[1]:  # It ends in bits that mean nothing.
            return found[0]
        digest = hashlib.sha256(content).hexdigest()
        if digest not in known:
            new[digest] = content
        return f'{_MARK},"v":"{digest}"}}'

    text = _LONG.sub(keep, text)
    if new:
        insert = "INSERT INTO harness_bytes VALUES (?, ?) ON CONFLICT DO NOTHING"
        backend.change([(insert, one) for one in new.items()])
        known.update(new)
    return text


def is_kept_apart(text: str | None) -> bool:
    """Return whether a text from the database may refer to bytes that are kept apart."""
    return text is not None and _MARK in text


def put_together(backend: Backend, text: str) -> str:
    """Return the text as it was given to `keep_apart`."""

    def put_back(found: re.Match[str]) -> str:
        rows = backend.fetch("SELECT content FROM harness_bytes WHERE digest = ?", (found[1],))
        return f'"{base64.b64encode(rows[0][0]).decode()}"' if rows else found[0]

    return _KEPT.sub(put_back, text) if is_kept_apart(text) else text


def drop_unused(backend: Backend) -> None:
    """Delete the bytes that no value refers to any more."""
    kept = {digest for (digest,) in backend.fetch("SELECT digest FROM harness_bytes")}
    if not kept:
        return
    for table, column in (
        ("harness_endings", "value"),
        ("harness_steps", "value"),
        ("harness_effects", "value"),
        ("harness_inputs", "input"),
    ):
        query = f"SELECT {column} FROM {table} WHERE {column} LIKE ?"
        for (text,) in backend.stream(query, (f"%{_MARK}%",)):
            kept.difference_update(_KEPT.findall(text))
    backend.change([("DELETE FROM harness_bytes WHERE digest = ?", (one,)) for one in kept])
