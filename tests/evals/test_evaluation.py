"""What an evaluation says: means, groups, pass@k, comparisons, confusion, charts, logs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import pytest

from harness.evals import (
    Evaluation,
    Sample,
    SampleScore,
    read_evaluation,
    write_chart,
    write_inspect_log,
)


def scored(
    scores: Iterable[Any],
    *,
    name: str = "desk",
    repeats: int = 1,
    clusters: int = 0,
    failed_as: float | None = 0.0,
) -> Evaluation:
    """Return an evaluation by the scores of one scorer, in which None is a call that failed."""
    made = []
    for number, score in enumerate(scores):
        index, repeat = divmod(number, repeats)
        sample = Sample(
            index,
            f"question {index}",
            "yes",
            group=["even", "odd"][index % 2],
            cluster=index % clusters if clusters else None,
        )
        made.append(
            SampleScore(
                sample=sample,
                repeat=repeat,
                status="failed" if score is None else "ok",
                output=None if score is None else {True: "yes", False: "no"}.get(score, "maybe"),
                error="ValueError: no" if score is None else None,
                scores={} if score is None else {"exact": score},
                unscored={},
                seconds=1.0,
            )
        )
    return Evaluation(name, tuple(made), ("exact",), failed_as)


def test_bools_have_wilsons_interval_and_numbers_students() -> None:
    bools = scored([True] * 8 + [False] * 2)
    assert bools.mean() == 0.8
    assert bools.interval() == pytest.approx((0.4901625, 0.9433178))
    numbers = scored([2.0] * 8 + [0.0] * 2)
    assert numbers.interval() == pytest.approx((0.99675808992, 2.20324191008))
    low, high = bools.interval(level=0.5)
    assert 0.49 < low < 0.8 < high < 0.94
    with pytest.raises(ValueError, match=r"between 0 and 1, such as 0\.95, not 95"):
        bools.interval(level=95)
    with pytest.raises(ValueError, match="name one of them, not 'exakt'"):
        bools.mean("exakt")


def test_several_calls_for_a_sample_are_no_further_samples() -> None:
    """Ten calls that all say the same are one piece of evidence, not ten."""
    once = scored([True, False] * 10)
    often = scored([True] * 10 + [False] * 10 + [True] * 10 + [False] * 10, repeats=10)
    assert once.mean() == often.mean() == 0.5
    assert often.interval()[0] < once.interval()[0]
    mean = often.mean_score()
    assert (mean.samples, mean.clusters, mean.calls) == (4, 4, 40)


def test_clusters_widen_the_interval() -> None:
    alone = scored([True, True, False, False] * 10)
    together = scored([True, True, False, False] * 10, clusters=4)
    assert alone.interval()[0] > together.interval()[0]
    assert together.mean_score().clusters == 4


def test_a_group_is_an_evaluation_of_its_own() -> None:
    groups = scored([True, False, True, None]).by_group()
    assert list(groups) == ["even", "odd"]
    assert groups["even"].mean() == 1.0
    assert groups["odd"].mean_score().failed == 1
    assert str(scored([True, False, True, None])).splitlines() == [
        "group  scorer   mean  95 %            calls",
        "all    exact   0.500  0.150 to 0.850      4  1 failed, counted as 0 (0.667 without them)",
        "even   exact   1.000  0.342 to 1.000      2",
        "odd    exact   0.000  0.000 to 0.658      2  1 failed, counted as 0 (0.000 without them)",
    ]


def test_if_all_calls_failed_that_is_their_score() -> None:
    """And no reason to tell nothing: it may be one group of many."""
    mean = scored([None, None]).mean_score()
    assert (mean.mean, mean.failed, mean.calls) == (0.0, 2, 2)
    assert str(mean).endswith("; 2 failed, counted as 0")
    with pytest.raises(ValueError, match=r"gave no score for any of the 2 calls; .*ValueError: no"):
        scored([None, None], failed_as=None).mean()


def test_pass_at_k_counts_samples_with_a_right_call() -> None:
    evaluation = scored([True, False, None, False, False, False, True, True, True], repeats=3)
    assert evaluation.pass_at(1).mean == pytest.approx(evaluation.mean())
    at_two = evaluation.pass_at(2)
    assert at_two.mean == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert evaluation.pass_at(3).mean == pytest.approx(2 / 3)
    assert at_two.low < at_two.mean < at_two.high
    assert str(at_two).startswith("0.556 (")
    for k in (0, 4):
        with pytest.raises(ValueError, match=rf"pass_at\({k}\) needs samples with"):
            evaluation.pass_at(k)
    with pytest.raises(ValueError, match="'exact' gives numbers"):
        scored([0.5, 1.0]).pass_at(1)


def test_two_evaluations_are_compared_pair_by_pair() -> None:
    first = scored([True] * 20 + [False] * 10, name="old")
    second = scored([True] * 18 + [False] * 2 + [True] * 9 + [False], name="new")
    found = first.compare(second)
    assert (found.test, found.pairs) == ("McNemar, exact", 30)
    assert found.p_value == pytest.approx(0.0654296875)
    assert (found.better, found.worse) == (tuple(map(str, range(20, 29))), ("18", "19"))
    assert found.difference == pytest.approx(7 / 30)
    assert 0 < found.low < found.difference < found.high
    assert str(found) == (
        "exact: 0.667 -> 0.900; +0.233 (+0.021 to +0.417, 95 %), p = 0.0654 (McNemar, exact); "
        "30 pairs: 9 better, 2 worse"
    )
    assert first.compare(first).p_value == 1.0


def test_numbers_repeats_and_clusters_have_the_paired_t_test() -> None:
    first, second = [0.1, 0.5, 0.7, 0.2], [0.2, 0.7, 0.6, 0.6]
    found = scored(first).compare(scored(second))
    assert found.test == "paired t"
    assert found.p_value == pytest.approx(0.24519388179494778)  # scipy.stats.ttest_rel
    bools = [True, False, True, True, False, False, True, False]
    kinds: list[dict[str, Any]] = [{"repeats": 2}, {"clusters": 3}]
    for options in kinds:
        one, other = scored(bools, **options), scored(reversed(bools), **options)
        assert one.compare(other).test == "paired t"


def test_what_only_one_has_is_left_out_of_a_comparison_and_told() -> None:
    long, short = scored([True] * 5), scored([True, False, True])
    found = long.compare(short)
    assert (found.pairs, found.only_first, found.only_second) == (3, 2, 0)
    assert "2 scored in the first only, left out" in str(found)
    assert "2 scored in the second only, left out" in str(short.compare(long))
    assert long.compare(scored([True, None, True])).worse == ("1",)
    other = scored([True])
    renamed = Evaluation(
        "x",
        tuple(
            SampleScore(
                sample=Sample("elsewhere", 1),
                repeat=0,
                status=one.status,
                output="",
                error=None,
                scores=one.scores,
                unscored={},
                seconds=0,
            )
            for one in other.scores
        ),
        ("exact",),
    )
    with pytest.raises(ValueError, match="no sample in common"):
        long.compare(renamed)


def test_a_confusion_table_counts_what_was_answered_instead() -> None:
    table = scored([True, False, None, True]).confusion()
    assert str(table).splitlines() == [
        "expected  (failed)  no  yes",
        "yes              1   1    2",
    ]
    assert table.mistakes() == [("yes", "(failed)", 1), ("yes", "no", 1)]
    assert (table.recall("yes"), table.precision("yes")) == (0.5, 1.0)
    initials = scored([True, False]).confusion(lambda output: output[0])
    assert initials.counts == {("yes", "y"): 1, ("yes", "n"): 1}


def test_many_labels_are_told_as_the_most_frequent_mistakes() -> None:
    wrong = [
        SampleScore(
            sample=Sample(n, n, f"label {n}"),
            repeat=0,
            status="ok",
            output="label 0",
            error=None,
            scores={},
            unscored={},
            seconds=0,
        )
        for n in range(20)
    ]
    lines = str(Evaluation("x", tuple(wrong), ("exact",)).confusion()).splitlines()
    assert lines[0].split() == ["expected", "answered", "times"]
    assert len(lines) == 13


def test_a_file_that_cannot_be_written_in_full_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text("of yesterday")

    def until_the_disk_is_full(self: Evaluation) -> Iterable[str]:
        yield "{}"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Evaluation, "lines", until_the_disk_is_full)
    with pytest.raises(OSError, match="No space"):
        scored([True]).write(path)
    assert path.read_text() == "of yesterday"
    assert [one.name for one in tmp_path.iterdir()] == ["scores.jsonl"]


def test_no_label_steers_a_terminal_or_breaks_a_picture(tmp_path: Path) -> None:
    label = "\x1b[2J\x00\ud800\n<b>"
    one = scored([True]).scores[0]
    one = attrs.evolve(one, sample=attrs.evolve(one.sample, group=label))
    evaluation = Evaluation("x", (one,), ("exact",))
    assert "\\x1b[2J\\x00\\ud800\\n<b>" in str(evaluation)
    path = tmp_path / "chart.svg"
    write_chart(evaluation.by_group(), path, title=label)
    assert "\\x1b[2J" in path.read_text()
    ElementTree.parse(path)


def test_a_chart_has_a_bar_and_an_interval_for_each(tmp_path: Path) -> None:
    """And loads nothing from elsewhere."""
    path = tmp_path / "chart.svg"
    evaluations = {("small", "brief"): scored([True, False] * 5), "large": scored([True] * 10)}
    write_chart(evaluations, path, title="Two models")
    root = ElementTree.parse(path).getroot()
    classes = [one.get("class") or "" for one in root.iter()]
    assert sum(name == "bar" for name in classes) == 2
    assert sum("ci" in name.split() for name in classes) == 2
    texts = {one.text for one in root.iter() if one.text}
    assert {"Two models", "small/brief", "large", "exact"} <= texts
    assert not [one for one in root.iter() if one.tag.endswith("script") and one.get("href")]
    assert "href" not in path.read_text()
    with pytest.raises(ValueError, match="no evaluations to draw"):
        write_chart({}, path)
    with pytest.raises(TypeError, match="and then the file, not 'a"):
        write_chart("a.svg", evaluations)  # type: ignore[arg-type]
    hooks = [one for one in sys.meta_path if type(one).__module__ == "pygal"]
    assert [one for one in hooks if not hasattr(one, "find_spec")] == []


def test_inspects_log_names_the_package_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(ImportError, match="run: pip install inspect-ai"):
        write_inspect_log(scored([True]), tmp_path / "log.eval")


@pytest.mark.slow
def test_inspect_reads_what_is_written_for_it(tmp_path: Path) -> None:
    """With its own package, and gets the figures that it had got itself."""
    pytest.importorskip("inspect_ai", reason="inspect_ai's log is tried where it is installed")
    log, scorer = import_module("inspect_ai.log"), import_module("inspect_ai.scorer")
    evaluation = scored([True, None, False, True, True, False], repeats=2, clusters=2)
    for name in ("log.eval", "log.json"):
        write_inspect_log(evaluation, tmp_path / name, model="sim/none")
        read = log.read_eval_log(str(tmp_path / name))
        assert (read.status, read.eval.task, read.eval.model) == ("success", "desk", "sim/none")
        assert (read.results.total_samples, read.results.completed_samples) == (6, 5)
        assert read.results.scores[0].metrics["mean"].value == evaluation.mean()
        samples = {(one.id, one.epoch): one for one in read.samples}
        assert samples[0, 1].scores["exact"].value is True
        assert samples[0, 1].output.completion == "yes"
        assert samples[0, 2].error.message == "ValueError: no"
        assert samples[0, 2].scores == {}
        assert samples[1, 1].metadata == {"group": "odd", "cluster": 1}
    plain = scored([True] * 8 + [False] * 2, clusters=5)
    theirs = [
        scorer.SampleScore(
            score=scorer.Score(value=float(one.scores["exact"])),
            sample_metadata={"cluster": one.sample.cluster},
        )
        for one in plain.scores
    ]
    assert scorer.mean()(theirs) == plain.mean()
    numbers = scored([1.0] * 8 + [0.0] * 2, clusters=5)
    interval = scorer.ci(cluster="cluster")(theirs)
    assert numbers.interval() == pytest.approx((interval["lower"], interval["upper"]))
    interval = scorer.ci_wilson()(theirs)
    unclustered = scored([True] * 8 + [False] * 2)
    assert unclustered.interval() == pytest.approx((interval["lower"], interval["upper"]))


def test_a_file_of_scores_can_be_compared_with(tmp_path: Path) -> None:
    first, second = scored([True, False, True]), scored([True, True, True])
    first.write(tmp_path / "first.jsonl")
    assert str(read_evaluation(tmp_path / "first.jsonl").compare(second)) == str(
        first.compare(second)
    )


def test_zeros_and_ones_are_right_or_wrong_and_equal_numbers_tell_no_spread() -> None:
    """All right as floats was 1.000 to 1.000: certainty, from eight samples."""

    def of(value: float) -> Evaluation:
        return scored([value] * 8)

    assert of(1.0).interval() == of(True).interval()
    assert of(1.0).interval()[0] < 0.7
    assert " to " not in f"{of(0.5)}{of(0.5).mean_score()}"
