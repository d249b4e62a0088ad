"""A durable record of batches and effects: what is in it is never computed again.

`open_journal` opens a file, or a database on a server, for ``fan_out(..., journal=journal,
key=...)``. A program that was killed goes on where it stopped: what is done is taken from the
journal.
"""

from harness.fanout import Totals
from harness.fanout._kept import ItemLogs
from harness.journal._backup import backup_journal
from harness.journal._export import ExportForm
from harness.journal._inspect import (
    BatchInfo,
    JournalEditor,
    JournalReader,
    KeptRecord,
    StepRecord,
    WaitingItem,
    edit_journal,
    read_journal,
)
from harness.journal._item import ItemStatus, JournalItem
from harness.journal._journal import IdentifiedJournal, Journal, open_journal
from harness.journal._watch import BatchProgress, BatchState

__all__ = [
    "BatchInfo",
    "BatchProgress",
    "BatchState",
    "ExportForm",
    "IdentifiedJournal",
    "ItemLogs",
    "ItemStatus",
    "Journal",
    "JournalEditor",
    "JournalItem",
    "JournalReader",
    "KeptRecord",
    "StepRecord",
    "Totals",
    "WaitingItem",
    "backup_journal",
    "edit_journal",
    "open_journal",
    "read_journal",
]
