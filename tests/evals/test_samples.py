"""Samples: given as objects or dicts, or read from files and data sets."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from harness.evals import Sample, read_samples
from harness.evals._sample import as_samples

RECORDS = [
    {"n": "a", "question": "1 + 1?", "answer": "2", "topic": "sums"},
    {"n": "b", "question": "cube of 2,\nplease?", "answer": "8", "topic": "powers"},
]
AS_SAMPLES = [
    Sample("a", "1 + 1?", "2", group="sums"),
    Sample("b", "cube of 2,\nplease?", "8", group="powers"),
]
NAMES = {"input": "question", "expected": "answer", "id": "n", "group": "topic"}


def test_a_dict_is_a_sample_and_has_its_place_as_id() -> None:
    given: list[Any] = [Sample("x", 1), {"input": 2, "expected": 3, "cluster": "c"}]
    assert as_samples(given) == (Sample("x", 1), Sample(1, 2, 3, cluster="c"))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([], ValueError, "there are no samples"),
        ([{"question": 1}], ValueError, r"has the keys 'question'.*read_samples\(records"),
        ([{"input": 1, "answer": 2}], ValueError, "has the keys 'input', 'answer'"),
        (["text"], TypeError, "sample 0 is 'text'; give a Sample, or a dict"),
        ([Sample(1, ""), Sample("1", "")], ValueError, "two samples have the id '1'"),
    ],
)
def test_what_is_no_sample_is_refused(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        as_samples(given)


def test_files_of_records_become_samples(tmp_path: Path) -> None:
    csv = 'n,question,answer,topic\na,1 + 1?,2,sums\nb,"cube of 2,\nplease?",8,powers\n'
    (tmp_path / "in.csv").write_text(csv, encoding="utf-8-sig")
    tsv = 'n\tquestion\tanswer\ttopic\na\t1 + 1?\t2\tsums\nb\t"cube of 2,\nplease?"\t8\tpowers\n'
    (tmp_path / "in.tsv").write_text(tsv)
    (tmp_path / "in.jsonl").write_text("\n\n".join(map(json.dumps, RECORDS)))
    for name in ("in.csv", "in.tsv", "in.jsonl"):
        assert read_samples(tmp_path / name, **NAMES) == AS_SAMPLES


@pytest.mark.slow
def test_parquet_is_read_where_pyarrow_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.parquet"
    path.touch()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(ImportError, match=r"run: pip install 'trio-harness\[arrow\]'"):
            read_samples(path)
    pytest.importorskip("pyarrow", reason="reading Parquet is tried where pyarrow is installed")
    table = import_module("pyarrow").Table.from_pylist(RECORDS)
    import_module("pyarrow.parquet").write_table(table, path)
    assert read_samples(path, **NAMES) == AS_SAMPLES


def test_a_folder_of_datasets_is_read_where_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ImportError, match="run: pip install 'datasets'"):
            read_samples(tmp_path)
    pytest.importorskip("datasets", reason="data sets are tried where that package is installed")
    dataset = import_module("datasets").Dataset.from_list(RECORDS)
    assert read_samples(dataset, **NAMES) == AS_SAMPLES
    dataset.save_to_disk(str(tmp_path / "one"))
    assert read_samples(tmp_path / "one", **NAMES) == AS_SAMPLES
    import_module("datasets").DatasetDict({"test": dataset}).save_to_disk(str(tmp_path / "all"))
    with pytest.raises(ValueError, match=r"several splits \(test\); give the folder of one"):
        read_samples(tmp_path / "all")


def test_the_function_does_not_see_the_answer() -> None:
    """A whole record is its input, and must not have it."""
    (first, _) = read_samples(iter(RECORDS), expected="answer")
    assert first == Sample(0, {"n": "a", "question": "1 + 1?", "topic": "sums"}, "2")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("in.csv", "a,b\n1,2,3\n", "line 2: this row hasn't the 2 columns"),
        ("in.csv", "a,b\n1\n", "line 2: this row hasn't the 2 columns"),
        ("in.jsonl", '{"question": 1}\n{"a"\n', "line 2: expected one JSON value"),
        ("in.jsonl", "", "there are no samples"),
        ("in.txt", "a\n", "is read by its suffix"),
        ("in.csv", "a,b\n1,2\n", "no field 'question'; its fields are 'a', 'b'"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        read_samples(tmp_path / name, input="question")


def test_records_have_fields() -> None:
    splits: Any = ["train", "test"]
    with pytest.raises(TypeError, match="record 0 is 'train'"):
        read_samples(splits, input="question")
