"""Refuse a request with a file that its model can't take, before anything waits or is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, Protocol

from harness.errors import ModelFileError
from harness.models._failures import model_error
from harness.models._file import MESSAGE_BYTES_AT_MOST, File
from harness.models._messages import Message, ModelRequest

_ROLES = ("user", "tool")


class TakesFiles(Protocol):
    """What is needed of a model."""

    name: str
    provider: str | None

    @property
    def file_bytes_at_most(self) -> int | None:
        """How many bytes the files of a request may have together."""
        ...

    def why_not(self, file: File) -> str | None:
        """Return what it takes instead of a file, in words; None if it takes that."""
        ...


def refuse_files(model: TakesFiles, request: ModelRequest) -> None:
    """Raise if the model can't take a file of the request.

    Raises:
      ModelFileError: if it can't.
      TypeError: if a message's content is neither text nor a tuple of texts and files.
    """
    total = 0
    for message in request.messages:
        _check_parts(message)
        files = message.files
        for file in files:
            _refuse_file(model, message, file)
        size_bytes = sum(len(file.data) for file in files if file.data is not None)
        if size_bytes > MESSAGE_BYTES_AT_MOST:
            _refuse_size(model, "a message", size_bytes, MESSAGE_BYTES_AT_MOST)
        total += size_bytes
    most = model.file_bytes_at_most
    if most is not None and total > most:
        _refuse_size(model, "its requests", total, most)


def _check_parts(message: Message) -> None:
    content: Any = message.content
    if isinstance(content, str):
        return
    if not isinstance(content, tuple) or not all(isinstance(part, str | File) for part in content):
        raise TypeError(
            f"the content of a Message is text, or a tuple of texts and files, not {content!r}"
        )


def _refuse_file(model: TakesFiles, message: Message, file: File) -> None:
    if message.role not in _ROLES:
        _refuse(
            model,
            f"can't take {file!r} in a message of role {message.role!r}; files are for the "
            "messages of users and the results of tools",
        )
    if file.path is not None:
        _refuse(
            model,
            f"can't take {file!r}; read it first, with File.read() in a thread, as agents do with "
            "what they are given",
        )
    takes = model.why_not(file)
    if takes is not None:
        _refuse(
            model,
            f"can't take {file!r}; it takes {takes}: convert it, or ask a model that does",
        )


def _refuse_size(model: TakesFiles, what: str, size_bytes: int, most: int) -> NoReturn:
    _refuse(
        model,
        f"can't take files of {size_bytes:,} bytes together; {what} can have {most:,}: make them "
        "smaller, send fewer, or give their addresses as File(url=...)",
    )


def _refuse(model: TakesFiles, what: str) -> NoReturn:
    raise model_error(ModelFileError, what, model=model.name, provider=model.provider)


def check_media_types(call: str, given: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return media types as a tuple; None for any.

    Raises:
      TypeError: if they aren't strings.
    """
    if given is None:
        return None
    types = () if isinstance(given, str) else tuple(given)
    if isinstance(given, str) or not all(isinstance(one, str) and "/" in one for one in types):
        raise TypeError(
            f'{call} takes media types, such as ["image/*", "application/pdf"], not {given!r}; '
            "[] for none"
        )
    return types


def fits(media_type: str, types: Iterable[str]) -> bool:
    """Return whether a media type is among others, of which some may end in ``/*``."""
    kind = media_type.partition("/")[0]
    return any(one in (media_type, f"{kind}/*", "*/*") for one in types)
