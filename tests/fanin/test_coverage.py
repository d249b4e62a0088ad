"""`coverage` says what is missing, by key and reason."""

import trio
from trio.testing import MockClock

import harness
from harness.errors import RunTimedOut
from harness.fanin import Coverage, coverage
from tests.fanin.made_results import arrivals, failed, ok
from tests.fanout.probes import Boom


def test_what_is_missing_stands_there_by_key_and_reason() -> None:
    results = [
        ok(0, 1, key="web"),
        failed(1, ValueError("no such page"), key="news"),
        ok(2, None, key="papers"),
        failed(3, RunTimedOut("late"), key="patents"),
    ]
    for order in arrivals(results):
        said = coverage(order)
        assert (said.total, said.ok, said.complete) == (4, 2, False)
        assert said.missing == (
            ("news", "failed: ValueError: no such page"),
            ("patents", "timed out: RunTimedOut: late"),
        )
        assert str(said) == (
            "2 of 4 ok; missing: 'news' failed: ValueError: no such page; "
            "'patents' timed out: RunTimedOut: late"
        )


def test_complete_results_miss_nothing() -> None:
    assert coverage([ok(0, 1)]) == Coverage(1, 1, ())
    assert coverage([ok(0, 1)]).complete
    assert str(coverage([])) == "0 of 0 ok"


def test_the_text_stays_short() -> None:
    said = coverage([failed(index, Boom("x" * 10_000)) for index in range(500)])
    assert len(said.missing) == 500
    assert "and 490 more" in str(said)
    assert len(str(said)) < 5_000


async def test_items_that_were_cut_or_never_started_are_missing_too(
    autojump_clock: MockClock,
) -> None:
    results = await harness.fan_out(
        trio.sleep, [1, 50, 1], limit=2, policy=harness.Quorum(1), key=lambda item: f"s{item}"
    )
    said = coverage(results)
    assert (said.total, said.ok) == (3, 1)
    assert [(key, reason.split(":")[0]) for key, reason in said.missing] == [
        ("s50", "cancelled"),
        ("s1", "skipped"),
    ]
