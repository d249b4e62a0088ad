"""Say what a journal keeps of what an item's runs say, and what a thing to keep is made of."""

from __future__ import annotations

import logging
from typing import Any, Literal, NamedTuple

import attrs

from harness._arguments import check_count

BYTES_PER_ITEM = 1_000_000
"""What one item may keep in one session, by default."""

KeptKind = Literal["log", "note", "message", "file", "cut"]
"""What a record is: ``"cut"`` says what was left out."""


def _check_level(instance: ItemLogs, attribute: object, value: Any) -> None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return
    raise TypeError(
        f"ItemLogs(level=...) takes a level of logging, not {value!r}; write logging.INFO, or None "
        "to keep no log records"
    )


def _check_bytes(instance: ItemLogs, attribute: object, value: Any) -> None:
    check_count("ItemLogs(bytes_per_item=...)", value, advice="the default is 1,000,000")


@attrs.frozen(kw_only=True)
class ItemLogs:
    """What a journal keeps with each item of what its runs say. Secrets are masked."""

    level: int | None = attrs.field(default=logging.INFO, validator=_check_level)
    """From which level on log records are kept; None: none are. A record that its logger doesn't
    let through can't be kept."""

    notes: bool = True
    """Whether what the program tells with `Run.emit` is kept."""

    messages: bool = True
    """Whether what models are sent and answer is kept."""

    bytes_per_item: int = attrs.field(default=BYTES_PER_ITEM, validator=_check_bytes)
    """How much one item may keep in one session, with the files of `Run.keep`."""


class Kept(NamedTuple):
    """Something to be kept with an item."""

    kind: KeptKind
    name: str
    """The logger, the class of the note, the role of the message, or the name of the file."""

    run: str
    """The path of the run it came from."""

    text: str | None
    """What it says; None for a file."""

    content: bytes | None = None
    """The content of a file."""
