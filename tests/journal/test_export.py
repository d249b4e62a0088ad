"""What a journal has of each item, in the files and tables of other programs."""

import csv
import json
import math
import sqlite3
import sys
from datetime import UTC, date, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import pytest
from trio.testing import MockClock

import harness
from harness.budgets import charge_budget
from harness.errors import JournalError
from harness.journal import _export, edit_journal, open_journal, read_journal
from harness.journal._codec import Codec, digest_of_key
from harness.journal._schema import APPLICATION_ID, MIGRATIONS
from harness.models import (
    FunctionModel,
    Message,
    ModelRequest,
    ModelResponse,
    Price,
    Usage,
)
from harness.policies import Attempt, BestEffort, Retry

NEWEST = len(MIGRATIONS)

HOSTILE = [
    {"nested": [{"deep": {"er": [None, True, 1.5]}}], "key": "k", "status": "failed"},
    "é \u2028 \x00 \x1b[31m \U0001f600 \r\n,\"'",
    [math.nan, math.inf, -0.0],
    10**400,
    True,
    None,
    "",
    {},
    "QUJD" * 1_000,
]
"""Different types under one column, names of columns, what files of texts choke on, and what
the journal keeps apart."""


async def echo(item: Any) -> Any:
    return item["is"]


async def record(path: Any, values: list[Any], **options: Any) -> None:
    items = [{"id": number, "is": value} for number, value in enumerate(values)]
    async with open_journal(path) as journal:
        await harness.fan_out(
            echo, items, journal=journal, key=lambda item: item["id"], name="b", **options
        )


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, where nan equals itself and types count."""
    return repr(one) == repr(other)


needs_arrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")

FORMS = [
    "jsonl",
    "csv",
    pytest.param("parquet", marks=[needs_arrow, pytest.mark.slow]),
    pytest.param("arrow", marks=[needs_arrow, pytest.mark.slow]),
]


def files(folder: Path) -> list[str]:
    """Return the exports in a folder."""
    return sorted(path.name for path in folder.glob("all*"))


def parquet(path: Path) -> Any:
    return import_module("pyarrow.parquet").read_table(path)


def arrow(path: Path) -> Any:
    with import_module("pyarrow").ipc.open_file(path) as file:
        return file.read_all()


# What is kept -----------------------------------------------------------------------------------


PRICE = Price(input_usd_per_million_tokens=1, output_usd_per_million_tokens=2)


async def answer(request: ModelRequest) -> ModelResponse:
    usage = Usage(10, 3, cached_input_tokens=4, cache_write_input_tokens=2)
    return ModelResponse("yes", usage=usage)


async def test_what_an_item_was_and_what_models_used_for_it_is_kept(
    journal_path: str, autojump_clock: MockClock
) -> None:
    """Of all its attempts; the model and the run are those of the last."""
    small = FunctionModel(answer, name="small", price=PRICE)
    large = FunctionModel(answer, name="large")
    run_ids: list[str] = []

    async def ask(item: dict[str, str]) -> str:
        run_ids.append(harness.current_run().id)
        request = ModelRequest([Message("user", item["text"])])
        await small.complete(request)
        if len(run_ids) == 1:
            raise ValueError("first")
        await large.complete(request)
        charge_budget(tokens=5)  # By something that doesn't say of which kind.
        return "done"

    async with open_journal(journal_path) as journal:
        await harness.fan_out(
            ask,
            [{"text": "é", "id": "a"}],
            journal=journal,
            key=lambda item: item["id"],
            each=Attempt(retry=Retry(2)),
        )
    with read_journal(journal_path) as reader:
        [item] = reader.items("ask", details=True)
        [brief] = reader.items("ask")
    assert item.input_text == '{"text":"é","id":"a"}'
    assert (item.run_id, item.model) == (run_ids[-1], "small, large")
    assert (item.input_tokens, item.output_tokens) == (30, 9)
    assert (item.cached_input_tokens, item.cache_write_input_tokens) == (12, 6)
    assert item.tokens == 44
    assert item.cost_usd > 0
    assert brief.input_text is None
    assert brief.value_text == item.value_text


async def test_what_an_item_used_before_it_was_reopened_is_not_counted(journal_path: str) -> None:
    model = FunctionModel(answer, name="small")

    async def ask(item: str) -> str:
        return (await model.complete(ModelRequest([Message("user", item)]))).content

    async def session() -> None:
        async with open_journal(journal_path) as journal:
            await harness.fan_out(ask, ["a", "b"], journal=journal, key=str, name="b")

    await session()
    with edit_journal(journal_path) as editor:
        editor.retry("b", ["a"])
        again, other = editor.items("b", details=True)
        assert (again.input_tokens, again.model) == (None, None)
        assert (other.input_tokens, other.model) == (10, "small")
    await session()
    with edit_journal(journal_path) as editor:
        assert [item.input_tokens for item in editor.items("b", details=True)] == [10, 10]
        editor.forget("b", ["a"])
        for table in ("harness_inputs", "harness_usage"):
            assert editor._backend.fetch(f"SELECT count(*) FROM {table}") == [(1,)], table


@attrs.frozen
class Question:
    on: date
    words: tuple[str, ...]


async def test_an_input_of_a_class_is_exported_as_its_fields(tmp_path: Path) -> None:
    async def ask(item: Any) -> int:
        return 1

    items = [Question(date(2030, 1, 2), ("a",)), (1, 2), {1: "whole"}, {"is": {1}}]
    async with open_journal(tmp_path / "run.db") as journal:
        await harness.fan_out(ask, items, journal=journal, key=items.index, name="b")
    with read_journal(tmp_path / "run.db") as reader:
        reader.export(tmp_path / "all.jsonl")
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    found = [json.loads(line)["input"] for line in lines]
    assert found[:2] == [{"on": "2030-01-02", "words": ["a"]}, [1, 2]]


async def test_large_bytes_in_inputs_are_kept_once(tmp_path: Path) -> None:
    """A hundred questions about one picture."""

    async def ask(item: Any) -> int:
        return 1

    items = [{"id": number, "picture": bytes(30_000)} for number in range(20)]
    async with open_journal(tmp_path / "run.db") as journal:
        await harness.fan_out(ask, items, journal=journal, key=lambda item: item["id"])
    with edit_journal(tmp_path / "run.db") as editor:
        editor.vacuum()
        assert len(editor._backend.fetch("SELECT * FROM harness_bytes")) == 1
    assert (tmp_path / "run.db").stat().st_size < 300_000


async def test_inputs_are_kept_only_if_they_may_be(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "run.db", keep_inputs=False) as journal:
        await harness.fan_out(echo, [{"is": "secret words"}], journal=journal, key=str)
    assert b"secret" in (tmp_path / "run.db").read_bytes(), "the key and the value"
    with read_journal(tmp_path / "run.db") as reader:
        [item] = reader.items("echo", details=True)
        assert item.input_text is None
        assert item.is_of({"is": "secret words"})


async def test_a_journal_of_version_1_has_no_inputs_and_can_be_exported(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(Path(__file__).with_name("version_1.sql").read_text())
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("PRAGMA user_version=1")
        connection.execute("INSERT INTO harness_batches VALUES (1, 'b', 't', NULL, '{}', 0)")
        connection.execute("INSERT INTO harness_sessions VALUES (1, 1, 1, 1, 0, 1, 'host')")
        known = (digest_of_key(1, "0"), Codec().hash_input({"id": 0, "is": 1}))
        connection.execute("INSERT INTO harness_items VALUES (1, 1, ?, '0', ?)", known)
        connection.execute("INSERT INTO harness_attempts VALUES (1, 1, 1, 0, 5.0)")
        end = "(2, 1, 1, 1, 'ok', 1, 0, 7.0, 1.5, '1', NULL, NULL, 9, 0.5)"
        connection.execute(f"INSERT INTO harness_endings VALUES {end}")
    connection.close()
    with pytest.raises(JournalError, match=f"version 1, and is brought to version {NEWEST}"):
        with read_journal(path):
            pass
    async with open_journal(path, force=True) as journal:
        items = [{"id": 0, "is": 1}, {"id": 1, "is": 2}]
        await harness.fan_out(echo, items, journal=journal, key=lambda item: item["id"], name="b")
    with read_journal(path) as reader:
        old, new = reader.items("b", details=True)
    assert (old.key, old.value_text, old.started_at, old.tokens) == (0, "1", 5.5, 9)
    assert (old.input_text, old.run_id, old.model, old.input_tokens) == (None, None, None, None)
    assert new.input_text == '{"id":1,"is":2}'
    assert new.run_id is not None


# Files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
async def test_every_value_is_read_back_exactly(form: str, tmp_path: Path) -> None:
    await record(tmp_path / "run.db", HOSTILE)
    file = tmp_path / f"all.{form}"
    with read_journal(tmp_path / "run.db") as reader:
        assert reader.export(file) == len(HOSTILE)
        items = list(reader.items("b", details=True))
    if form == "jsonl":
        text = file.read_text()
        rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
        # JSON has no nan: what has one is a string, which Python reads.
        values = [json.loads(row["value"]) if "NaN" in str(row) else row["value"] for row in rows]
    else:
        if form == "csv":
            with file.open(newline="") as lines:
                rows = list(csv.DictReader(lines))
        else:
            rows = (parquet if form == "parquet" else arrow)(file).to_pylist()
        values = [json.loads(row["value"]) for row in rows]
    assert all(map(same, values, HOSTILE))
    assert list(rows[0]) == list(_export.EXPORTED)
    for row, item in zip(rows, items, strict=True):
        assert str(row["key"]) == str(item.key)
        assert row["status"] == "ok"
        assert (row["error"] or None, row["traceback"] or None) == (None, None)
        assert float(row["seconds"]) == item.seconds
        began = row["started_at"]
        began = began if isinstance(began, datetime) else datetime.fromisoformat(began)
        assert item.started_at is not None
        assert abs(began.timestamp() - item.started_at) < 1e-6
        assert began.utcoffset() == datetime.now(UTC).utcoffset()


@needs_arrow
@pytest.mark.slow
async def test_an_error_comes_with_type_text_and_traceback(tmp_path: Path) -> None:
    async def fail(item: str) -> None:
        raise ValueError("no \ud800 \0\nway")

    async with open_journal(tmp_path / "run.db") as journal:
        await harness.fan_out(fail, ["a"], journal=journal, key=str, policy=BestEffort())
    with read_journal(tmp_path / "run.db") as reader:
        reader.export(tmp_path / "all.parquet")
    [row] = parquet(tmp_path / "all.parquet").to_pylist()
    assert (row["status"], row["value"]) == ("failed", None)
    assert row["error"] == "ValueError: no \\ud800 \\0\nway"
    assert row["error_type"] == "ValueError"
    assert row["error_message"] == "no \\ud800 \\0\nway"
    assert "in fail" in row["traceback"]


@pytest.mark.parametrize("form", FORMS)
async def test_an_empty_export_has_the_same_columns(form: str, tmp_path: Path) -> None:
    """Else the table of all nights has no type for the one in which nothing was done."""
    await record(tmp_path / "run.db", [1])
    with read_journal(tmp_path / "run.db") as reader:
        assert reader.export(tmp_path / f"all.{form}") == 1
        assert reader.export(tmp_path / f"none.{form}", chosen=lambda item: False) == 0
    if form == "jsonl":
        assert (tmp_path / "none.jsonl").read_text() == ""
    elif form == "csv":
        assert (tmp_path / "none.csv").read_text().strip() == ",".join(_export.EXPORTED)
    else:
        read = parquet if form == "parquet" else arrow
        none, every = read(tmp_path / f"none.{form}"), read(tmp_path / f"all.{form}")
        assert none.num_rows == 0
        assert none.schema == every.schema


@needs_arrow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param([2, -1], [2, -1], id="whole numbers"),
        pytest.param(["2", "-1"], ["2", "-1"], id="texts"),
        pytest.param([1, "1a"], ["1", "1a"], id="both"),
        pytest.param([1, 2**63], ["1", str(2**63)], id="one that is too large"),
        pytest.param(["half \ud800"], ["half \\ud800"], id="half of a pair"),
    ],
)
async def test_keys_are_whole_numbers_if_all_are(
    keys: list[Any], expected: list[Any], journal_path: str, tmp_path: Path
) -> None:
    """Not by the items chosen: the same batch has the same type in every export."""

    async def one(item: Any) -> int:
        return 1

    async with open_journal(journal_path) as journal:
        # The keys of another batch don't count.
        await harness.fan_out(one, ["text"], journal=journal, key=str, name="other")
        await harness.fan_out(one, keys, journal=journal, key=lambda item: item, name="b")
    with read_journal(journal_path) as reader:
        reader.export(tmp_path / "all.parquet", batch="b")
        reader.export(tmp_path / "one.parquet", batch="b", chosen=lambda item: item.key == 1)
        with pytest.raises(JournalError, match="'other', 'b'; say which"):
            reader.export(tmp_path / "none.parquet")
    table = parquet(tmp_path / "all.parquet")
    assert table["key"].to_pylist() == expected
    assert parquet(tmp_path / "one.parquet").schema == table.schema


@pytest.mark.parametrize("form", FORMS[2:])
async def test_a_group_of_rows_is_written_before_more_are_read(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps a million items in flat memory; a group also ends with a few large values."""
    module = import_module("harness.journal._arrow")
    monkeypatch.setattr(module, "ROWS_AT_MOST", 4)
    monkeypatch.setattr(module, "CHARACTERS_AT_MOST", 100_000)
    await record(tmp_path / "run.db", [*range(10), "x" * 200_000, 1, 2])
    sizes: list[int] = []
    file = tmp_path / f"all.{form}"

    def looked(item: Any) -> bool:
        [part] = tmp_path.glob("*.part")
        sizes.append(part.stat().st_size)
        return True

    with read_journal(tmp_path / "run.db") as reader:
        reader.export(file, chosen=looked)
    if form == "parquet":
        metadata = import_module("pyarrow.parquet").ParquetFile(file).metadata
        assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [
            *(4, 4, 3, 2)
        ]
    assert len(set(sizes)) > 1, "nothing was on the disk before the end"
    assert parquet(file).num_rows == 13 if form == "parquet" else arrow(file).num_rows == 13


