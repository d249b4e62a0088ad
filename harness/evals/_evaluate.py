"""Run a function on samples and score its outputs: a thin layer on `harness.fan_out`.

The outputs come from one fan-out, whose items are the calls. Then each scorer that asks somebody
has a fan-out of its own, and plain scorers are just called. So a judge that fails doesn't have the
agent called again, and with a journal another judge, or a new plain scorer, doesn't either.

Nothing here depends on which call ends first: scores are in the order of the samples.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import trio

from harness._arguments import check_count, says_where_options_are
from harness._outside_trio import refuse_outside_trio
from harness._root_errors import roots_in_words
from harness.evals._evaluation import Evaluation
from harness.evals._judge import output_of
from harness.evals._sample import Sample, as_samples
from harness.evals._score import SampleScore, ScoreValue
from harness.evals._scorers import Scorer, checked_score, is_async, named_scorers
from harness.evals._sweep import Choices, Sweep, check_takes, named_choices
from harness.fanout import Limit, Result, fan_out
from harness.fanout._plan import ELSEWHERE
from harness.policies import Attempt, BestEffort, JoinPolicy
from harness.runs._functions import check_callable, name_of

if TYPE_CHECKING:
    from harness.journal import Journal

_BEST_EFFORT = BestEffort()
_ONE_ATTEMPT = Attempt()
_PLAIN_PER_CHECKPOINT = 100

Scorers: TypeAlias = Mapping[str, Scorer] | Iterable[Scorer | str]


@attrs.frozen(kw_only=True)
class _Options:
    """How calls are made; checked by the fan-outs that get them."""

    limit: int | Limit
    each: Attempt
    judging: Attempt
    policy: JoinPolicy
    journal: Journal | None
    failed: float | None


@attrs.frozen
class _Call:
    """One call, as far as it decides the output: what a journal compares."""

    chosen: tuple[str, ...]
    """The names of what a sweep has chosen."""

    id: str | int
    input: Any
    repeat: int

    @property
    def key(self) -> str:
        """What names it in the journal. Names of models have slashes of their own."""
        chosen = (one.replace("\\", "\\\\").replace("/", "\\/") for one in self.chosen)
        return "/".join((*chosen, f"{self.id}#{self.repeat + 1}"))


@attrs.frozen
class _Judging:
    """One output to be scored, as far as it decides the score."""

    key: str
    input: Any
    expected: Any
    output: Any


@says_where_options_are(ELSEWHERE)
async def evaluate(
    fn: Callable[[Any], Awaitable[Any]],
    samples: Iterable[Sample | Mapping[str, Any]],
    *,
    scorers: Scorers,
    repeats: int = 1,
    limit: int | Limit = 100,
    each: Attempt = _ONE_ATTEMPT,
    judging: Attempt = _ONE_ATTEMPT,
    policy: JoinPolicy = _BEST_EFFORT,
    journal: Journal | None = None,
    failed: float | None = 0.0,
    name: str | None = None,
) -> Evaluation:
    """Call ``fn`` with the input of each sample, many at once, and score what it returns.

    Args:
      fn: An async function of a sample's input, or an agent's ``run``; an agent's output is scored,
        not its reply. Each call is a run of its own, and gets its own copy of the input.
      samples: Each a `Sample`, or a dict with the same names; see `read_samples` for files.
      scorers: Each called as ``scorer(sample, output)``, plain or async, and returning a bool or a
        number; or the name of a plain one: ``"exact"``, ``"contains"``, ``"number"``, ``"choice"``,
        ``"fields"``. A mapping gives them names.
      repeats: How often each sample is asked.
      limit: Calls in flight at most; and as many of each async scorer.
      each: What happens to one call: timeout, retries, limiter.
      judging: What happens to one call of an async scorer.
      policy: What a failed call does to the others; by default, nothing.
      journal: Records outputs, and the scores of async scorers, so that a later call picks up where
        this one ended, and pays for nothing twice.
      failed: What a call that failed counts as; None: it is left out of the means.
      name: The evaluation's name, and that of its batch in the journal; by default the function's.

    Returns:
      The scores, in the order of the samples, whatever ended first.

    Raises:
      FanOutError: if the policy is broken.
      TypeError: if an argument has the wrong type.
      ValueError: if there are no samples or scorers, two have the same name, or a number is out of
        range.
      JournalError: as for `harness.fan_out`.
      RuntimeError: outside trio.

    Checkpoint: always.

    Cancellation: calls in flight are cancelled, and have ended before the cancel goes on. What the
    journal has is kept.
    """
    check_callable("evaluate()", fn)
    refuse_outside_trio("evaluate() was called")
    options = _Options(
        limit=limit, each=each, judging=judging, policy=policy, journal=journal, failed=failed
    )
    name = name_of(fn) if name is None else name
    found = await _evaluated(fn, {(): {}}, samples, scorers, repeats, name, options)
    return found[()]


@says_where_options_are(ELSEWHERE)
async def sweep(
    fn: Callable[..., Awaitable[Any]],
    samples: Iterable[Sample | Mapping[str, Any]],
    *,
    over: Mapping[str, Choices],
    scorers: Scorers,
    repeats: int = 1,
    limit: int | Limit = 100,
    each: Attempt = _ONE_ATTEMPT,
    judging: Attempt = _ONE_ATTEMPT,
    policy: JoinPolicy = _BEST_EFFORT,
    journal: Journal | None = None,
    failed: float | None = 0.0,
    name: str | None = None,
) -> Sweep:
    """Evaluate ``fn`` with every combination of choices, such as models and prompts, at once.

    All calls are one fan-out, so one limit bounds them, and one journal resumes them; adding a
    model calls that model only.

    Args:
      fn: An async function of a sample's input that takes a keyword argument for each name in
        ``over``, as in ``fn(input, model=..., prompt=...)``.
      samples: As for `evaluate`.
      over: What there is to choose, by the name of the argument: texts and numbers, or a mapping
        from names to values of any kind.
      scorers: As for `evaluate`; so are all other arguments.
      repeats: How often each sample is asked, of each combination.
      limit: Calls in flight at most, over all combinations.
      each: What happens to one call.
      judging: What happens to one call of an async scorer.
      policy: What a failed call does to the others.
      journal: Records outputs and judgements. Name a choice anew if its value has changed: it is
        known again by its name.
      failed: What a call that failed counts as; None: it is left out of the means.
      name: The sweep's name.

    Returns:
      An evaluation of each combination.

    Raises:
      ValueError: as for `evaluate`; or if there is nothing to choose from, or two choices have the
        same name.
      TypeError: as for `evaluate`; if ``fn`` doesn't take the arguments; or if a choice
        that is neither text nor number has no name.
      FanOutError, JournalError, RuntimeError: as for `evaluate`.

    Checkpoint: always.

    Cancellation: as for `evaluate`.
    """
    check_callable("sweep()", fn)
    refuse_outside_trio("sweep() was called")
    named = {argument: named_choices(argument, values) for argument, values in over.items()}
    cells = {
        tuple(chosen for chosen, _ in cell): {
            argument: value for argument, (_, value) in zip(named, cell, strict=True)
        }
        for cell in itertools.product(*(values.items() for values in named.values()))
    }
    if not cells or not over:
        raise ValueError(
            f"sweep(over=...) has nothing to choose from in {dict(over)!r}; give each argument at "
            "least one value, as in over={'model': ['small', 'large']}"
        )
    check_takes(fn, named)
    options = _Options(
        limit=limit, each=each, judging=judging, policy=policy, journal=journal, failed=failed
    )
    name = name_of(fn) if name is None else name
    found = await _evaluated(fn, cells, samples, scorers, repeats, name, options)
    return Sweep(name, tuple(named), found)


async def _evaluated(
    fn: Callable[..., Awaitable[Any]],
    cells: Mapping[tuple[str, ...], Mapping[str, Any]],
    samples: Iterable[Sample | Mapping[str, Any]],
    scorers: Scorers,
    repeats: int,
    name: str,
    options: _Options,
) -> dict[tuple[str, ...], Evaluation]:
    asked = as_samples(samples)
    by_name = named_scorers(scorers)
    check_count("repeats=", repeats, advice="1 asks each sample once")
    checked_score(options.failed, what="failed=")
    by_key = {
        (cell, sample.id, repeat): sample
        for cell in cells
        for sample in asked
        for repeat in range(repeats)
    }
    calls = [_Call(cell, id, sample.input, repeat) for (cell, id, repeat), sample in by_key.items()]

    # Not async: of a function that returns nothing to be awaited, the fan-out says so.
    def call(one: _Call) -> Awaitable[Any]:
        return fn(_own_copy(one.input), **cells[one.chosen])

    call.__qualname__ = name

    results = await fan_out(
        call,
        calls,
        policy=options.policy,
        limit=options.limit,
        each=options.each,
        key=lambda one: one.key,
        journal=_identified(options.journal, fn),
        name=name,
    )
    pairs = list(zip(by_key.values(), results, strict=True))
    given: list[dict[str, ScoreValue]] = [{} for _ in pairs]
    unscored: list[dict[str, str]] = [{} for _ in pairs]
    for scorer_name, scorer in by_name.items():
        if is_async(scorer):
            outcomes = await _asked_scores(scorer, pairs, f"{name}: {scorer_name}", options)
        else:
            outcomes = await _plain_scores(scorer, pairs)
        for index, outcome in outcomes.items():
            if isinstance(outcome, str):
                unscored[index][scorer_name] = outcome
            else:
                given[index][scorer_name] = outcome
    scores: dict[tuple[str, ...], list[SampleScore]] = {cell: [] for cell in cells}
    for (sample, result), values, reasons in zip(pairs, given, unscored, strict=True):
        scores[result.item.chosen].append(
            SampleScore(
                sample=sample,
                repeat=result.item.repeat,
                status=result.status,
                output=output_of(result.value) if result.ok else None,
                error=None if result.error is None else roots_in_words(result.error),
                scores=values,
                unscored=reasons,
                seconds=result.seconds,
            )
        )
    return {
        cell: Evaluation("/".join(cell) or name, tuple(of), tuple(by_name), options.failed)
        for cell, of in scores.items()
    }


async def _plain_scores(
    scorer: Scorer, pairs: list[tuple[Sample, Result[Any]]]
) -> dict[int, ScoreValue | str]:
    """Return by the place of each output its score, or why there is none."""
    found: dict[int, ScoreValue | str] = {}
    for index, (sample, result) in enumerate(pairs):
        if index % _PLAIN_PER_CHECKPOINT == 0:
            await trio.lowlevel.checkpoint()
        if result.ok:
            try:
                found[index] = _or_reason(checked_score(scorer(sample, output_of(result.value))))
            except Exception as error:
                found[index] = roots_in_words(error)
    return found


async def _asked_scores(
    scorer: Scorer, pairs: list[tuple[Sample, Result[Any]]], name: str, options: _Options
) -> dict[int, ScoreValue | str]:
    """Return the same of an async scorer, asked about many outputs at once."""
    samples: dict[str, tuple[int, Sample]] = {}
    items: list[_Judging] = []
    for index, (sample, result) in enumerate(pairs):
        if result.ok:
            output = output_of(result.value)
            items.append(_Judging(result.key, sample.input, sample.expected, output))
            samples[result.key] = index, sample

    async def score(one: _Judging) -> Any:
        return checked_score(await scorer(samples[one.key][1], one.output))

    results = await fan_out(
        score,
        items,
        policy=_BEST_EFFORT,
        limit=options.limit,
        each=options.judging,
        key=lambda one: one.key,
        journal=_identified(options.journal, scorer),
        name=name,
    )
    return {
        samples[one.key][0]: _or_reason(one.value)
        if one.error is None
        else roots_in_words(one.error)
        for one in results
    }


def _or_reason(score: ScoreValue | None) -> ScoreValue | str:
    return "the scorer gave no score" if score is None else score


def _identified(journal: Journal | None, function: Callable[..., Any]) -> Any:
    """Return the journal for a batch that is known by the user's function, not by our wrapper."""
    if journal is None:
        return None
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    of: Any = inner if hasattr(inner, "__qualname__") else type(inner)
    return journal.identified(
        target=f"{of.__module__}.{of.__qualname__}", settings={}, function=function
    )


def _own_copy(value: Any) -> Any:
    """Return a copy, so that a call that changes its input changes no other's."""
    try:
        return copy.deepcopy(value)
    except Exception:  # What can't be copied, such as a connection, is shared on purpose.
        return value
