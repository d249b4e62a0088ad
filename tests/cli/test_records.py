"""Reading JSONL, CSV and plain lines."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import _records
from harness.cli._errors import InputError
from harness.cli._lines import LineReader
from harness.cli._records import Format, Record, format_of, parse_records
from tests.cli.test_lines import Dribble


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
        ("a.TSV", "csv"),
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


_NAMES = st.lists(
    st.text("abc;|\t\u00e4\u20ac' \"\n", min_size=1).filter(str.strip),
    min_size=2,
    max_size=4,
    unique=True,
)
_FIELDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def _pieces(raw: bytes, size: int) -> list[bytes]:
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def _written(row: list[str], delimiter: str, quoting: Literal[0, 1]) -> str:
    line = io.StringIO(newline="")
    # With another line end the writer would leave fields unquoted that have one of these in them.
    csv.writer(line, delimiter=delimiter, quoting=quoting, lineterminator="\r\n").writerow(row)
    return line.getvalue().removesuffix("\r\n")


def _python_reads(raw: bytes, delimiter: str) -> list[dict[str, str]]:
    text = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig", newline="")
    rows = csv.reader(text, delimiter=delimiter)
    columns = next(rows)
    return [dict(zip(columns, row, strict=True)) for row in rows if row]


@pytest.mark.slow
@given(st.data())
def test_file_of_any_dialect_is_read_as_python_reads_it(data: st.DataObject) -> None:
    """Separators, quoting, line ends and byte order marks, with all of these inside fields too."""
    delimiter = data.draw(st.sampled_from(",;\t|"))
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    quoted: list[Literal[0, 1]] = [csv.QUOTE_MINIMAL, csv.QUOTE_ALL]
    quoting = data.draw(st.sampled_from(quoted))
    encoding = data.draw(st.sampled_from(["utf-8", "utf-8-sig"]))
    names = data.draw(_NAMES)
    if delimiter != "," and quoting == csv.QUOTE_MINIMAL:
        # Of two that could separate, the first row has the other in quotes or not at all.
        names = [name.translate(str.maketrans(";|\t", "xyz")) for name in names]
        names = [f"{place}{name}" for place, name in enumerate(names)]
    rows = data.draw(st.lists(st.lists(_FIELDS, min_size=len(names), max_size=len(names))))
    content = "".join(_written(row, delimiter, quoting) + end for row in [names, *rows])
    raw = content.encode(encoding)
    lines = LineReader(Dribble(*_pieces(raw, data.draw(st.integers(3, 20)))))
    told: list[str] = []
    records = list(parse_records(lines, "csv", source="input", tell=told.append))
    assert told == [delimiter]
    assert [record.problem for record in records] == [None] * len(records)
    assert [record.value for record in records] == _python_reads(raw, delimiter)
    assert lines.bytes_read == len(raw)
    given = parse_records(
        LineReader(io.BytesIO(raw)), "csv", source="input", delimiter=delimiter, tell=told.append
    )
    assert list(given) == records


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "lines"])
def test_file_in_another_encoding_is_never_read_as_something_else(
    form: Format, encoding: str
) -> None:
    """UTF-16 without a mark is UTF-8 by its bytes: every second character would be a NUL."""
    raw = '"na\u00efve,text"\n"1,x"\n'.encode(encoding)
    try:
        first = read(form, raw)[0].problem
    except InputError as error:
        first = str(error)
    assert "UTF-8" in str(first)


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        ("id;text\n1;a, b\n", ";"),
        ("id\ttext\n1\ta, b\n", "\t"),
        ("id|text\n1|a; b\n", "|"),
        ('"id";"text"\n"1";"x"\n', ";"),
        ('\n"i\nd";text\n1;x\n', ";"),
        ("id,text;notes|more\n1,x\n", ","),
        ("id\n1\n", ","),
        ("", None),
    ],
)
def test_first_row_tells_what_separates_columns(content: str, delimiter: str | None) -> None:
    told: list[str] = []
    lines = LineReader(io.BytesIO(content.encode()))
    records = list(parse_records(lines, "csv", source="input", tell=told.append))
    assert [record.problem for record in records] == [None] * len(records)
    assert told == ([] if delimiter is None else [delimiter])


def test_row_that_does_not_fit_says_what_was_taken_to_separate_columns() -> None:
    assert "separated by ';'; --delimiter says otherwise" in problem("csv", "a;b\n1\n")
    assert "--delimiter" in problem("csv", "a;b,c\n1;2\n")
    assert "--delimiter" not in problem("csv", "a,b\n1\n")


def test_columns_without_names_are_called_by_their_numbers() -> None:
    """Spreadsheets leave commas behind where something stood once."""
    assert values("csv", "column_3,b,, \n1,2,3,4\n") == [
        {"column_3": "1", "b": "2", "column_3_": "3", "column_4": "4"}
    ]


def test_lone_carriage_return_ends_a_csv_row_and_may_be_in_a_field() -> None:
    records = read("csv", 'a,b\r1,"x\ry"\r2,z\r')
    assert [record.value for record in records] == [{"a": "1", "b": "x\ry"}, {"a": "2", "b": "z"}]
    assert [record.line for record in records] == [2, 4]


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
