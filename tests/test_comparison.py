"""The comparison with other libraries: its programs, its record and its page say the same."""

import runpy
import time
from importlib.util import find_spec
from typing import Any

import pytest

from benchmarks.comparison import _page, _record
from tests.scale import PATIENCE_SECONDS

ALL = [(feature, place) for feature in _record.FEATURES for place in _record.programs(feature)]
IN_PROCESS = ("here", "on_trio", "on_anyio", "on_aiometer", "on_asyncio")
"""Those that start in no time. The others import for seconds; see the marker `full`."""
MARKS: dict[str, Any] = {
    **dict.fromkeys(("limits", "schedules", "seeing", "source"), pytest.mark.slow),
    "approval": pytest.mark.slow,
    "resume": pytest.mark.long,  # It starts two processes.
    "workers": [
        pytest.mark.long,
        pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
    ],
}

HERE = [pytest.param(*each, marks=MARKS.get(each[0], [])) for each in ALL if each[1] in IN_PROCESS]
ELSEWHERE = [each for each in ALL if each[1] not in IN_PROCESS]


def needs(place: str) -> None:
    """Skip the test where the library of this place isn't installed."""
    name, module, _ = _record.PLACES[place]
    if find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{name} isn't installed here; `make compare` does that")


def agrees(printed: _record.Printed, feature: str, place: str) -> bool:
    """Return whether a program printed what is recorded, but for what it measures."""
    return _record.fixed(printed) == _record.fixed(_record.read()["programs"][feature][place])


def test_the_page_has_the_tables_of_the_record() -> None:
    page = _page.PAGE.read_text(encoding="utf-8")
    assert _page.made(page, _record.read()) == page, "run: python -m benchmarks.comparison page"


def test_every_program_is_on_record_and_its_table_on_the_page() -> None:
    recorded = _record.read()["programs"]
    assert [(feature, place) for feature in recorded for place in recorded[feature]] == ALL
    tables = [found["name"] for found in _page.TABLE.finditer(_page.PAGE.read_text("utf-8"))]
    assert sorted(tables) == sorted([*_record.FEATURES, "figures", "versions"])


@pytest.mark.parametrize(("feature", "place"), HERE)
def test_a_program_prints_what_the_page_says(
    feature: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(place)
    clock = time.monotonic
    runpy.run_module(
        f"benchmarks.comparison.{feature}.{place}", run_name="__main__", alter_sys=True
    )
    assert time.monotonic is clock, "the program left its own clock behind"
    assert agrees(_record.parsed(capsys.readouterr().out), feature, place)


@pytest.mark.full
@pytest.mark.parametrize(("feature", "place"), ELSEWHERE)
def test_a_program_of_a_library_that_is_slow_to_start_prints_what_the_page_says(
    feature: str, place: str
) -> None:
    needs(place)
    try:
        printed = _record.run(feature, place, timeout=PATIENCE_SECONDS)
    except RuntimeError as error:
        if "ModuleNotFoundError" in str(error):  # One of the library's own extras.
            pytest.skip(f"{feature} needs more of it than is installed; `make compare` does that")
        raise
    assert agrees(printed, feature, place)


def test_a_measured_value_is_told_from_a_fixed_one() -> None:
    printed = _record.parsed("calls: 3\n~ share of the limit: 97%\nno value\n")
    assert printed == {"calls": "3", "share of the limit": "≈ 97%"}
    assert _record.fixed(printed) == {"calls": "3", "share of the limit": "≈ "}
