"""Cutting bytes into lines."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import _lines
from harness.cli._lines import LineReader


class Dribble:
    """Hands over bytes in the pieces that it was given, as a slow pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def read(self, size: int, /) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"bc\nd", b"\xc3", b"\xa9"])))
def test_lines_do_not_depend_on_where_the_reads_fall(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    expected = whole.split(b"\n")
    if not expected[-1]:
        expected.pop()
    reader = LineReader(Dribble(*pieces))
    assert list(reader) == expected
    assert reader.number == len(expected)
    assert reader.bytes_read == len(whole)


def test_only_a_newline_ends_a_line() -> None:
    """``splitlines`` would cut a JSON string at a U+2028 in it."""
    text = "a\u2028b\x85c\x0bd\n".encode()
    assert list(LineReader(io.BytesIO(text))) == [text[:-1]]


def test_byte_order_mark_is_not_part_of_the_first_line() -> None:
    reader = LineReader(io.BytesIO(b"\xef\xbb\xbfid\n1\n"))
    assert list(reader) == [b"id", b"1"]
    assert reader.bytes_read == 8


def test_line_without_end_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(_lines, "CHUNK_BYTES", 4)
    reader = LineReader(io.BytesIO(b"x" * 11 + b"\n" + b"y" * 10 + b"\n" + b"z" * 30))
    assert list(reader) == [None, b"y" * 10, None]
    assert reader.number == 3


def test_reader_says_before_it_may_have_to_wait() -> None:
    """Records of a slow pipe must go on their way before the next read, which may take hours."""
    seen: list[object] = []
    reader = LineReader(Dribble(b"1\n2\n", b"3\n"), lambda: seen.append("waits"))
    for line in reader:
        seen.append(line)
    assert seen == ["waits", b"1", b"2", "waits", b"3", "waits"]
