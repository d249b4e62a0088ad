"""The example of a research question in five sources."""

import itertools

import pytest
import trio
from trio.testing import MockClock

import five_sources
from tests.examples.headers import promised_output


def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    """Five searches of 1.2 s and a judge are answered in 1.4 s at most; the clock is exact."""
    clock = MockClock(autojump_threshold=0)

    async def main() -> float:
        began_at = trio.current_time()
        await five_sources.main()
        return trio.current_time() - began_at

    wall_seconds = trio.run(main, clock=clock)
    assert wall_seconds == five_sources.SEARCH_SECONDS + five_sources.JUDGE_SECONDS
    assert wall_seconds <= 1.4
    assert capsys.readouterr().out.splitlines() == promised_output(five_sources)


@pytest.mark.slow
def test_it_says_the_same_in_whatever_order_the_sources_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 120 orders; only the time differs."""
    search = five_sources.search
    delays: dict[str, float] = {}

    async def in_order(source: str) -> five_sources.Finding:
        await trio.sleep(delays[source])
        return await search(source)

    monkeypatch.setattr(five_sources, "search", in_order)
    said = set()
    for order in itertools.permutations(five_sources.SOURCES):
        delays.update((source, place / 1000) for place, source in enumerate(order))
        trio.run(five_sources.main, clock=MockClock(autojump_threshold=0))
        said.add(tuple(capsys.readouterr().out.splitlines()[1:]))
    assert said == {tuple(promised_output(five_sources)[1:])}
