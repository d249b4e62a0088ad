"""Ask five sources one question at once, and say how far the answer can be trusted.

Shows what comes after a fan-out: a source that failed is named, sources that agree
become one finding, and where they contradict each other a judge decides. The
evidence is kept for anyone who doubts it.

Run:     python examples/five_sources.py
Prints:  answered in 1.3 s; one source after another takes 6.0 s
         4 of 5 ok; missing: 'crm' failed: OSError: no connection
         found: "5 days" in handbook, faq
         found: "none" in terms
         found: "10 days" in forum
         refund time: 5 days (3 answers, which differ)
         refund fee: none
"""

import json
from collections import Counter
from collections.abc import Sequence

import attrs
import trio
from trio.testing import MockClock

import harness
from harness.fanin import UNDECIDED, Undecided, coverage, merge, resolve

SEARCH_SECONDS = 1.2
JUDGE_SECONDS = 0.1
SOURCES = ("handbook", "terms", "faq", "forum", "crm")
PAGES = {
    "handbook": '{"about": "refund time", "says": "5 days"}',
    "terms": '{"about": "refund fee", "says": "none"}',
    "faq": '{"says": "5 days", "about": "refund time"}',
    "forum": '{"about": "refund time", "says": "10 days"}',
}


@attrs.frozen
class Finding:
    """What a source says about something."""

    about: str
    says: str


async def search(source: str) -> Finding:
    """Ask one source; the customer database is down today."""
    await trio.sleep(SEARCH_SECONDS)
    if source not in PAGES:
        raise OSError("no connection")
    return Finding(**json.loads(PAGES[source]))


async def majority(about: str, answers: Sequence[harness.Result[Finding]]) -> str | Undecided:
    """Go with what most sources say; leave a tie to people."""
    await trio.sleep(JUDGE_SECONDS)  # Where a model would weigh the evidence.
    counted = Counter(answer.value.says for answer in answers).most_common(2)
    if len(counted) == 2 and counted[0][1] == counted[1][1]:
        return UNDECIDED
    return counted[0][0]


async def main() -> None:
    """Search, compare, decide, and report."""
    began_at = trio.current_time()
    results = await harness.fan_out(
        search,
        SOURCES,
        policy=harness.BestEffort(),
        each=harness.Attempt(timeout=5),
        key=str,
        name="research",
    )
    findings = merge(results)
    answers = await resolve(results, key=lambda finding: finding.about, judge=majority)
    wall_seconds = trio.current_time() - began_at

    one_by_one = results.summary().run_seconds
    print(f"answered in {wall_seconds:.1f} s; one source after another takes {one_by_one:.1f} s")
    print(coverage(results))
    for finding in sorted(findings, key=lambda one: -len(one.sources)):
        sources = ", ".join(str(source.key) for source in finding.sources)
        print(f'found: "{finding.value.says}" in {sources}')
    for answer in answers:
        verdict = answer.value if answer.decided else "undecided"
        evidence = f" ({len(answer.answers)} answers, which differ)" if answer.conflict else ""
        print(f"{answer.key}: {verdict}{evidence}")


if __name__ == "__main__":
    # A clock that skips the waiting: only the program sees the seconds.
    trio.run(main, clock=MockClock(autojump_threshold=0))