@pytest.mark.parametrize("form", ["jsonl", *FORMS[2:]])
async def test_an_export_that_breaks_off_leaves_what_was_there(form: str, tmp_path: Path) -> None:
    """A file of Parquet that is closed looks complete."""
    await record(tmp_path / "run.db", [1, 2])
    file = tmp_path / f"all.{form}"

    def broken(item: Any) -> bool:
        if item.key == 1:
            raise ArithmeticError
        return True

    with read_journal(tmp_path / "run.db") as reader:
        with pytest.raises(ArithmeticError):
            reader.export(file, chosen=broken)
        assert files(tmp_path) == []
        with pytest.raises(FileExistsError, match="already exists"):
            reader.export(file, chosen=lambda item: file.write_text("another's"))
        assert file.read_text() == "another's"
        file.unlink()
        reader.export(file)
        before = file.read_bytes()
        with pytest.raises(FileExistsError, match="already exists"):
            reader.export(file)
        with pytest.raises(ArithmeticError):
            reader.export(file, chosen=broken, overwrite=True)
        assert file.read_bytes() == before
        with pytest.raises(ValueError, match=r"'all\.txt' doesn't say how .* \.parquet"):
            reader.export("all.txt")
    assert files(tmp_path) == [file.name]


# Tables -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_pandas_has_the_values_themselves(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    await record(tmp_path / "run.db", HOSTILE)
    with read_journal(tmp_path / "run.db") as reader:
        frame = reader.to_pandas()
    assert list(frame) == list(_export.EXPORTED)
    assert all(map(same, frame["value"], HOSTILE))
    assert frame["input"][3] == {"id": 3, "is": 10**400}
    assert frame["key"].sum() == sum(range(len(HOSTILE)))
    assert frame["error"].isna().all()
    assert (frame["ended_at"] >= frame["started_at"]).all()


@pytest.mark.slow
async def test_polars_has_them_as_json(journal_path: str) -> None:
    pytest.importorskip("polars")
    await record(journal_path, HOSTILE)
    with read_journal(journal_path) as reader:
        frame = reader.to_polars("b")
        assert frame.filter(frame["key"] < 0).schema == frame.schema
    assert frame.columns == list(_export.EXPORTED)
    assert all(map(same, map(json.loads, frame["value"]), HOSTILE))
    assert frame["error"].null_count() == len(HOSTILE)
    assert (frame["ended_at"] >= frame["started_at"]).all()


@pytest.mark.parametrize(
    ("package", "extra"), [("pandas", "pandas"), ("polars", "polars"), ("pyarrow", "arrow")]
)
async def test_a_missing_package_is_named_with_its_extra(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record(tmp_path / "run.db", [1])
    monkeypatch.setitem(sys.modules, package, None)
    said = rf"needs {package}, which is not installed; run: pip install 'trio-harness\[{extra}\]'"
    with read_journal(tmp_path / "run.db") as reader, pytest.raises(ImportError, match=said):
        if package == "pyarrow":
            reader.export(tmp_path / "all.parquet")
        else:
            getattr(reader, f"to_{package}")()
    assert not files(tmp_path)
