"""``harness diff``: what is said of two batches, and what it takes."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from harness.cli import _diff, main
from harness.cli._recorded import RecordedResult


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def line(key: str | None, value: Any = None, error: str | None = None, **more: Any) -> str:
    status = "ok" if error is None else "failed"
    told = {"key": key, "index": 0, "status": status, "value": value, "error": error}
    return json.dumps({**told, "attempts": 1, "seconds": 0.1, **more}) + "\n"


def write(name: str, *lines: str) -> None:
    Path(name).write_text("".join(lines))


def diff(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> list[str]:
    assert main(["diff", *words]) == code
    said = capsys.readouterr()
    return (said.out if code < 2 else said.err).splitlines()


def test_each_kind_of_difference_is_told_by_key(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "before.jsonl",
        line("same", {"a": 1, "b": [1, None]}),
        line("changed", {"a": 1, "b": [1, {"c d": True}], "gone": 0}),
        line("fails", "x"),
        line("recovers", error="ValueError: no"),
        line("still", error="ValueError: no"),
        line("gone", 3),
        line("slow", 1, cost_usd=0.5, tokens=10),
        line(None, error="BadRecordError: not JSON"),
    )
    write(
        "after.jsonl",
        line("new", 4),
        line("slow", 1, seconds=0.9, cost_usd=2.0, tokens=10),
        line("still", error="KeyError: 'a'"),
        line("recovers", "y"),
        line("fails", error="ValueError: no"),
        line("changed", {"a": "1", "b": [1, {"c d": 1}], "more": None}),
        line("same", {"b": [1.0, None], "a": 1}),
    )
    told = diff(capsys, "before.jsonl", "after.jsonl", code=1)
    assert sorted(told[:-3]) == [
        'changed: changed.a: 1 -> "1"',
        'changed: changed.b[1]["c d"]: true -> 1',
        "changed: changed.gone: 0 -> nothing",
        "changed: changed.more: nothing -> null",
        'fails: newly failed: "x" -> "ValueError: no"',
        "gone: gone: 3",
        "new: new: 4",
        'recovers: recovered: "ValueError: no" -> "y"',
        "slow: dearer: 0.5 -> 2",
        "slow: slower: 0.1 -> 0.9",
        'still: changed: "ValueError: no" -> "KeyError: \'a\'"',
    ]
    assert told[-3:] == [
        "before.jsonl has 7 items, after.jsonl 7; 2 came to the same",
        "1 new, 1 gone, 2 changed, 1 newly failed, 1 recovered, 1 slower, 1 dearer",
        "the items of both took 0.6 s -> 1.4 s, 10 -> 10 tokens, $0.5000 -> $2.0000",
    ]
    assert diff(capsys, "before.jsonl", "after.jsonl", "--totals", code=1) == told[-3:]


def test_the_status_is_that_of_diff(capsys: pytest.CaptureFixture[str]) -> None:
    """Times vary; so they decide only where a bound was asked for."""
    write("a.jsonl", line("a", 1), line("b", 2, tokens=10))
    write("b.jsonl", line("b", 2, tokens=30), line("a", 1, seconds=0.9))
    assert diff(capsys, "a.jsonl", "a.jsonl", code=0)[0].endswith("; 2 came to the same")
    diff(capsys, "a.jsonl", "b.jsonl", code=0)
    diff(capsys, "a.jsonl", "b.jsonl", "--slower", "3", code=1)
    diff(capsys, "a.jsonl", "b.jsonl", "--slower", "10", code=0)
    diff(capsys, "a.jsonl", "b.jsonl", "--dearer", "2.5", code=1)
    diff(capsys, "a.jsonl", "b.jsonl", "--dearer", "4", code=0)
    for bad in (["missing.jsonl"], ["-"], ["b.jsonl", "--slower", "0.5"]):
        diff(capsys, "-" if bad == ["-"] else "a.jsonl", *bad, code=2)
    write("none.jsonl", '{"id": 3}\n')
    assert "none.jsonl, line 1, is not a result" in diff(capsys, "a.jsonl", "none.jsonl", code=2)[0]


def test_costs_that_one_of_the_two_does_not_record_are_not_told_as_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("a.jsonl", line("a", 1, tokens=10, cost_usd=0.1))
    write("b.jsonl", line("a", 1))
    for names in (("a.jsonl", "b.jsonl"), ("b.jsonl", "a.jsonl")):
        assert diff(capsys, *names, code=0)[-1] == "the items of both took 0.1 s -> 0.1 s"
    write("b.jsonl", line("a", 1, tokens=0))
    assert "10 -> 0 tokens" in diff(capsys, "a.jsonl", "b.jsonl", code=0)[-1]


def test_what_steers_a_terminal_or_breaks_a_table_is_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = "\x1b]0;owned\x07\u202e|\\|`x``<b>\r\n\x9b2J"
    write("a.jsonl", line("same", 1))
    write("b.jsonl", line("same", {hostile: hostile}), line(hostile, error=hostile))
    for form in ([], ["--markdown"], ["--json"]):
        told = diff(capsys, "a.jsonl", "b.jsonl", *form, code=1)
        assert not [one for one in "".join(told) if not one.isprintable()]
    table = [one for one in diff(capsys, "a.jsonl", "b.jsonl", "--markdown", code=1) if "`" in one]
    assert len(table) == 2
    for row in table:
        assert row.replace("\\\\", "").replace("\\|", "").count("|") == 5
        assert row.count("```") >= 2, "the fence is longer than any in the text"


def test_json_has_an_object_per_difference_and_the_totals_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("a.jsonl", line("a", {"x": 1}), line("b", 2))
    write("b.jsonl", line("a", {"x": 2}))
    *told, totals = map(json.loads, diff(capsys, "a.jsonl", "b.jsonl", "--json", code=1))
    assert told == [
        {"key": "a", "what": "changed", "part": ".x", "before": 1, "after": 2},
        {"key": "b", "what": "gone", "before": 2},
    ]
    assert {name: totals["totals"][name] for name in ("before", "after", "same", "changed")} == {
        "before": 2,
        "after": 1,
        "same": 0,
        "changed": 1,
    }


def test_many_parts_of_one_value_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.jsonl", line("a", list(range(100))))
    write("b.jsonl", line("a", list(range(1, 101))))
    told = diff(capsys, "a.jsonl", "b.jsonl", code=1)
    assert len(told) == 20 + 1 + 3
    assert told[20] == "a: changed and 80 more parts"


def result(key: str, value: Any, status: str = "ok") -> RecordedResult:
    return RecordedResult(
        key=key,
        status=status,
        value=value,
        error=None,
        error_type=None,
        error_message=None,
        attempts=1,
        seconds=0.5,
    )


@pytest.mark.parametrize("seed", range(20))
def test_any_order_and_any_room_find_the_same_pairs(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(_diff, "WAITING_AT_MOST", draw.choice([1, 7, 1_000]))
    monkeypatch.setattr(_diff, "_PER_TURN", draw.choice([1, 3, 100]))
    keys = [f"k{number}\udc80é" for number in range(60)]
    before = {key: draw.random() for key in keys if draw.random() < 0.8}
    after = {key: draw.random() for key in keys if draw.random() < 0.8}
    sides = [[result(key, side[key]) for key in side] for side in (before, after)]
    for side in sides:
        draw.shuffle(side)
    pairing = _diff.Pairing(("a", "b"))
    found = {}
    for one, other in pairing.pairs(*sides, exact=False):
        key = (one or other).key  # type: ignore[union-attr]
        assert key not in found
        found[key] = (one and one.value, other and other.value)
    pairing.close()
    assert found == {key: (before.get(key), after.get(key)) for key in before.keys() | after.keys()}


@pytest.mark.parametrize("room", [1, 1_000])
@pytest.mark.parametrize("late", [False, True])
def test_a_key_that_comes_twice_is_refused(
    room: int, late: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be told as new, or as gone."""
    monkeypatch.setattr(_diff, "WAITING_AT_MOST", room)
    many = [line(str(number), 1) for number in range(200)]
    write("a.jsonl", *many, *(line("7", 2) for _ in range(late)))
    write("b.jsonl", *([] if late else [line("new", 2)] * 2), *many)
    [said] = diff(capsys, "a.jsonl", "b.jsonl", code=2)
    assert f"{'a' if late else 'b'}.jsonl has " in said
    assert "twice" in said


