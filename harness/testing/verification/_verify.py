"""Run a sample of a finished batch again, each item alone, and compare.

An item that ends as recorded is run once. One that doesn't is run again, since a model may answer
differently each time: only what ends in the same new way each time counts as differing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs
import trio

from harness._arguments import check_count, check_fraction
from harness.errors import RunTimedOut
from harness.fanout import Result, fan_out
from harness.policies import Attempt, BestEffort
from harness.testing._outcomes import Comparison, Equal, comparable
from harness.testing.schedules._run_schedule import refuse_inside_a_loop
from harness.testing.verification._alone import Keepers, open_keepers
from harness.testing.verification._checks import (
    Checked,
    Difference,
    Raised,
    Recorded,
    Verdict,
    Verification,
    words_of,
)
from harness.testing.verification._differences import differences
from harness.testing.verification._sample import Drawn, SampleDraw

_ONE_ATTEMPT = Attempt()


def verify(
    fn: Callable[[Any], Awaitable[Any]],
    recorded: Iterable[Result[Any] | Recorded],
    *,
    sample: int = 300,
    seed: int = 0,
    stratify: bool = False,
    equal: Equal | None = None,
    repeats: int = 2,
    limit: int = 1,
    each: Attempt = _ONE_ATTEMPT,
    confidence: float = 0.95,
) -> Verification:
    """Run a sample of finished items again, each alone, and compare with what is recorded.

    Each item has a process of its own, forked from this one, in which all attempts at it are made.
    So call it where the batch hasn't run: what a batch left behind in this process, every item
    would find. What is outside of processes, such as files and databases, is shared as ever, so
    verify only what may be done twice.

    Args:
      fn: The async function of the batch, or its agent.
      recorded: The results of a fan-out, or `Recorded` ones with their items.
      sample: How many to run again.
      seed: Another seed draws another sample; the same seed draws the same one.
      stratify: Whether failed items and others take part, each kind with its share; by default only
        those that are ok do.
      equal: Tells whether a recorded value and a new one are the same, for answers in words; by
        default their content has to be.
      repeats: How often an item that differs is run at most, to see whether it differs from itself.
      limit: How many processes run at once.
      each: What happens to one item: its timeout, retries and limits.
      confidence: How sure to be of what is said of the rest.

    Returns:
      What differs, and what that says of the rest.

    Raises:
      ValueError: if there is nothing to draw from, or a number is out of range.
      RuntimeError: inside trio, and on a system without fork.
      IncomparableError: if two values can't be compared.
    """
    refuse_inside_a_loop("verify")
    check_count("verify(sample=)", sample, advice="say how many items to run again")
    drawing = SampleDraw(sample, seed=seed, stratify=stratify)
    for one in recorded:
        drawing.add(one if isinstance(one, Recorded) else Recorded.of(one))
    drawn = drawing.draw()
    return verify_sample(
        fn, drawn, equal=equal, repeats=repeats, limit=limit, each=each, confidence=confidence
    )


def verify_sample(
    fn: Callable[[Any], Awaitable[Any]],
    drawn: Drawn,
    *,
    equal: Equal | None = None,
    repeats: int = 2,
    limit: int = 1,
    each: Attempt = _ONE_ATTEMPT,
    confidence: float = 0.95,
    showing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Verification:
    """Do what `verify` does, with a sample that is drawn already.

    Args:
      fn: As for `verify`; so is what follows.
      drawn: The sample.
      equal: See there.
      repeats: See there.
      limit: See there.
      each: See there.
      confidence: See there.
      showing: Makes a block around the calls, such as `harness.progress`. It is entered after all
        processes were forked, which it might disturb.

    Raises:
      ValueError: as for `verify`.
      RuntimeError: as for `verify`.
      IncomparableError: as for `verify`.
    """
    refuse_inside_a_loop("verify")
    check_count("verify(repeats=)", repeats, advice="2 tells what varies from what differs")
    check_count("verify(limit=)", limit, advice="1 runs one item at a time")
    check_fraction("verify(confidence=)", confidence, advice="0.95 is usual")
    if not drawn.recorded:
        other = ", ".join(f"{count:,} {status}" for status, count in drawn.left_out.items())
        raise ValueError(
            f"there is nothing to verify: no result is ok{f' ({other})' if other else ''}; "
            "stratify=True verifies failed ones too"
        )
    items = [one.item for one in drawn.recorded]
    with open_keepers(fn, items, count=min(limit, len(items))) as keepers:
        check = _Check(drawn, Comparison(equal), each, limit)
        with showing():
            checked = trio.run(check.run, keepers, repeats)
    return Verification(
        checked=checked,
        population=drawn.population,
        seed=drawn.seed,
        confidence=confidence,
        notes=tuple(_notes(drawn)),
    )


def _notes(drawn: Drawn) -> Iterable[str]:
    if drawn.left_out:
        counts = ", ".join(
            f"{count:,} {status.replace('_', ' ')}" for status, count in drawn.left_out.items()
        )
        yield f"not verified, because they are not ok: {counts}"
    if drawn.duplicates:
        yield (f"results with the key of an earlier one, which counts alone: {drawn.duplicates:,}")


@attrs.frozen(eq=False)
class _Check:
    """One verification in progress."""

    drawn: Drawn
    comparison: Comparison
    each: Attempt
    limit: int

    async def run(self, keepers: Keepers, repeats: int) -> tuple[Checked, ...]:
        """Run what is left to be run, at most so often."""
        recorded = self.drawn.recorded
        runs: list[list[Result[Any]]] = [[] for _ in recorded]
        left = list(range(len(recorded)))
        each = self.each
        if callable(tokens := each.tokens):
            each = attrs.evolve(each, tokens=lambda number: tokens(recorded[number].item))

        async def alone(number: int) -> Any:
            async with keepers.alone(number) as call:
                results = await fan_out(
                    call, [number], each=each, policy=BestEffort(), name="attempts"
                )
                return results[0].value

        for _ in range(repeats):
            results = await fan_out(
                alone,
                left,
                limit=self.limit,
                policy=BestEffort(),
                name="verify",
            )
            for result in results:
                runs[result.item].append(result)
            verdicts = {one: self._verdict(recorded[one], runs[one]) for one in left}
            left = [one for one in left if verdicts[one] in ("differs", "failed")]
            if not left:
                break
        return tuple(self._checked(one, of_it) for one, of_it in zip(recorded, runs, strict=True))

    def _verdict(self, recorded: Recorded, runs: list[Result[Any]]) -> Verdict:
        first = runs[0]
        if _status_of(first) == recorded.status and self._is_same(recorded, first):
            return "same"
        if not all(self._is_alike(first, other) for other in runs[1:]):
            return "varies"
        return "failed" if recorded.status == "ok" and first.status != "ok" else "differs"

    def _is_same(self, recorded: Recorded, run: Result[Any]) -> bool:
        if run.status != "ok":
            # The words of a timeout name the run, which is a new one.
            return recorded.status == "timed_out" or recorded.error == _words_of(run)
        return self._same_values(recorded.value, run.value)

    def _is_alike(self, one: Result[Any], other: Result[Any]) -> bool:
        if one.status != "ok" or other.status != "ok":
            timed_out = _status_of(one) == "timed_out" or _words_of(one) == _words_of(other)
            return _status_of(one) == _status_of(other) and timed_out
        return self._same_values(one.value, other.value)

    def _same_values(self, one: Any, other: Any) -> bool:
        if self.comparison.equal is not None:
            return self.comparison.same_values(one, other)
        return not differences(comparable(one), comparable(other))

    def _checked(self, recorded: Recorded, runs: list[Result[Any]]) -> Checked:
        verdict = self._verdict(recorded, runs)
        return Checked(
            key=recorded.key,
            status=recorded.status,
            verdict=verdict,
            differences=() if verdict == "same" else self._differences(recorded, runs[0]),
            runs=len(runs),
        )

    def _differences(self, recorded: Recorded, run: Result[Any]) -> tuple[Difference, ...]:
        if recorded.status == run.status == "ok":
            return differences(comparable(recorded.value), comparable(run.value))
        before = recorded.value if recorded.status == "ok" else Raised(recorded.error or "")
        alone = run.value if run.status == "ok" else Raised(_words_of(run) or "")
        return (Difference("", before, alone),)


def _status_of(run: Result[Any]) -> str:
    return "timed_out" if isinstance(run.error, RunTimedOut) else run.status


def _words_of(run: Result[Any]) -> str | None:
    return None if run.error is None else words_of(run.error)
