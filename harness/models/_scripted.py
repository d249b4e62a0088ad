"""Answer from a script: for tests of whatever uses a model.

The request itself says which reply is next: the first if no assistant has spoken in it, then the
second, and so on. So any number of runs can share one script, each at its own place; a place kept
in the model would be moved by all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import trio

from harness._arguments import check_seconds, says_near_options
from harness._error_copies import own_copy
from harness.errors import ScriptEndedError
from harness.limits import JointLimiter, Limiter
from harness.models._answers import Answer, ReadyBlock
from harness.models._called import CalledModel
from harness.models._messages import EMPTY_REPLY, ModelRequest, ModelResponse, Usage
from harness.models._price import Price
from harness.models._sending import request_sent
from harness.models._sizes import usage_of

ScriptedReply: TypeAlias = (
    str
    | ModelResponse
    | Exception
    | Callable[[ModelRequest], str | ModelResponse | Awaitable[str | ModelResponse]]
)
"""What a script may hold: a str, a response, an error to raise, or a function of the request, plain
or async."""


@says_near_options
class ScriptedModel(CalledModel):
    """A model that gives the replies of a script, in order, to each history from the start.

    Args:
      replies: The replies. A str is a response without usage.
      name: Its name, in messages.
      delay: Seconds before each reply.
      piece_delay: Seconds between two words of a streamed reply.
      limiter: The limits that calls keep to.
      price: What it costs.

    Raises:
      TypeError: if a reply isn't one of the kinds that a script may hold.
      ValueError: if a delay is negative or nan.
    """

    def __init__(
        self,
        replies: Iterable[ScriptedReply],
        *,
        name: str = "scripted",
        delay: float = 0.0,
        piece_delay: float = 0.0,
        limiter: Limiter | JointLimiter | None = None,
        price: Price | None = None,
    ) -> None:
        super().__init__(name, limiter=limiter, price=price)
        if isinstance(replies, str) or not isinstance(replies, Iterable):
            raise TypeError(f"a script takes several replies, not {replies!r}; put it in []")
        self._replies = tuple(_as_answer(reply) for reply in replies)
        self._delay = check_seconds("ScriptedModel(delay=...)", delay, advice="0 for none")
        self._piece_delay = check_seconds(
            "ScriptedModel(piece_delay=...)", piece_delay, advice="0 for none"
        )

    async def _ask(self, request: ModelRequest) -> Answer:
        await trio.sleep(self._delay)
        place = _place(request)
        if place >= len(self._replies):
            raise self._error(
                ScriptEndedError,
                f"has {len(self._replies)} replies in its script, and was asked for another "
                f"one: the request has {place} assistant messages; give it more replies, "
                "or a FunctionModel",
            )
        request_sent()
        reply = self._replies[place]
        if isinstance(reply, Answer):
            self._refuse_misfit(reply.response)
            return reply
        if isinstance(reply, Exception):
            raise own_copy(reply).with_traceback(None)
        said = reply(request)
        if isinstance(said, Awaitable):
            said = await said
        given = _as_answer(said)
        if not isinstance(given, Answer):
            raise TypeError(
                f"a function in the script of {self.name!r} returned {given!r}; it must return "
                "text or a ModelResponse, or raise an error"
            )
        self._refuse_misfit(given.response)
        return given

    def _foresee(self, request: ModelRequest) -> Usage | None:
        place = _place(request)
        reply = self._replies[place] if place < len(self._replies) else None
        return usage_of(request, reply.response) if isinstance(reply, Answer) else None

    def _open(self, request: ModelRequest) -> ReadyBlock:
        return ReadyBlock(self._ask, request, piece_delay=self._piece_delay)


def _place(request: ModelRequest) -> int:
    """Return how many replies the history has so far."""
    place = 0
    for message in request.messages:
        place += message.role == "assistant" or (
            message.role == "user" and message.content == EMPTY_REPLY
        )
    return place


def _as_answer(
    reply: ScriptedReply,
) -> Answer | Exception | Callable[[ModelRequest], Any]:
    # Made once, so a script's texts are ready as answers when they are asked for.
    if isinstance(reply, str):
        return Answer(ModelResponse(reply))
    if isinstance(reply, ModelResponse):
        return Answer(reply)
    if isinstance(reply, type):
        raise TypeError(
            f"a script holds the class {reply.__name__}, not a reply; write {reply.__name__}(...)"
        )
    if isinstance(reply, Exception) or callable(reply):
        return reply
    raise TypeError(
        f"a script holds {reply!r}, but may hold texts, ModelResponses, exceptions and functions "
        "of the request"
    )
