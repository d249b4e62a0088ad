"""Keep with an item of a journal what its runs say: log records, notes, messages, and files.

Each is written as it comes, and nobody waits for it: so what an item said before it took its
process down is there. What one item may fill is bounded; what doesn't fit is left out, and a record
says so.
"""

from __future__ import annotations

from harness._words import masked, masked_repr_of
from harness.errors import JournalError
from harness.fanout._journal_job import JournaledJob
from harness.fanout._journal_records import Records
from harness.fanout._kept import BYTES_PER_ITEM, ItemLogs, Kept
from harness.runs import Event, Run
from harness.runs._observers import Observer

CHARACTERS_AT_MOST = 20_000
"""What is kept of one log record, note or message. Looking for secrets takes its time."""

NAME_AT_MOST = 500

STATED_AT_MOST = 20
"""How many files that were left out are named."""


class ItemKeeper:
    """Keeps things with one item, as far as they fit. Also observes its runs, if asked to."""

    __slots__ = ("_bytes_left", "_heard", "_job", "_records", "_stated", "logs")

    def __init__(self, records: Records, job: JournaledJob) -> None:
        self._records = records
        self._job = job
        logs = records.logs
        self.logs: ItemLogs | None = logs
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

    def listen_in(self, run: Run) -> None:
        """Hear what is told in a run and in those opened in it from now on, if that is kept."""
        if self.logs is not None:
            run._observers = (*run._observers, Observer(self))

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


def keeper_of(job: JournaledJob, records: Records) -> ItemKeeper:
    """Return what keeps things with an item; made when it is first needed."""
    if job.keeper is None:
        job.keeper = ItemKeeper(records, job)
    keeper: ItemKeeper = job.keeper
    return keeper
