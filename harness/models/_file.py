"""Hold a file that goes with a message: an image, a recording, a PDF, another document.

A file is a value: its bytes, or the address from which the provider fetches it. One on a disk is
only named by its path until somebody reads it, which takes a thread. Nothing here fetches an
address. What it shows of itself, in dumps and logs, is never its content.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import attrs

FILE_BYTES_AT_MOST = 50_000_000
"""The largest file; no provider takes a larger one in a request."""

MESSAGE_BYTES_AT_MOST = 100_000_000
"""The largest total of the files in one message."""

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]*/[a-z0-9*][a-z0-9.+*-]*")
_SAME_TYPE = {
    "audio/mp3": "audio/mpeg",
    "audio/vnd.wave": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "image/jpg": "image/jpeg",
}
_TEXT_TYPES = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/toml"}
)
_MORE_SUFFIXES = {".webp": "image/webp", ".yaml": "application/yaml", ".yml": "application/yaml"}
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"%PDF-", "application/pdf"),
    (8, b"WAVE", "audio/wav"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"\xff\xf3", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
)
"""Where in a file which bytes say of what type it is."""


@attrs.frozen(kw_only=True, repr=False)
class File:
    """A file in a message: ``File(path="receipt.png")``, ``File(url=...)`` or ``File(data=...)``.

    Raises:
      TypeError: if it has none or several of the three, or one of the wrong type.
      ValueError: if it is empty or too large, its address isn't one of the web, or nothing says of
        what type it is.
    """

    data: bytes | None = None
    """Its bytes."""

    url: str | None = None
    """Where the provider fetches it. harness never does."""

    path: str | None = None
    """Where an agent reads it, once, when its run begins."""

    media_type: str = ""
    """Its type, such as ``"image/png"``. By default what its first bytes say, or else the suffix of
    its name; an unread file has none."""

    name: str | None = None
    """Its name, for models that are told; by default the last part of the path."""

    def __attrs_post_init__(self) -> None:
        given = [one for one in (self.data, self.url, self.path) if one is not None]
        if len(given) != 1:
            raise TypeError(
                f"File() takes one of data=, url= and path=, not {len(given)} of them; for "
                'instance File(path="receipt.png")'
            )
        if not isinstance(self.media_type, str) or not isinstance(self.name, str | None):
            raise TypeError(
                "File(media_type=..., name=...) take strings, not "
                f"{self.media_type!r} and {self.name!r}"
            )
        if self.path is not None:
            self._set("path", os.fsdecode(self.path))
            self._set("name", self.name or os.path.basename(self.path))
        elif self.url is not None:
            self._check_url()
        else:
            self._check_data()
        self._find_type()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_url(self) -> None:
        if not isinstance(self.url, str):
            raise TypeError(f"File(url=...) takes a string, not {type(self.url).__name__}")
        if not self.url.startswith(("https://", "http://")):
            raise ValueError(
                f"File(url=...) takes an address with https:// that the provider can fetch, not "
                f"{self.url[:40]!r}; give the bytes as data=, or a file on this machine as path="
            )

    def _check_data(self) -> None:
        data: object = self.data
        if isinstance(data, bytearray | memoryview):
            self._set("data", bytes(data))
        elif not isinstance(data, bytes):
            raise TypeError(f"File(data=...) takes bytes, not {type(data).__name__}")
        if not self.data:
            raise ValueError("File(data=...) takes the bytes of a file, not an empty one")
        _check_size(len(self.data), self.name)

    def _find_type(self) -> None:
        given = self.media_type.partition(";")[0].strip().lower()
        where = self.name or (urlsplit(self.url).path if self.url is not None else "")
        found = given or type_of_bytes(self.data) or ("" if self.path else _type_of_suffix(where))
        found = _SAME_TYPE.get(found, found)
        if given and not _MEDIA_TYPE.fullmatch(given):
            raise ValueError(
                f'File(media_type=...) takes a type such as "image/png", not {self.media_type!r}'
            )
        if not found and self.path is None:
            raise ValueError(
                f"neither the first bytes nor the name of {self!r} say of what type it is; write "
                'File(..., media_type="text/plain"), or whatever it is'
            )
        self._set("media_type", found)

    @property
    def is_text(self) -> bool:
        """Whether it is text, which can be told to any model."""
        return self.media_type.startswith("text/") or self.media_type in _TEXT_TYPES

    @property
    def digest(self) -> str:
        """The SHA-256 of its bytes, in hexadecimal; empty if they aren't here."""
        return "" if self.data is None else hashlib.sha256(self.data).hexdigest()

    def read(self) -> File:
        """Return it with its bytes, if it is named by a path; otherwise as it is.

        Blocks: call it in a thread. An agent does so for what it is given.

        Raises:
          OSError: if it can't be read.
          ValueError: if it is empty or too large, or nothing says of what type it is.
        """
        if self.path is None:
            return self
        with open(self.path, "rb") as file:
            data = file.read(FILE_BYTES_AT_MOST + 1)
            if len(data) > FILE_BYTES_AT_MOST:
                _check_size(max(len(data), os.fstat(file.fileno()).st_size), self.name)
        if not data:
            raise ValueError(f"the file {self.path!r} is empty, which no provider takes")
        return File(data=data, media_type=self.media_type, name=self.name)

    def __repr__(self) -> str:
        return f"File({self.in_words()})"

    def in_words(self) -> str:
        """Return what it is: its type, its name and its size, without its content."""
        what = [self.media_type, *([repr(self.name)] if self.name else [])]
        if self.data is not None:
            what.append(f"{len(self.data):,} bytes")
        elif self.url is not None:  # What comes after the ? may be a key.
            what.append(f"at {self.url.partition('?')[0]}")
        else:
            what.append(f"unread, at {self.path!r}")
        return ", ".join(filter(None, what))


