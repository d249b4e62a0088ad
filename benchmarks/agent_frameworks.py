"""What does the same agent run cost with other frameworks?

They run on asyncio, ours on trio; the model is scripted in each, and nothing leaves the process.
Kept apart from the budgets in `benchmarks.agents`, because the frameworks take seconds to import.

Run: python -m benchmarks agent_frameworks
"""

from collections.abc import Iterator

from benchmarks import _agent_peers
from benchmarks._measure import (
    Row,
    for_comparison,
    interleaved,
    not_installed,
    rounds_of,
    timed_in_asyncio,
)
from benchmarks.agents import SERIAL


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure the same run with other frameworks, on asyncio, where they are installed."""
    installed = _agent_peers.frameworks()
    for name in _agent_peers.NAMES:
        for case, with_tool in (("one call", False), ("a tool turn", True)):
            what = f"agent run, {case}: harness / {name}"
            if name not in installed:
                yield not_installed(what)
                continue
            once = installed[name](with_tool=with_tool)

            async def times(count: int, once: _agent_peers.RunOnce = once) -> None:
                for _ in range(count):
                    assert await once() == _agent_peers.ANSWER

            benches = {"harness": SERIAL[case], name: timed_in_asyncio(times)}
            samples = interleaved(
                benches, count=10 if quick else 100, rounds=rounds_of(9, quick=quick)
            )
            yield for_comparison(
                what,
                samples.ratio("harness", name),
                note=samples.note("harness", name, per="run"),
            )
