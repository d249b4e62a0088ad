"""Keep with an item of a journal what its runs say: log records, notes, messages, and files.

Each is written as it comes, and nobody waits for it: so what an item said before it took its
process down is there. What one item may fill is bounded; what doesn't fit is left out, and a record
says so.
"""

from __future__ import annotations

import logging
from typing import Any, Literal, NamedTuple

import attrs

from harness._arguments import check_count
from harness._words import masked, masked_repr_of
from harness.errors import JournalError
from harness.fanout._journal_job import JournaledJob
from harness.fanout._journal_records import Records
from harness.runs import Event

BYTES_PER_ITEM = 1_000_000
"""What one item may keep in one session, by default."""

CHARACTERS_AT_MOST = 20_000
"""What is kept of one log record, note or message. Looking for secrets takes its time."""

NAME_AT_MOST = 500

STATED_AT_MOST = 20
"""How many files that were left out are named."""

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


class ItemKeeper:
    """Keeps things with one item, as far as they fit. Also observes its runs, if asked to."""

    __slots__ = ("_bytes_left", "_heard", "_job", "_records", "_stated", "logs")

    def __init__(self, records: Records, job: JournaledJob, logs: ItemLogs | None) -> None:
        self._records = records
        self._job = job
        self.logs = logs
        """What is kept besides files; None: nothing."""
        self._bytes_left = BYTES_PER_ITEM if logs is None else logs.bytes_per_item
        self._stated = 0
        self._heard: dict[str, int] = {}
        """How many messages of each run's conversation were kept."""

    def keep_file(self, name: str, run: str, content: bytes) -> None:
        """Keep a file, if there is room for it."""
        self.keep(Kept("file", name, run, None, content))

    def keep_log(self, name: str, run: str, text: str) -> None:
        """Keep a log record."""
        self.keep(Kept("log", name, run, masked(text[:CHARACTERS_AT_MOST])))

    def keep(self, kept: Kept) -> None:
        """Keep it, or what there is room for."""
        name, text, content = kept.name[:NAME_AT_MOST], kept.text, kept.content
        if text is not None:
            text = _cut(text, CHARACTERS_AT_MOST)
        size = len(name) + len(text or "") + len(content or b"")
        if size <= self._bytes_left:
            self._bytes_left -= size
            self._write(kept._replace(name=name, text=text))
            return
        if content is not None:
            what = f"the file {name!r} of {len(content):,} bytes"
        elif self._bytes_left > len(name):
            # The rest is room for nothing, so that what comes later isn't taken for all there was.
            self._write(kept._replace(name=name, text=_cut(text or "", self._bytes_left)))
            self._bytes_left = 0
            what = "what came later"
        else:
            return
        if self._stated < STATED_AT_MOST:
            self._stated += 1
            most = BYTES_PER_ITEM if self.logs is None else self.logs.bytes_per_item
            words = f"{what} was left out: an item keeps {most:,} bytes in one session"
            self._write(Kept("cut", name, kept.run, words))

    def _write(self, kept: Kept) -> None:
        try:
            self._records.batch.keep_nowait(self._job.entry, kept)
        except JournalError as error:
            self._records.fail(error)

    # As an observer of the item's runs ----------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Keep what the program told, but nothing of what harness tells."""
        cls = type(event.payload)
        if self.logs is None or not self.logs.notes or cls.__module__.startswith("harness."):
            return
        text = event.payload if cls is str else masked_repr_of(event.payload)
        self.keep(Kept("note", cls.__qualname__, event.path, masked(text[:CHARACTERS_AT_MOST])))

    def notice(self, event: Event) -> None:
        """Keep the messages that the run's model has been sent since, and its answer."""
        said = getattr(event.payload, "said_since", None)
        if said is None or self.logs is None or not self.logs.messages:
            return
        count, messages = said(self._heard.get(event.run_id, 0))
        self._heard[event.run_id] = count
        for role, text in messages:
            self.keep(Kept("message", role, event.path, masked(text[:CHARACTERS_AT_MOST])))


def _cut(text: str, at_most: int) -> str:
    return text if len(text) <= at_most else f"{text[:at_most]}... ({len(text):,} characters)"