AGENT = """
async def answer(record):
    return {"of": record["id"], "size": len(record["text"])}
"""


def test_journals_outputs_and_exports_of_one_batch_are_the_same(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("agent.py").write_text(AGENT)
    Path("in.csv").write_text("id,text\n1,one\n2,two\n3,three\n")
    batch = "batch agent.py:answer --input in.csv --key id --output out.jsonl --journal run.db"
    assert main([*batch.split(), "--quiet"]) == 0
    for form in ("csv", "jsonl"):
        assert main(["journal", "export", "run.db", "--format", form, "--output", f"x.{form}"]) == 0
    capsys.readouterr()
    for one in ("run.db", "out.jsonl", "x.csv", "x.jsonl"):
        for other in ("run.db", "out.jsonl", "x.csv", "x.jsonl"):
            told = diff(capsys, one, other, code=0)
            assert told[0] == f"{one} has 3 items, {other} 3; 3 came to the same"
    Path("in.csv").write_text("id,text\n1,one\n2,twenty\n4,four\n")
    assert main([*batch.replace("run", "new").split(), "--quiet", "--overwrite"]) == 0
    assert diff(capsys, "run.db", "new.db", "--batch", "batch", code=1)[:3] == [
        "2: changed.size: 3 -> 6",
        '3: gone: {"of": "3", "size": 5}',
        '4: new: {"of": "4", "size": 4}',
    ]
    said = diff(capsys, "run.db", "new.db", "--batch", "batch", "--batch", "x", code=2)
    assert "no batch 'x'" in said[0]


@pytest.mark.slow
def test_the_first_difference_is_told_before_the_rest_is_read_and_memory_stays_flat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_diff, "WAITING_AT_MOST", 100)
    read = 0

    def items(count: int, value: int) -> Any:
        nonlocal read
        for number in range(count):
            read += 1
            yield result(f"k{number}", value)

    def peak(count: int) -> int:
        pairing = _diff.Pairing(("a", "b"))
        tracemalloc.start()
        # The second in the opposite order: nothing waits longer.
        other = (result(f"k{number}", 1) for number in reversed(range(count)))
        assert all(one and two for one, two in pairing.pairs(items(count, 0), other, exact=False))
        pairing.close()
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held

    pairing = _diff.Pairing(("a", "b"))
    next(pairing.pairs(items(10_000, 0), items(10_000, 1), exact=False))
    pairing.close()
    assert read <= 200
    assert peak(4_000) < 1.5 * peak(1_000)
