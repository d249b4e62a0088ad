"""Show one item of a journal with all that it said, and write out the files it kept."""

from __future__ import annotations

import re
from heapq import merge
from operator import itemgetter
from pathlib import Path, PurePosixPath
from time import localtime, strftime

import click

from harness.cli._errors import InputError
from harness.cli._shown import shown
from harness.journal import JournalReader, KeptRecord, StepRecord

_TEXT_SHOWN = 2_000
_NAME_AT_MOST = 120

_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that mean devices on Windows."""


def show_said(reader: JournalReader, batch: str, key: str | int) -> None:
    """Show the steps of an item that are done, and what it said."""
    steps = ((step.done_at, "done", _words_of_step(step)) for step in reader.steps(batch, key))
    said = ((one.kept_at, one.kind, _words_of(one)) for one in reader.kept(batch, key))
    for at, kind, words in merge(steps, said, key=itemgetter(0)):
        lines = words.splitlines() or [""]
        click.echo(f"  {_time(at)}  {kind:<8} {shown(lines[0], most=_TEXT_SHOWN)}")
        for line in lines[1:]:
            click.echo(f"      {shown(line, most=_TEXT_SHOWN)}")


def write_files(reader: JournalReader, batch: str, key: str | int, folder: str) -> int:
    """Write the files that an item kept into a folder, and return how many there were.

    A name comes from the program, or from whatever it read: it never leads out of the folder, and
    nothing that is there is overwritten or followed.

    Raises:
      InputError: if one can't be written.
    """
    there = Path(folder)
    taken: set[str] = set()
    try:
        there.mkdir(parents=True, exist_ok=True)
        for one in reader.kept(batch, key):
            if one.content is None:
                continue
            name = _unused(safe_name(one.name), taken)
            # Neither over a file that is there nor through a link of that name.
            with open(there / name, "xb") as file:
                file.write(one.content)
            click.echo(f"  wrote {shown(str(there / name))} ({len(one.content):,} bytes)")
    except FileExistsError as error:
        raise InputError(
            f"{shown(str(error.filename))!r} already exists, and nothing is overwritten; give "
            "--files another folder"
        ) from error
    except OSError as error:
        raise InputError(
            f"the files can't be written into {folder!r}: {error.strerror or error}"
        ) from error
    return len(taken)


def safe_name(name: str) -> str:
    """Return a plain file name that is safe in any folder, as like ``name`` as can be."""
    parts = [part for part in re.split(r"[/\\]", name) if part.strip(". ")]
    plain = re.sub(r"[^\w.\- ]", "_", "_".join(parts)).strip(". ")
    stem, ending = PurePosixPath(plain).stem, PurePosixPath(plain).suffix
    while stem and len((stem + ending).encode()) > _NAME_AT_MOST:
        stem = stem[:-1]
    plain = (stem + ending).strip(". ")
    if not plain or len(plain.encode()) > _NAME_AT_MOST:
        return "file"
    return f"_{plain}" if _RESERVED.fullmatch(plain) else plain


def _unused(name: str, taken: set[str]) -> str:
    """Return a name that no other file has; some disks don't tell capitals from small letters."""
    stem, ending = PurePosixPath(name).stem, PurePosixPath(name).suffix
    number, found = 1, name
    while found.casefold() in taken:
        number += 1
        found = f"{stem}-{number}{ending}"
    taken.add(found.casefold())
    return found


def _words_of_step(step: StepRecord) -> str:
    output = step.part.rpartition("/")[2].partition(":")[0]
    words = f"{step.name} of output {output}" if output else step.name
    if step.of_earlier_code:
        words += " (of earlier code)"
    return words if step.value_text is None else f"{words}: {step.value_text}"


def _words_of(one: KeptRecord) -> str:
    if one.content is not None:
        return f"{one.name} ({len(one.content):,} bytes)"
    text = one.text or ""
    return f"{one.name}: {text}" if one.kind in ("note", "message") else text


def _time(seconds: float) -> str:
    return strftime("%H:%M:%S", localtime(seconds))
