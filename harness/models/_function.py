"""Answer with a function of the request: for tests, and for answers that need no model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from harness._arguments import says_near_options
from harness._words import repr_of
from harness.errors import ModelReplyError
from harness.limits import JointLimiter, Limiter
from harness.models._answers import Answer
from harness.models._called import CalledModel
from harness.models._messages import ModelRequest, ModelResponse
from harness.models._price import Price
from harness.models._sending import request_sent
from harness.runs._functions import refuse_mismatch


@says_near_options
class FunctionModel(CalledModel):
    """A model that answers with what a function returns.

    Errors from the function come out unchanged. A stream begins when the function has returned.

    Args:
      fn: Called with each `ModelRequest`, plain or async, in the task of the run that asks; returns
        a `ModelResponse` or a str.
      name: Its name; by default the function's.
      limiter: The limits that calls keep to.
      price: What it costs.

    Raises:
      TypeError: if ``fn`` can't be called with one argument.
    """

    def __init__(
        self,
        fn: Callable[[ModelRequest], ModelResponse | str | Awaitable[ModelResponse | str]],
        *,
        name: str | None = None,
        limiter: Limiter | JointLimiter | None = None,
        price: Price | None = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"a FunctionModel takes a function of the request, not {fn!r}")
        refuse_mismatch("a FunctionModel", fn, "the request", "request")
        if name is None:
            name = str(getattr(fn, "__name__", type(fn).__name__))
        super().__init__(name, limiter=limiter, price=price)
        self._fn = fn

    async def _ask(self, request: ModelRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        request_sent()
        given = self._fn(request)
        if isinstance(given, Awaitable):
            given = await given
        if isinstance(given, str):
            return Answer(ModelResponse(given))
        if isinstance(given, ModelResponse):
            self._refuse_misfit(given)
            return Answer(given)
        raise self._error(
            ModelReplyError,
            f"is a function that returned {repr_of(given)}, but must return a ModelResponse or a "
            "str",
        )
