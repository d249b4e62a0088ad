"""The output of a batch: written as items end, or beside the old one, which it then replaces.

A resumed batch has results of earlier sessions in its output, so it rewrites all of it. Until the
new one is complete, the old one stays as it was: a batch that is interrupted again leaves nothing
worse than it found. The journal has what is missing in it then.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from harness.cli._errors import InputError
from harness.cli._files import STANDARD_STREAM, check_not_written, open_output
from harness.cli._writer import LineWriter

UNFINISHED = ".part"
"""How the name of an output ends until it is complete. All sessions use the same name: one that was
killed leaves a file behind, and the next one replaces it. One that still writes has it locked."""


def unfinished_beside(path: str) -> Path | None:
    """Return where an output is first rewritten; None if it isn't a file that can be replaced."""
    is_file = path != STANDARD_STREAM and (Path(path).is_file() or not Path(path).exists())
    # If the path is a link, it stays one: the file that it names is replaced.
    return Path(os.path.realpath(path) + UNFINISHED) if is_file else None


class Output:
    """Where the lines of a batch go."""

    def __init__(self, path: str, *, overwrite: bool, anew: bool) -> None:
        """Write to ``path``; with ``anew``, first beside it, if it is a file."""
        self._path = path
        self._overwrite = overwrite
        self._part = unfinished_beside(path) if anew else None
        self._file: os.stat_result | None = None
        """The file beside it that was made here, whatever has that name by now."""

    @property
    def folder(self) -> Path | None:
        """Where lines may be held until they are written: beside them; None if not on a disk."""
        return None if self._part is None else self._part.parent

    @contextmanager
    def open(self, stdout: TextIO) -> Iterator[LineWriter]:
        """Open it for the duration of a block.

        Raises:
          InputError: if it can't be created.
        """
        path = self._path if self._part is None else str(self._part)
        overwrite = self._overwrite or self._part is not None
        created = path != STANDARD_STREAM and (self._part is not None or not Path(path).exists())
        if self._part is not None:
            if Path(self._path).exists():
                check_not_written(self._path)
            check_not_written(str(self._part))
            self._part.unlink(missing_ok=True)
        file = open_output(path, overwrite=overwrite, stdout=stdout)
        if self._part is not None:
            self._file = os.fstat(file.fileno())
        try:
            if self._part is not None and Path(self._path).exists():
                shutil.copymode(self._path, self._part)  # It may be private.
            # An agent may change the working directory meanwhile.
            made = Path(os.path.abspath(path)) if created else None
            with LineWriter(file, created=made) as writer:
                yield writer
        except BaseException:
            self.finish(complete=False)
            raise

    def finish(self, *, complete: bool) -> bool:
        """Replace the output with what was written beside it, or delete that.

        Args:
          complete: Whether all results are in it.

        Returns:
          Whether the output has what was written.
        """
        if self._part is None:
            return True
        if not self._is_ours(self._part):
            return False
        if complete:
            self._part.replace(os.path.realpath(self._path))
        else:
            self._part.unlink()
        return complete

    def _is_ours(self, part: Path) -> bool:
        try:
            return self._file is not None and os.path.samestat(part.stat(), self._file)
        except OSError:
            return False


@contextmanager
def claimed(path: str, *, replaces: bool, stdout: TextIO) -> Iterator[Callable[[str], object]]:
    """Give what writes a file whole or not at all; until then no other session can have its name.

    Args:
      path: The file.
      replaces: Whether it may replace one that appears meanwhile.
      stdout: What `open_output` needs, for a path that is no file.

    Raises:
      InputError: if another session has the name, or the file can't be written; on writing, if
        there is such a file by then.
    """
    part = unfinished_beside(path)
    if part is None:
        yield Path(path).write_text
        return
    if Path(path).exists():
        check_not_written(path)

    def write(text: str) -> None:
        if not replaces and Path(path).exists():
            raise InputError(f"{path!r} has appeared meanwhile, and was left as it is")
        file.write(text.encode())
        part.replace(os.path.realpath(path))

    with open_output(str(part), overwrite=True, stdout=stdout) as file:
        try:
            yield write
        finally:
            if part.exists() and os.path.samestat(part.stat(), os.fstat(file.fileno())):
                part.unlink()
