"""Say which tool calls wait for a person, and note what the person answers.

A run that waits is kept as plain JSON, by a key that is the same in every session, so that a
journal can hold it and knows nothing of agents. A run that waits for one below it is kept beside
that one.

A call is known by a digest of its run, its place, its tool and its arguments. An answer is to a
digest, so it can't apply to a call with other arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import attrs

Answer: TypeAlias = Literal[True] | str
"""True for yes; the reason for no, which may be empty."""

Parked: TypeAlias = dict[str, dict[str, Any]]
"""What is kept of runs that wait, by their keys. Of each, ``waiting`` and ``answers`` matter here;
the rest belongs to whoever goes on with it."""


@attrs.frozen
class WaitingCall:
    """A call of a tool that waits for a person's approval."""

    id: str
    """A digest of the run, the tool and the arguments: what an answer is given to."""

    tool: str
    """The tool's name."""

    arguments: Mapping[str, Any]
    """The arguments that the model gave. Don't change them."""

    def __str__(self) -> str:
        return f"{self.id} {self.tool}({json.dumps(self.arguments, ensure_ascii=False)})"


@attrs.define(eq=False)
class ParkedRuns:
    """What is known of the runs of one item, in one attempt at it."""

    states: Parked
    """What an earlier session kept of those that waited; they may go on now."""

    ended: dict[str, Callable[[], dict[str, Any]]] = attrs.field(
        factory=dict[str, Callable[[], dict[str, Any]]], init=False
    )
    """For each run that has its answer: returns that answer in JSON form. If another run of the
    item waits, a later session takes the answer from there."""

    numbers: dict[str, int] = attrs.field(factory=dict[str, int], init=False)

    def number(self, words: str) -> int:
        """Return how many runs of the same words began before, in this attempt."""
        number = self.numbers.get(words, 0)
        self.numbers[words] = number + 1
        return number

    def kept_with(self, waiting: Parked) -> Parked:
        """Return what to keep of the item: the runs that wait now, and all that came before.

        Args:
          waiting: The runs that wait now.
        """
        ended: Parked = {}
        for key, answer in self.ended.items():
            try:
                ended[key] = {"waiting": [], "answers": {}, "reply": answer()}
            except TypeError:  # It has no JSON form, and will be asked for again.
                continue
        return {**self.states, **ended, **waiting}


parked_runs: ContextVar[ParkedRuns | None] = ContextVar("harness.parked_runs", default=None)
"""What was kept of the item that this code is in; None outside items of a journal."""


def digest_of_call(run_key: str, place: int, tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the digest that an answer is given to.

    Args:
      run_key: The key of the run that wants to make the call.
      place: Which call of its turn it is.
      tool: The tool's name.
      arguments: What the model gave.
    """
    text = json.dumps([run_key, place, tool, arguments], sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def waiting_in(states: Parked) -> list[WaitingCall]:
    """Return the calls that nobody has answered yet."""
    return [
        WaitingCall(call["id"], call["tool"], call["arguments"])
        for state in states.values()
        for call in state["waiting"]
        if call["id"] not in state["answers"]
    ]


def has_answers(states: Parked) -> bool:
    """Return whether somebody has answered any call."""
    return any(state["answers"] for state in states.values())


def answered(states: Parked, ids: Iterable[str], answer: Answer) -> Parked:
    """Return the same runs with an answer to some of the calls that wait.

    Args:
      states: The runs.
      ids: Digests of calls; none for all that wait.
      answer: The answer.

    Raises:
      ValueError: if no call of such a digest waits.
    """
    waiting = [call.id for call in waiting_in(states)]
    chosen = set(ids) or set(waiting)
    unknown = sorted(chosen.difference(waiting))
    if unknown or not waiting:
        what = f"no call {', '.join(unknown)} waits" if unknown else "no call waits"
        raise ValueError(f"{what} for approval; those that do: {', '.join(waiting) or 'none'}")
    return {
        key: {
            **state,
            "answers": {
                **state["answers"],
                **{one["id"]: answer for one in state["waiting"] if one["id"] in chosen},
            },
        }
        for key, state in states.items()
    }