Content: TypeAlias = str | tuple[str | File, ...]
"""What a message says: text, or texts and files in order."""

Part: TypeAlias = str | File | os.PathLike[str]
"""What a prompt may have: text, a file, or the path of one as a `pathlib.Path`."""

Prompt: TypeAlias = Part | Sequence[Part]
"""What an agent is asked: text, or a list of several parts in order."""


def text_of(content: Content) -> str:
    """Return the text in it, without the files."""
    if isinstance(content, str):
        return content
    return "\n".join(part for part in content if isinstance(part, str))


def files_of(content: Content) -> tuple[File, ...]:
    """Return the files in it."""
    if isinstance(content, str):
        return ()
    return tuple(part for part in content if isinstance(part, File))


def content_in_words(content: Content) -> str:
    """Return it as text in which the files are described, for events, logs and people."""
    if isinstance(content, str):
        return content
    return "\n".join(f"[{part.in_words()}]" if isinstance(part, File) else part for part in content)


def content_of(parts: Iterable[Any], what: str) -> tuple[str | File, ...]:
    """Return parts as the content of a message; files named by a path stay so.

    Args:
      parts: Texts, files and paths.
      what: What takes them, for the error.

    Raises:
      TypeError: if something else is among them.
      ValueError: if they are empty, or the files are too large together.
    """
    content = tuple(
        File(path=os.fspath(part)) if isinstance(part, os.PathLike) else part for part in parts
    )
    for part in content:
        if not isinstance(part, str | File):
            raise TypeError(
                f"{what} takes text, harness.models.File and pathlib.Path, not {part!r}; give "
                "bytes as File(data=...)"
            )
    if not any(content):
        raise ValueError(f"{what} takes text or files, and got none")
    check_total(content, what)
    return content


def check_total(content: Content, what: str) -> None:
    """Refuse files that are too large together.

    Raises:
      ValueError: if they are.
    """
    total = sum(len(file.data) for file in files_of(content) if file.data is not None)
    if total > MESSAGE_BYTES_AT_MOST:
        raise ValueError(
            f"{what} has files of {total:,} bytes in one message, and {MESSAGE_BYTES_AT_MOST:,} "
            "are the most; spread them over several runs, or give their addresses as url="
        )


def read_content(content: tuple[str | File, ...], what: str) -> tuple[str | File, ...]:
    """Return the content with every file read. Blocks.

    Raises:
      OSError: if one can't be read.
      ValueError: if they are too large.
    """
    read: list[str | File] = []
    for part in content:
        read.append(part.read() if isinstance(part, File) else part)
        check_total(tuple(read), what)  # Before the next one takes up memory.
    return tuple(read)


def is_unread(content: Content) -> bool:
    """Return whether a file in it is only named by its path."""
    return any(file.path is not None for file in files_of(content))


def holds_file(value: object, depth: int = 0) -> bool:
    """Return whether a file is anywhere inside a value of a tool."""
    return isinstance(value, File) or (
        depth < 20 and any(holds_file(one, depth + 1) for one in _inside(value))
    )


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    else:
        for listing in ("__attrs_attrs__", "__dataclass_fields__", "__struct_fields__"):
            for field in getattr(type(value), listing, ()):
                yield getattr(value, getattr(field, "name", field), None)


def _check_size(size_bytes: int, name: str | None) -> None:
    if size_bytes > FILE_BYTES_AT_MOST:
        raise ValueError(
            f"the file {name or 'in data='} has {size_bytes:,} bytes, and {FILE_BYTES_AT_MOST:,} "
            "are the most; make it smaller, or give its address as File(url=...)"
        )


def type_of_bytes(data: bytes | None) -> str:
    """Return the media type that a file's first bytes tell; empty if they don't."""
    for at, magic, media_type in _MAGIC if data else ():
        if data and data[at : at + len(magic)] == magic:
            return media_type
    return ""


def _type_of_suffix(name: str) -> str:
    return _suffixes().get(os.path.splitext(name)[1].lower(), "")


@cache
def _suffixes() -> dict[str, str]:
    # What Python has built in, so that it is the same on every machine.
    built_in = mimetypes.MimeTypes().types_map
    return {**built_in[0], **built_in[1], **_MORE_SUFFIXES}
