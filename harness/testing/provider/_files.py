"""Read the files in a request as the real APIs do, and refuse those that they would refuse."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.models import File
from harness.models._file import type_of_bytes
from harness.testing.provider._dialect import unreadable

_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_FORMATS = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_PDF = "application/pdf"


def files_in(messages: object, readers: Mapping[str, Callable[[Any], File | None]]) -> list[File]:
    """Return the files anywhere in the messages of a body, in order.

    Args:
      messages: The messages.
      readers: For each kind of part that has a file, what reads it.

    Raises:
      UnreadableRequest: if one isn't as the API wants it.
    """
    files: list[File] = []
    for part in _parts_in(messages):
        reader = readers.get(str(part.get("type")))
        file = None if reader is None else reader(part)
        if file is not None:
            files.append(file)
    return files


def _parts_in(messages: object) -> Iterator[dict[str, Any]]:
    """Yield every part of a content, those inside the results of tools too."""
    pending: list[Any] = [messages]
    while pending:
        found = pending.pop()
        if isinstance(found, list):
            pending.extend(reversed(found))
        elif isinstance(found, dict):
            yield found
            pending.extend(found.get(name) for name in ("output", "content"))


# OpenAI's ----------------------------------------------------------------------------------------


def image_url(part: Any) -> File:
    """Read an image of a chat completion."""
    url = _field(part, "image_url")
    return _at_address(_field(url, "url"), "image_url.url", _IMAGES)


def input_audio(part: Any) -> File:
    """Read a recording of a chat completion."""
    audio = _field(part, "input_audio")
    form = _FORMATS.get(str(_field(audio, "format")))
    if form is None:
        unreadable("input_audio.format", _field(audio, "format"), "'wav' or 'mp3'")
    return _decoded(_field(audio, "data"), form, "input_audio.data")


def chat_file(part: Any) -> File | None:
    """Read a document of a chat completion."""
    return _document(_field(part, "file"), "file")


def input_image(part: Any) -> File | None:
    """Read an image of a response."""
    if _field(part, "file_id") is not None:
        return None
    return _at_address(_field(part, "image_url"), "image_url", _IMAGES)


def input_file(part: Any) -> File | None:
    """Read a document of a response."""
    url = _field(part, "file_url")
    if url is None:
        return _document(part, "input_file")
    return _elsewhere(url, "file_url", _PDF)


def _document(part: Any, what: str) -> File | None:
    if _field(part, "file_id") is not None:
        return None
    if not _field(part, "filename"):
        unreadable(f"{what}.filename", _field(part, "filename"), "the name of the file")
    return _at_address(
        _field(part, "file_data"), f"{what}.file_data", {_PDF}, name=_field(part, "filename")
    )


def _at_address(
    address: Any, what: str, types: frozenset[str] | set[str], *, name: str | None = None
) -> File:
    if not isinstance(address, str):
        unreadable(what, address, "a URL")
    head, comma, data = address.partition(";base64,")
    if not comma:
        return _elsewhere(address, what, next(iter(sorted(types))))
    media_type = head.removeprefix("data:")
    if media_type not in types:
        unreadable(what, media_type, f"of one of the types {', '.join(sorted(types))}")
    return _decoded(data, media_type, what, name=name)


# Anthropic's --------------------------------------------------------------------------------------


def image(part: Any) -> File | None:
    """Read an image of a message."""
    return _of_source(part, _IMAGES)


def document(part: Any) -> File | None:
    """Read a document of a message."""
    return _of_source(part, frozenset({_PDF}))


def _of_source(part: Any, types: frozenset[str]) -> File | None:
    source = _field(part, "source")
    kind = _field(source, "type")
    if kind == "url":
        return _elsewhere(_field(source, "url"), "source.url", min(types))
    if kind == "base64":
        media_type = _field(source, "media_type")
        if media_type not in types:
            unreadable("source.media_type", media_type, f"one of {', '.join(sorted(types))}")
        return _decoded(
            _field(source, "data"), media_type, "source.data", name=_field(part, "title")
        )
    if kind == "text" and _field(source, "data"):
        return File(data=str(_field(source, "data")).encode(), media_type="text/plain")
    if kind not in ("text", "file", "content"):
        unreadable("source.type", kind, "'base64' or 'url'")
    return None


# Both ---------------------------------------------------------------------------------------------


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _elsewhere(url: Any, what: str, media_type: str) -> File:
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        unreadable(what, url, "a URL with https:// or http://")
    return File(url=url, media_type=media_type)


def _decoded(data: Any, media_type: str, what: str, *, name: str | None = None) -> File:
    if not isinstance(data, str) or not data:
        unreadable(what, data, "the bytes of a file as base64")
    try:
        read = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        unreadable(what, data, "valid base64")
    found = type_of_bytes(read)
    if found and found != media_type:
        unreadable(what, found, f"of the type it says, {media_type}")
    return File(data=read, media_type=media_type, name=name)
