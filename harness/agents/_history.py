"""Shorten what a model is sent in a long run.

A history processor is a function from messages to messages, called before each request. What it
returns is sent, and is what it is given the next time, with what was said since. The reply, the
conversation and the journal keep everything that was said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs

from harness._arguments import check_count
from harness.agents._conversation import checked_messages
from harness.models import Message, Model, ModelRequest, ModelResponse, NamedModel, Usage
from harness.models._sizes import request_tokens
from harness.runs import Run

SUMMARISE = (
    "Summarise the conversation so far for yourself: what was asked, what was found out and done, "
    "with every name and number that may still matter, and what is left to do. Give only the "
    "summary."
)

SHARE_OF_WINDOW = 0.75
"""How full the window may be before `summarise` shortens the history."""


@attrs.frozen(kw_only=True)
class HistoryView:
    """What a history processor may want to know."""

    run: Run[Any]
    """The agent's run."""

    usage: Usage
    """What the run has used so far."""

    last_usage: Usage
    """What its last request used; zeros before the first."""

    context_tokens: int | None
    """The model's context window, its attribute of the same name; None if it doesn't say."""

    _spend: Callable[[Usage], None] = attrs.field(alias="spend")

    def tokens(self, messages: Iterable[Message]) -> int:
        """Return about how many tokens some messages have."""
        return request_tokens(ModelRequest(messages))

    async def ask(self, model: Model, messages: Iterable[Message]) -> ModelResponse:
        """Ask a model, within the run's budgets; its reply counts the usage.

        Args:
          model: Who is asked.
          messages: What.

        Raises:
          ModelError: what the model raised.
          BudgetExceeded: if a budget is used up.

        Checkpoint: always.

        Cancellation: the request is cancelled.
        """
        request = ModelRequest(messages)
        if isinstance(model, NamedModel):
            async with model:
                response = await model.complete(request)
        else:
            response = await model.complete(request)
        self._spend(response.usage)
        return response


HistoryProcessor: TypeAlias = Callable[
    [tuple[Message, ...], HistoryView], Iterable[Message] | Awaitable[Iterable[Message]]
]
"""A plain or async function from messages to messages. Instructions, the agent's and those that a
conversation begins with, aren't among them: they are always sent."""


def keep_last_turns(turns: int) -> HistoryProcessor:
    """Return a processor that keeps the last turns whole, and leaves out what came before.

    A turn is an answer of the model with the results of its calls, and what the user said after
    it. The last words of the user before those turns are kept too.

    Args:
      turns: How many.

    Raises:
      TypeError, ValueError: if ``turns`` is no whole number from 1 upwards.
    """
    check_count("keep_last_turns(turns)", turns, advice="1 keeps the last answer")

    def keep(messages: tuple[Message, ...], view: HistoryView) -> Sequence[Message]:
        cut = _start_of_last(messages, turns)
        asked = [one for one in messages[:cut] if one.role == "user"]
        return [*asked[-1:], *messages[cut:]]

    return keep


def summarise(
    model: Model, *, above_tokens: int | None = None, keep_turns: int = 4
) -> HistoryProcessor:
    """Return a processor that has a model summarise what came before the last turns.

    The summary is sent in its place from then on, until the history is too long again. What it
    costs is part of the run: of its budgets and its reply's usage.

    Args:
      model: Who writes the summary; a small one will do.
      above_tokens: From which size on, in tokens; by default three quarters of the agent's model's
        window, its ``context_tokens``. Where that isn't known, the run fails with a
        ``ValueError``.
      keep_turns: How many turns stay as they are; see `keep_last_turns`.

    Raises:
      TypeError, ValueError: if an argument isn't what it should be.
    """
    if not callable(getattr(model, "complete", None)):
        raise TypeError(f"summarise(model) takes a model, not {model!r}")
    if above_tokens is not None:
        check_count("summarise(above_tokens=...)", above_tokens, advice="None: by the window")
    check_count("summarise(keep_turns=...)", keep_turns, advice="the default is 4")

    async def shorten(messages: tuple[Message, ...], view: HistoryView) -> Sequence[Message]:
        most = above_tokens
        if most is None:
            if view.context_tokens is None:
                raise ValueError(
                    "summarise() doesn't know how long a history may be, because the model says no "
                    "context_tokens; give it that, or write summarise(model, above_tokens=100_000)"
                )
            most = int(view.context_tokens * SHARE_OF_WINDOW)
        if view.tokens(messages) <= most:
            return messages
        cut = _start_of_last(messages, keep_turns)
        if cut < 2:  # A summary alone, or what was asked: nothing to gain.
            return messages
        answer = await view.ask(model, [*messages[:cut], Message("user", SUMMARISE)])
        summary = f"Summary of the conversation so far:\n{answer.content}"
        return [Message("user", summary), *messages[cut:]]

    return shorten


def _start_of_last(messages: Sequence[Message], turns: int) -> int:
    """Return where the last turns begin; 0 if there are no more."""
    answers = [at for at, one in enumerate(messages) if one.role == "assistant"]
    return answers[-turns] if len(answers) > turns else 0


async def processed(
    processor: HistoryProcessor, messages: Sequence[Message], view: HistoryView
) -> list[Message]:
    """Return what a processor makes of a history.

    Raises:
      TypeError: if it returns something else than messages.
      ValueError: if a call and its result are parted, or nothing is left to send.
      Exception: what it raised.

    Checkpoint: where the processor has one.

    Cancellation: reaches the processor.
    """
    made = processor(tuple(messages), view)
    kept: Any = await made if isinstance(made, Awaitable) else made
    name = getattr(processor, "__qualname__", repr(processor))
    call = f"the history processor {name}"
    if isinstance(kept, str) or not isinstance(kept, Iterable):
        raise TypeError(f"{call} returned {kept!r}, where messages were expected")
    checked = checked_messages(call, kept)
    if not checked or checked[-1].role not in ("user", "tool"):
        raise ValueError(
            f"{call} left nothing for the model to answer; keep the last message of the history"
        )
    return checked
