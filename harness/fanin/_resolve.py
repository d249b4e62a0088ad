"""Let a judge decide between answers to the same question, and keep all of them if it can't."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, Final, Generic, Literal, TypeVar

import attrs

from harness._content import same_content
from harness._outside_trio import refuse_outside_trio
from harness.fanin._groups import grouped, in_input_order
from harness.fanout import Result, fan_out

T = TypeVar("T")


class Undecided(enum.Enum):
    """The type of `UNDECIDED`."""

    UNDECIDED = "UNDECIDED"

    def __repr__(self) -> str:
        return self.value


UNDECIDED: Final = Undecided.UNDECIDED
"""What a judge returns when the answers don't allow a decision."""


@attrs.frozen
class Resolution(Generic[T]):
    """What a judge decided about the answers to one question."""

    key: Any
    """What the answers are about."""

    value: Any
    """What the judge decided; None if it didn't."""

    answers: tuple[Result[T], ...]
    """All the answers, in input order: the evidence, with the run of each."""

    decided: bool
    """Whether the judge decided."""

    @property
    def conflict(self) -> bool:
        """Whether the answers differ in content, decided or not."""
        return not same_content(answer.value for answer in self.answers)


async def resolve(
    results: Iterable[Result[T]],
    *,
    key: Callable[[T], Any] | Literal["key"],
    judge: Callable[..., Any],
) -> list[Resolution[T]]:
    """Group answers by what they are about, and let a judge decide each group.

    The judge is asked about every group, even one with a single answer or equal ones: whether one
    source is enough is its decision. Groups are judged concurrently, each in a run of its own. If
    the judge's decisions don't depend on order, the answer is the same in whatever order the
    results arrived or are given. Items without a value are left out; `coverage` reports them.

    Args:
      results: The results of a fan-out.
      key: A function that returns what a value is about; or ``"key"`` for the results' own keys, if
        several items had the same.
      judge: ``judge(key, answers)``, plain or async, gets the `Result` of each answer, in input
        order, and returns a value or `UNDECIDED`. Or an agent, or anything async that takes one
        argument: it is asked in words, and its reply (or the reply's ``output``) is the value, or
        `UNDECIDED` if that word is all it says.

    Returns:
      A `Resolution` per group, in the order of the first answers.

    Raises:
      FanOutError: if the judge fails, with its error.
      TypeError: if an argument has the wrong type, or a key can't be hashed.

    Checkpoint: always.

    Cancellation: judges at work are cancelled, and have ended before the cancel goes on.
    """
    ordered = [one for one in in_input_order("resolve()", results) if one.ok and not one.dropped]
    if key == "key":
        groups = grouped("resolve(key=...)", ordered, lambda one: one.key)
    elif callable(key):
        about = key
        groups = grouped("resolve(key=...)", ordered, lambda one: about(one.value))
    else:
        raise TypeError(
            'resolve(key=...) takes a function of a value, or "key" for the results\' keys, '
            f"not {key!r}"
        )
    asks = _asking(judge)
    refuse_outside_trio("resolve() was called")

    async def decide(group: tuple[Hashable, list[Result[T]]]) -> Resolution[T]:
        name, answers = group
        verdict = asks(name, tuple(answers))
        if isinstance(verdict, Awaitable):
            verdict = await verdict
        decided = verdict is not UNDECIDED
        return Resolution(name, verdict if decided else None, tuple(answers), decided)

    judged = await fan_out(decide, groups.items(), key=lambda group: group[0], name="resolve")
    return judged.values()


def _asking(judge: Any) -> Callable[[Hashable, tuple[Result[Any], ...]], Any]:
    """Return the judge as a function of key and answers.

    Raises:
      TypeError: if it can be called with neither two arguments nor one.
    """
    if not callable(judge) or isinstance(judge, type):
        raise TypeError(
            "resolve(judge=...) takes a function of the key and the answers, or an agent, not "
            f"{judge!r}; write judge=lambda key, answers: ..."
        )
    if _takes(judge, 2):
        function: Callable[[Hashable, tuple[Result[Any], ...]], Any] = judge
        return function
    if not _takes(judge, 1):
        raise TypeError(
            f"resolve() calls the judge with the key and the answers, which {judge!r} doesn't "
            "allow; define it as `def judge(key, answers)`"
        )

    async def ask(key: Hashable, answers: tuple[Result[Any], ...]) -> Any:
        reply = judge(_in_words(key, answers))
        if isinstance(reply, Awaitable):
            reply = await reply
        said = getattr(reply, "output", reply)
        if isinstance(said, str) and said.strip().strip(".").upper() == UNDECIDED.value:
            return UNDECIDED
        return said

    return ask


def _takes(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # Some callables written in C don't reveal their parameters.
        return count == 2
    return True


def _in_words(key: Hashable, answers: tuple[Result[Any], ...]) -> str:
    """Return the question for an agent."""
    lines = [f"{number}. {one.value} (from {one.key})" for number, one in enumerate(answers, 1)]
    return "\n".join(
        [
            f"Several sources answered about: {key}",
            *lines,
            "Reply with the answer that they support best, and nothing else. If they don't allow "
            f"a decision, reply with the one word {UNDECIDED.value}.",
        ]
    )
