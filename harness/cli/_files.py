"""Open what a batch reads and writes, or say why that can't be done, before anything runs.

An output is never overwritten unless that was asked for, and the input never is: the two are
compared by what they are on disk, so a link to the input is the input.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

import attrs

from harness.cli._errors import InputError

try:
    import fcntl
except ImportError:  # Windows lacks it, so a second writer isn't refused there.
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.cli._lines import ByteSource

STANDARD_STREAM = "-"
"""Means standard input or standard output where a file is expected."""


@attrs.frozen(kw_only=True)
class Input:
    """An input that is open for reading."""

    source: ByteSource
    """Hands over bytes as soon as there are any."""

    name: str
    """What messages call it."""

    status: os.stat_result | None
    """What it is on disk; None if it is not a file of the operating system."""

    @property
    def size_bytes(self) -> int | None:
        """How much there is to read; None if that isn't known, as for a pipe."""
        regular = self.status is not None and stat.S_ISREG(self.status.st_mode)
        return self.status.st_size if regular and self.status is not None else None


@contextmanager
def open_input(path: str) -> Iterator[Input]:
    """Open ``path`` for reading, standard input for ``-``.

    Raises:
      InputError: if it is missing, a folder, or can't be read.
    """
    if path == STANDARD_STREAM:
        yield _standard_input()
        return
    try:
        # Unbuffered: a read returns what a pipe has, and an abandoned one holds no lock.
        file = open(path, "rb", buffering=0)  # noqa: SIM115  # The generator is the `with`.
    except FileNotFoundError as error:
        raise InputError(
            f"the input {path!r} is not there; give a file, or - to read it from a pipe"
        ) from error
    except IsADirectoryError as error:
        raise InputError(f"the input {path!r} is a folder; give one of the files in it") from error
    except (OSError, ValueError) as error:
        raise InputError(f"the input {path!r} can't be read: {_reason(error)}") from error
    with file:
        yield Input(source=file, name=path, status=os.fstat(file.fileno()))


def _standard_input() -> Input:
    if sys.stdin is None:
        raise InputError("standard input is closed; give a file with --input")
    stream = sys.stdin.buffer
    try:
        number = stream.fileno()
    except (OSError, AttributeError):  # Replaced by an object in memory, as tests do.
        return Input(source=stream, name="standard input", status=None)
    # A separate raw file: at exit the interpreter waits for the lock of sys.stdin's buffer, which
    # a thread that still waits for input would hold forever.
    source = io.FileIO(number, closefd=False)
    return Input(source=source, name="standard input", status=os.fstat(number))


def check_output(path: str, input_: Input, *, overwrite: bool, option: str) -> None:
    """Refuse an output that can't be written, or whose writing would destroy something.

    Args:
      path: Where to write; ``-`` is standard output.
      input_: What is read.
      overwrite: Whether an existing file may be replaced.
      option: How the path was given, such as ``--output``.

    Raises:
      InputError: if ``path`` is the input, exists without ``overwrite``, or can't be created.
    """
    status = _status(path)
    if status is None:
        _check_folder(Path(path), option)
    elif stat.S_ISDIR(status.st_mode):
        raise InputError(f"the file of {option}, {path!r}, is a folder; give a file in it")
    elif not stat.S_ISREG(status.st_mode):
        pass  # A pipe, a terminal, /dev/null: nothing in it can be lost.
    elif input_.status is not None and os.path.samestat(status, input_.status):
        raise InputError(
            f"the file of {option}, {path!r}, is the input itself, and writing it would destroy "
            "what is read; give another file"
        )
    elif path == STANDARD_STREAM:
        pass  # The shell opened it; whether that loses something was up to the shell.
    elif not overwrite:
        raise InputError(
            f"the file of {option}, {path!r}, already exists; give another name, "
            "or --overwrite to replace it"
        )
    elif not os.access(path, os.W_OK):
        raise InputError(
            f"the file of {option}, {path!r}, can't be written: permission denied; "
            "give another name, or change the file's permissions"
        )


def refuse_one_file_twice(files: Mapping[str, str | None]) -> None:
    """Refuse two options that name the same file.

    Args:
      files: What is written, by option; None if the option isn't given.

    Raises:
      InputError: if two do.
    """
    given = [(option, path) for option, path in files.items() if path is not None]
    for (other, taken), (option, path) in combinations(given, 2):
        if same_file(path, taken):
            raise InputError(f"{option} and {other} both name {path!r}; give each its own file")


def same_file(one: str, other: str) -> bool:
    """Return whether two paths lead to the same file."""
    if Path(one).resolve() == Path(other).resolve():
        return True
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def open_output(path: str, *, overwrite: bool, stdout: TextIO) -> BinaryIO:
    """Create ``path`` for writing; for ``-``, return what ``stdout`` writes to.

    A file is locked until it is closed, so that no second session empties it meanwhile.

    Raises:
      InputError: if it can't be created, was created by somebody else in the meantime, or is being
        written by another session; then nothing in it has changed.
    """
    if path == STANDARD_STREAM:
        return _standard_output(stdout)
    try:
        if Path(path).exists() and not Path(path).is_file():
            return cast(BinaryIO, open(path, "wb", buffering=0))
        # "x" refuses a file that appeared since it was checked.
        mode = "wb" if overwrite else "xb"
        raw = open(path, mode, buffering=0, opener=_open_as_it_is)  # noqa: SIM115  # Handed out.
        file = cast(BinaryIO, raw)
    except (OSError, ValueError) as error:
        raise InputError(f"the output {path!r} can't be written: {_reason(error)}") from error
    try:
        _lock(file, path)
        file.truncate(0)
    except BaseException:
        file.close()
        raise
    return file


def check_not_written(path: str) -> None:
    """Refuse a file that another session is writing.

    Raises:
      InputError: if one does.
    """
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115  # Else it catches errors of the block.
    except OSError:
        return  # Then it can't be written either, and the writer will say so.
    with file:
        _lock(file, path)


def _open_as_it_is(path: str, flags: int) -> int:
    """Open a file without emptying it: somebody may be writing it."""
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def _lock(file: BinaryIO | io.FileIO, path: str) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"the file {path!r} is being written by another session; wait until that is over, or "
            "give another name"
        ) from error
    except OSError:
        pass  # Not every network disk has locks.


def _standard_output(stdout: TextIO) -> BinaryIO:
    if stdout is None:  # Python's way to say that the descriptor is closed; typing doesn't know it.
        raise InputError("standard output is closed; give a file with --output")
    stdout.flush()
    try:
        return cast(BinaryIO, io.FileIO(stdout.fileno(), "wb", closefd=False))
    except (OSError, AttributeError):  # Replaced by an object in memory, as tests do.
        return stdout.buffer


def _status(path: str) -> os.stat_result | None:
    try:
        return os.fstat(sys.stdout.fileno()) if path == STANDARD_STREAM else os.stat(path)
    except (OSError, AttributeError, ValueError):
        return None


def _check_folder(path: Path, option: str) -> None:
    if str(path) == STANDARD_STREAM:
        return
    folder = path.parent
    if not folder.is_dir():
        raise InputError(
            f"the file of {option}, {str(path)!r}, can't be written: there is no folder "
            f"{str(folder)!r}; make it first, or give another name"
        )
    if not os.access(folder, os.W_OK):
        raise InputError(
            f"the file of {option}, {str(path)!r}, can't be written: permission denied in "
            f"{str(folder)!r}; give a file in another folder"
        )


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
