"""A judge: an agent that is asked whether an answer is right, or how good it is."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from harness.agents import Reply
from harness.evals._sample import Sample
from harness.evals._scorers import last_number

RIGHT_OR_WRONG = (
    "Reply with the one word CORRECT if the answer agrees with the reference in substance, "
    "whatever its wording, and with INCORRECT if it doesn't."
)


def output_of(value: Any) -> Any:
    """Return what an agent's reply says, and any other value as it is."""
    return value.output if isinstance(value, Reply) else value


@attrs.frozen(kw_only=True)
class AgentJudge:
    """A scorer that asks an agent. Made by `judge`."""

    name: str
    """What the scorer is called."""

    ask: Callable[[str], Awaitable[Any]]
    """The agent, or whatever is asked in its place."""

    question: str
    """What it is asked to say about each answer."""

    scale: tuple[float, float] | None
    """The lowest and the highest mark; None: it says whether the answer is right."""

    def batch_settings(self) -> dict[str, Any]:
        """Return what a journal compares, so that another question isn't taken for this one."""
        of_agent = getattr(getattr(self.ask, "__self__", self.ask), "batch_settings", dict)
        return {**of_agent(), "question": self.question, "scale": self.scale and list(self.scale)}

    async def __call__(self, sample: Sample, output: Any) -> bool | float:
        """Return what the judge says: a bool, or with a scale a number from 0 to 1.

        Raises:
          ValueError: if what it says is no verdict.

        Checkpoint: as the agent does.

        Cancellation: the agent is cancelled.
        """
        parts = [f"Question:\n{sample.input}"]
        if sample.expected is not None:
            parts.append(f"Reference:\n{sample.expected}")
        parts += [f"Answer:\n{output}", self.question]
        said = output_of(await self.ask("\n\n".join(parts)))
        if self.scale is None:
            return _verdict(said)
        low, high = self.scale
        mark = last_number(said)
        if mark is None or not low <= mark <= high:
            raise ValueError(f"the judge said {said!r}, and not a number from {low:g} to {high:g}")
        return (mark - low) / (high - low)


def _verdict(said: Any) -> bool:
    if isinstance(said, bool):
        return said
    # The last one counts: a judge that thinks aloud decides at the end.
    found = re.findall(r"\b(in)?correct\b", str(said), re.IGNORECASE)
    if not found:
        raise ValueError(f"the judge said {said!r}, and neither CORRECT nor INCORRECT")
    return not found[-1]


def judge(
    agent: Callable[[str], Awaitable[Any]],
    *,
    question: str | None = None,
    scale: tuple[float, float] | None = None,
    name: str = "judge",
) -> AgentJudge:
    """Make a scorer of an agent, which is asked about each answer in words.

    Its verdict is the bool that it returns, or the last CORRECT or INCORRECT in its reply; with a
    scale, the last number. What is no verdict is no score: it is counted, and named.

    Args:
      agent: An agent, or any async function of a text.
      question: What it is asked to say, after the question, the reference and the answer; None: to
        reply with CORRECT or INCORRECT, or with a number of the scale.
      scale: The lowest and the highest mark. The score is from 0 for the lowest to 1.
      name: What the scorer is called.

    Raises:
      TypeError: if ``agent`` can't be called.
      ValueError: if the scale isn't one.
    """
    if not callable(agent) or isinstance(agent, type):
        raise TypeError(f"judge() takes an agent or an async function of a text, not {agent!r}")
    if scale is not None and not scale[0] < scale[1]:
        raise ValueError(f"judge(scale=...) takes the lowest and the highest mark, not {scale!r}")
    if question is None:
        question = RIGHT_OR_WRONG
        if scale is not None:
            question = (
                f"Reply with one number from {scale[0]:g} (useless) to {scale[1]:g} (as good as "
                "the reference), and nothing else."
            )
    return AgentJudge(name=name, ask=agent, question=question, scale=scale)
