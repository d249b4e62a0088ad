"""How keys, inputs and values become text and hashes.

Keys are kept as JSON, so that ``1`` and ``"1"`` differ. Values are JSON too, as
`harness.journal._values` writes what JSON has no form for, unless the caller gives ``encode`` and
``decode``. Nan and the infinities are let through, as Python's ``json`` writes and reads them: an
answer that was paid for isn't lost over one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from hashlib import blake2b
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from harness._content import content_hash
from harness._words import error_in_words, repr_of
from harness.errors import JournalKeyError, JournalValueError
from harness.fanout import DROP
from harness.journal._values import TAG, Shown, Values

DIGEST_BYTES = 16
"""Among a billion keys, the chance of mistaking one for another is 1 in 10 ** 20."""

VALUE_BYTES_AT_MOST = 500_000_000
"""SQLite and PostgreSQL hold a billion, and the row and the message need some of those."""

DROPPED = '{"$":"drop","v":null}'
"""How `DROP` is kept, also beside the caller's own ``encode`` and ``decode``."""

WORDS_AT_MOST = 1 << 20
"""Characters kept of an error's words. Some errors quote all they were given."""


def _to_text(encoder: json.JSONEncoder) -> Callable[[Any], str]:
    """Return a function like ``encoder.encode``, which makes a new C encoder for each value.

    Making one takes as long as encoding a small value, and there are two values per item.
    """
    write_string = encode_basestring_ascii if encoder.ensure_ascii else encode_basestring
    try:
        encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, encoder.default, write_string, None, ":", ",", encoder.sort_keys, False, True
        )
        sample = {"b": [1.5, None], "a": "\u00e9"}
        if "".join(encode(sample, 0)) != encoder.encode(sample):
            raise TypeError
    except (AttributeError, TypeError):  # Not CPython, or a version that differs.
        return encoder.encode
    return lambda value: "".join(encode(value, 0))


# A value that contains itself ends in a RecursionError: a table of what is being encoded would keep
# what an error left in it.
_to_canonical_json = _to_text(
    json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)
)
_to_json = _to_text(
    json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
)


_from_json = json.JSONDecoder().raw_decode
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def key_to_json(key: Any) -> str:
    """Return the text of a key.

    Raises:
      JournalKeyError: if it can't be one.
    """
    # By far most keys, and there is one per item.
    if type(key) is str and key:
        return encode_basestring_ascii(key)
    if type(key) is int and -_SHORT < key < _SHORT:
        return repr(key)
    if not isinstance(key, str | int) or isinstance(key, bool) or key == "":
        what = "an empty string" if key == "" else f"{repr_of(key)}, a {type(key).__name__}"
        raise JournalKeyError(
            f"key= returned {what}; with a journal a key is a non-empty string or a whole number, "
            "the same in every session, such as key=lambda item: item.id"
        )
    return _to_canonical_json(str(key)) if isinstance(key, str) else _digits(int(key))


_SHORT = 1 << 64
"""Python writes any number up to this."""


def _digits(key: int) -> str:
    try:
        return repr(key)
    except ValueError as error:  # Python won't write numbers with thousands of digits.
        raise JournalKeyError(
            f"key= returned a number that is too long to be written ({error}); with a journal a "
            "key is a string or a whole number, the same in every session: take a hash of it"
        ) from error


def key_from_json(text: str) -> str | int:
    """Return the key that has the text."""
    key: str | int = json.loads(text)
    return key


def digest_of_key(batch: int, key_json: str) -> bytes:
    """Return the hash that stands for a key of a batch."""
    return blake2b(f"{batch} {key_json}".encode(), digest_size=DIGEST_BYTES).digest()


