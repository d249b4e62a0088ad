"""Hold the items of a resumed fan-out that a journal has, until their results are read.

What is left to do may come after a million of these, and must not wait for their results. So they
are pulled as fast as they can be looked up, and most are put aside in a temporary file without a
name: memory stays flat. Only plain data that nobody else holds goes there, since it comes back as a
copy; of a list or another lasting sequence, only the index does. The rest stays in memory, and
bounds how far ahead the source is read.
"""

from __future__ import annotations

import marshal
import operator
import os
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeAlias

from harness.fanout._journal import Entry, Glimpse

Glimpsed: TypeAlias = tuple[int, Any, Any, Glimpse | Entry]
"""The index of an item, the item, its key, and what the journal says of it."""

Recognized: TypeAlias = tuple[int, Any, Any, Entry]
"""The same, once the item was compared with what was recorded."""

PUT_ASIDE_AT_ONCE = 1_024

IN_MEMORY_AT_MOST = 20_000
"""Items in memory, beyond which no more are pulled."""

GATHERED_AT_MOST = 500
"""The same if nobody reads the results one by one. All are held in the end, and what was kept
should be among them if the fan-out ends early."""

FIELDS = "_harness_fields_"
"""A method of items of our own that returns what their class makes an equal one of."""

_item_of = operator.itemgetter(1)
_PLAIN = frozenset({str, int, float, bool, type(None), bytes})
_references: Callable[[object], int] = getattr(sys, "getrefcount", lambda _: sys.maxsize)


class _InFile(NamedTuple):
    """Where items are in the file."""

    start: int
    length: int
    cls: type | None
    """What makes them of their fields; None: they are as they were."""


class GlimpsedItems:
    """A queue of them.

    Args:
      items: All items of the fan-out, if any of them can be looked at later.
      at_most: How many may be in memory.
    """

    def __init__(
        self, items: Sequence[Any] | None = None, *, at_most: int = IN_MEMORY_AT_MOST
    ) -> None:
        self._items = items
        self._at_most = at_most
        self._first: deque[Glimpsed] = deque()
        self._parts: deque[list[Glimpsed] | _InFile] = deque()
        """What comes between the first and the last."""
        self._last: list[Glimpsed] = []
        self._file: IO[bytes] | None = None
        self._count = self._in_file = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether no more should be put in."""
        return self._count - self._in_file >= self._at_most

    @property
    def next_index(self) -> int:
        """The index of the first of them; there must be one."""
        if not self._first:
            self._first.extend(self._next_part())
        return self._first[0][0]

    def put(self, glimpsed: Glimpsed) -> None:
        """Add an item."""
        self.extend([glimpsed])

    def extend(self, glimpsed: list[Glimpsed]) -> None:
        """Add items."""
        self._count += len(glimpsed)
        self._last += glimpsed
        # Not the newest: the source may still hold it.
        if len(self._last) > PUT_ASIDE_AT_ONCE:
            part, self._last = self._last[:-1], self._last[-1:]
            self._parts.append(self._put_aside(part))

    def take(self, count: int) -> list[Glimpsed]:
        """Take out so many, or all, in the order in which they came."""
        taken: list[Glimpsed] = []
        while len(taken) < count and self._count:
            if not self._first:
                self._first.extend(self._next_part())
            for _ in range(min(count - len(taken), len(self._first))):
                taken.append(self._first.popleft())
                self._count -= 1
        return taken

    def drain(self) -> Iterator[tuple[int, Any]]:
        """Take out all, each with its index."""
        while self._count:
            for index, item, *_ in self.take(PUT_ASIDE_AT_ONCE):
                yield index, item

    def _next_part(self) -> list[Glimpsed]:
        if not self._parts:
            last, self._last = self._last, []
            return last
        part = self._parts.popleft()
        if isinstance(part, list):
            return part
        assert self._file is not None
        self._file.seek(part.start)
        loaded: list[Glimpsed] = marshal.loads(self._file.read(part.length))
        self._in_file -= len(loaded)
        if not self._in_file:
            self._file.truncate(0)
        if (items := self._items) is not None:
            return [(index, items[index], key, glimpse) for index, _, key, glimpse in loaded]
        if (cls := part.cls) is not None:
            return [(index, cls(*fields), key, glimpse) for index, fields, key, glimpse in loaded]
        return loaded

    def _put_aside(self, part: list[Glimpsed]) -> list[Glimpsed] | _InFile:
        """Write items to the file; return where they are, or the items if they can't be there."""
        cls: type | None = type(part[0][1])
        written = part
        try:
            if self._items is not None:
                if type(self._items) is list and self._file is None:
                    self._items = self._items.copy()  # Its owner may change it meanwhile.
                written = [(index, None, key, glimpse) for index, _, key, glimpse in part]
            elif hasattr(cls, FIELDS) and all(type(item) is cls for item in map(_item_of, part)):
                written = [
                    (index, item._harness_fields_(), key, glimpse)
                    for index, item, key, glimpse in part
                ]
            elif _are_ours(map(_item_of, part)):
                cls = None
            else:
                return part
            content = marshal.dumps(written)
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                # What is left may be asked for as long as the fan-out's results are there.
                weakref.finalize(self, self._file.close)
            start = self._file.seek(0, os.SEEK_END)
            if self._file.write(content) != len(content):
                return part
        except (ValueError, RecursionError, OSError):
            # It isn't plain, or is nested too deeply; or there is no room on the disk.
            return part
        self._in_file += len(part)
        return _InFile(start, len(content), cls)


def _are_ours(items: Iterable[Any]) -> bool:
    """Return whether nobody else holds any of these, so that copies will do."""
    for item in items:
        cls = type(item)
        if cls in _PLAIN:
            continue
        if _references(item) > _OURS:
            return False
        parts = item.values() if cls is dict else item if cls in (list, tuple) else ()
        if not _PLAIN.issuperset(map(type, parts)) and not _are_ours(parts):
            return False
    return True


def _counted(items: Iterable[Any]) -> int:
    """Return how many references are counted as above of what only its container holds."""
    return next(_references(item) for item in items)


_OURS = _counted([[]])
