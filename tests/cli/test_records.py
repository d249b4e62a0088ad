"""Reading JSONL, CSV and plain lines."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import _records
from harness.cli._errors import InputError
from harness.cli._lines import LineReader
from harness.cli._records import Format, Record, format_of, parse_records


def read(form: Format, content: str | bytes) -> list[Record]:
    raw = content.encode() if isinstance(content, str) else content
    return list(parse_records(LineReader(io.BytesIO(raw)), form, source="input"))


def values(form: Format, content: str | bytes) -> list[Any]:
    records = read(form, content)
    assert [record.problem for record in records] == [None] * len(records)
    assert [record.index for record in records] == list(range(len(records)))
    return [record.value for record in records]


def problem(form: Format, content: str | bytes) -> str:
    """Return the one problem there is, and check that the record before and after are fine."""
    bad = [record for record in read(form, content) if record.problem is not None]
    assert len(bad) == 1
    assert bad[0].problem is not None
    return bad[0].problem


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a.jsonl", "jsonl"),
        ("a.NDJSON", "jsonl"),
        ("folder.csv/a.csv", "csv"),
        ("a.txt", "lines"),
        ("prompts", "lines"),
    ],
)
def test_suffix_says_the_format(path: str, form: Format) -> None:
    assert format_of(path) == form


@pytest.mark.parametrize("path", ["a.json", "a.parquet", "a.csv.gz", "a.xlsx"])
def test_files_that_have_no_records_in_lines_are_refused(path: str) -> None:
    with pytest.raises(InputError, match="--format"):
        format_of(path)


# JSONL -----------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
)
def test_every_json_value_arrives_as_it_was_written(written: list[Any]) -> None:
    for ascii_only in (True, False):
        lines = [json.dumps(value, ensure_ascii=ascii_only) + "\r\n" for value in written]
        assert values("jsonl", "".join(lines)) == written


def test_null_is_a_record_and_a_blank_line_is_none() -> None:
    assert values("jsonl", '{"a": 1}\n\n  \t\nnull\n\n[2]') == [{"a": 1}, None, [2]]


def test_line_numbers_count_blank_lines_and_indexes_do_not() -> None:
    records = read("jsonl", "\n1\n\n2\n")
    assert [(record.index, record.line) for record in records] == [(0, 2), (1, 4)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{'a': 1}", "column 2 reads \"'a': 1}\""),
        ("hello", "column 1 reads 'hello'"),
        ('{"a": 1} {"b": 2}', "column 10 reads"),
        ('{"a": ', "ends too early"),
        ("[", "write each value on one line"),
        ("NaN", "NaN is not a JSON number; write null"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ("1" * 5_000, "digits"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": "tab\there"}', "control character"),
    ],
)
def test_line_that_is_not_json_says_what_was_expected(line: str, words: str) -> None:
    said = problem("jsonl", f"1\n{line}\n2\n")
    assert words in said
    assert "expected" in said
    assert len(said) < 300


def test_bad_record_keeps_its_place_and_its_line_number() -> None:
    records = read("jsonl", "1\noops\n3\n")
    assert [record.value for record in records] == [1, None, 3]
    assert (records[1].index, records[1].line) == (1, 2)


@pytest.mark.parametrize("form", ["jsonl", "lines", "csv"])
def test_text_that_is_not_utf8_names_line_and_byte(form: Format) -> None:
    said = problem(form, b"1\ncaf\xe9\n3\n")
    assert "byte 4 of line 2 is 0xe9" in said
    assert "UTF-8" in said


def test_utf16_file_is_recognised() -> None:
    first = read("lines", "one\n".encode("utf-16"))[0]
    assert first.problem is not None
    assert "UTF-16" in first.problem


def test_byte_order_mark_is_no_part_of_a_value_or_a_column() -> None:
    assert values("jsonl", b'\xef\xbb\xbf{"a": 1}\n') == [{"a": 1}]
    assert values("csv", b"\xef\xbb\xbfa,b\n1,2\n") == [{"a": "1", "b": "2"}]
    assert values("lines", b"\xef\xbb\xbfa\n") == ["a"]


# Plain lines -----------------------------------------------------------------------------------


def test_plain_line_loses_its_ending_and_nothing_else() -> None:
    assert values("lines", "  a \r\nb\t\n\nc\u2028d\n\x0ce") == ["  a ", "b\t", "c\u2028d", "\x0ce"]


# CSV -------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            *[st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]))] * 2
        )
    )
)
def test_every_csv_row_arrives_as_it_was_written(rows: list[tuple[str, str]]) -> None:
    """Embedded newlines, quotes and commas included."""
    content = io.StringIO(newline="")
    writer = csv.writer(content, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *rows])
    assert values("csv", content.getvalue()) == [{"a": a, "b": b} for a, b in rows]


def test_csv_field_may_hold_newlines_of_both_kinds() -> None:
    records = read("csv", 'id,text\r\n1,"a\nb\r\nc"\r\n2,d\r\n')
    assert [record.value for record in records] == [
        {"id": "1", "text": "a\nb\r\nc"},
        {"id": "2", "text": "d"},
    ]
    assert [record.line for record in records] == [2, 5]


def test_quote_in_the_middle_of_a_csv_field_is_just_a_character() -> None:
    assert values("csv", 'a,b\n5" pipe,x\n6,y\n') == [
        {"a": '5" pipe', "b": "x"},
        {"a": "6", "b": "y"},
    ]


def test_csv_field_may_be_longer_than_pythons_default_allows() -> None:
    text = "x" * 1_000_000
    assert values("csv", f"a\n{text}\n") == [{"a": text}]


def test_csv_without_a_last_newline_and_with_blank_lines() -> None:
    assert values("csv", "a,b\n\n1,2\n\n\n3,4") == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


@pytest.mark.parametrize("content", ["", "\n\n", "a,b\n", "a,b"])
def test_csv_without_rows_has_no_records(content: str) -> None:
    assert read("csv", content) == []


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1", "expected 2 columns, as in the first row, but this one has 1"),
        ("1,2,3", "but this one has 3"),
        ("1,2\rx,y", "new-line character"),
    ],
)
def test_csv_row_of_another_shape_is_bad_and_the_next_is_not(row: str, words: str) -> None:
    said = problem("csv", f"a,b\n0,0\n{row}\n8,9\n")
    assert words in said
    assert [record.value for record in read("csv", f"a,b\n{row}\n8,9\n")] == [
        None,
        {"a": "8", "b": "9"},
    ]


def test_quote_that_is_never_closed_is_found() -> None:
    """Else the rest of the file would silently become one field."""
    records = read("csv", 'a,b\n1,2\n3,"4\n5,6\n7,8\n')
    assert [record.line for record in records] == [2, 3]
    assert "never closed" in (records[1].problem or "")


def test_row_that_is_not_utf8_inside_quotes_ends_where_it_should() -> None:
    records = read("csv", b'a,b\n1,"x\n\xff\ny"\n2,z\n')
    assert "line 3" in (records[0].problem or "")
    assert records[1].value == {"a": "2", "b": "z"}


def test_csv_columns_need_names_of_their_own() -> None:
    with pytest.raises(InputError, match=r"input, line 1: .*'a' is there twice"):
        read("csv", "a,b,a\n1,2,3\n")


def test_too_long_lines_are_bad_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli._lines.MAX_LINE_BYTES", 100)
    monkeypatch.setattr("harness.cli._lines.CHUNK_BYTES", 50)
    long = "x" * 101
    for form in ("lines", "jsonl", "csv"):
        said = problem(form, f"1\n{long}\n2\n")
        assert "more than" in said


def test_field_over_many_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_records, "MAX_LINE_BYTES", 100)
    content = 'a\n"' + "x" * 60 + "\n" + "x" * 60 + '"\nok\n'
    assert "field limit" in (read("csv", content)[0].problem or "")


def test_reading_is_lazy() -> None:
    """A million records must not be in memory, and the first must not wait for the last."""

    class Endless:
        reads = 0

        def read(self, size: int, /) -> bytes:
            self.reads += 1
            return b'{"a": 1}\n' * 10

    for form in ("lines", "jsonl", "csv"):
        source = Endless()
        records = parse_records(LineReader(source), form, source="input")
        for _ in range(25):
            next(records)
        assert source.reads == 3