def words_to_text(words: str | None) -> str | None:
    """Return an error's words in a form every database takes, whatever an exception quotes."""
    if words is None:
        return None
    if len(words) > WORDS_AT_MOST:
        words = f"{words[:WORDS_AT_MOST]}... ({len(words) - WORDS_AT_MOST:,} more characters)"
    if words.isascii() and "\0" not in words:
        return words
    return words.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class Codec:
    """Writes values as text and reads them back.

    Args:
      encode, decode: The caller's own way; None for JSON.
      classes: Classes with fields, and enumerations, that values may be of.
    """

    def __init__(
        self,
        encode: Callable[[Any], str | bytes] | None = None,
        decode: Callable[[str], Any] | None = None,
        *,
        classes: Collection[type] = (),
    ) -> None:
        self._encode = encode
        self._values: Values = Values(classes)
        self._from_text: Callable[[str], Any] = self._values.read if decode is None else decode

    def knowing(self, classes: Collection[type]) -> Codec:
        """Return a codec like this one that knows more classes."""
        return Codec(classes=self._values.classes.union(classes))

    @property
    def is_own(self) -> bool:
        """Whether the caller gave ``encode`` and ``decode``."""
        return self._encode is not None

    def encode(self, value: Any) -> tuple[str, Any]:
        """Return the value's text, and the value that comes back from it.

        Raises:
          JournalValueError: if it has no text, or doesn't come back from it.
        """
        try:
            text: Any
            if self._encode is not None:
                if value is DROP:
                    return DROPPED, value
                text = self._encode(value)
            else:
                text, decoded = self._as_json(value)
                if text.isascii() and len(text) <= VALUE_BYTES_AT_MOST:
                    return text, decoded  # By far most values.
            if isinstance(text, bytes):
                text = text.decode()
            if not isinstance(text, str):
                raise TypeError(f"encode= returned a {type(text).__name__}, not text")
            if "\0" in text:
                raise ValueError("its text contains a NUL, which a database refuses")
            if not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError:  # Half a surrogate pair, from broken input.
                    if self._encode is not None:
                        raise
                    text = json.dumps(json.loads(text))
            if len(text) * 4 > VALUE_BYTES_AT_MOST and _size(text) > VALUE_BYTES_AT_MOST:
                raise ValueError(
                    f"it takes {_size(text):,} bytes, and a database holds {VALUE_BYTES_AT_MOST:,}"
                    "; keep it in a file, and return its name"
                )
            return text, self._from_text(text)
        except RecursionError as error:
            raise self._refusal(value, "it contains itself, or is nested too deeply") from error
        except Exception as error:
            raise self._refusal(value, error_in_words(error)) from error

    def _as_json(self, value: Any) -> tuple[str, Any]:
        """Return the value's text, and the value that comes back from it."""
        if not self._values.classes:
            try:
                text = _to_json(value)
                decoded = _from_json(text)[0]
                if decoded == value and TAG not in text:
                    return text, decoded
            except (TypeError, ValueError):
                pass  # JSON has no form for it.
        text = _to_json(self._values.plain(value))
        return text, self._values.read(text)

    def decode(self, text: str) -> Any:
        """Return the value of a text that `encode` gave.

        Raises:
          JournalValueError: if ``decode=`` doesn't read what was recorded.
        """
        try:
            return DROP if self.is_own and text == DROPPED else self._from_text(text)
        except Exception as error:
            raise JournalValueError(
                f"a recorded value can't be read: {error_in_words(error)}; open the journal with "
                "the encode= and decode= that it was written with, or the types="
            ) from error

    def hash_input(self, item: Any) -> bytes:
        """Return a hash of the item's content, the same in every process.

        Plain data is hashed as JSON with its fields in order. What JSON would take for something
        else, such as a tuple or a dict of numbers, is hashed by `harness.fanin.content_hash`, which
        takes ten times as long; so are dataclasses and the like. The rest is hashed as ``encode``
        writes it. So two items that ``==`` tells apart have two hashes.

        Raises:
          JournalValueError: if there is no visible content.
        """
        text = ""
        is_plain: object = False
        try:
            text = _to_canonical_json(item)
            is_plain = _scan(text, 0)[0] == item
        except Exception:  # Any class: an item may be of anybody's type.
            is_plain = False
        if is_plain is not True:
            text = "content " + self._content_of(item)
        return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()

    def input_text(self, item: Any) -> str | None:
        """Return an item in the form JSON has for it, to be exported; None if it has none."""
        try:
            return _INPUTS.encode(item)[0]
        except JournalValueError:
            return None

    def _content_of(self, item: Any) -> str:
        try:
            return content_hash(item, exact=True)
        except Exception as error:
            if self._encode is None:
                # The advice of `content_hash` is for people merging values.
                known = type(error) is TypeError
                why = str(error).split(";")[0] if known else error_in_words(error)
                raise JournalValueError(
                    f"whether the item {repr_of(item)} has changed since the last session can't be "
                    f"told: {why}; use plain data or a dataclass, or give "
                    "open_journal(encode=...) a function that writes an item as text"
                ) from error
        return self.encode(item)[0]

    def _refusal(self, value: Any, why: str) -> JournalValueError:
        if self._encode is not None:
            return JournalValueError(
                f"the value {repr_of(value)} can't be recorded with the journal's encode= and "
                f"decode=: {why}"
            )
        return JournalValueError(
            f"the value {repr_of(value)}, a {type(value).__name__}, can't be recorded as JSON: "
            f"{why}; return plain data, or give open_journal() encode= and decode= for it"
        )


class _InputCodec(Codec):
    """Writes inputs, which no session reads back into their classes."""

    def __init__(self) -> None:
        super().__init__()
        self._values = Shown()


_INPUTS = _InputCodec()
