"""Name a model in a word, as the command line does, and keep it open while somebody uses it.

A model of a provider must be open while it is asked. One that is only named opens itself when the
first run begins to use it, and closes when the last has ended. So nothing is left open, and runs
side by side share its clients; runs one after the other open it again, unless a block around them
(``async with model:``) keeps it open.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import says_near_options
from harness._async_with import AsyncWithOnly
from harness._outside_trio import refuse_outside_trio
from harness.limits import JointLimiter, Limiter
from harness.models._messages import ModelRequest, ModelResponse
from harness.models._price import Price
from harness.models._prices import VARIABLE, PriceTable, known_prices
from harness.models._protocol import ModelStream
from harness.models._simulated import simulated_model

FORMS = "openai:NAME, anthropic:NAME, local:PATH or sim"

_CLASSES = {"openai": "OpenAIModel", "anthropic": "AnthropicModel", "local": "LocalModel"}
_NAME = re.compile(r"sim|(?:openai|anthropic|local):.+", re.DOTALL)


def is_model_name(text: str) -> bool:
    """Return whether ``text`` has the form of a model's name, such as ``openai:gpt-5-mini``."""
    return _NAME.fullmatch(text) is not None


@attrs.define(eq=False)
class _Use:
    """Who uses a model in one ``trio.run``."""

    model: Any
    users: int = 0
    changing: trio.Lock = attrs.field(factory=trio.Lock)


@says_near_options
class NamedModel(AsyncWithOnly):
    """A model by its name, which is open while it is used.

    ``Agent(model="openai:gpt-5-mini")`` makes one. Keys come from the environment.

    Args:
      name: ``openai:NAME``, ``anthropic:NAME``, ``local:PATH`` of a GGUF file, or ``sim``, which
        answers without asking anybody and costs nothing.
      limiter: The limits that calls keep to.
      prices: A `PriceTable` or the path of one; by default the file that the environment variable
        ``HARNESS_PRICES`` names. A model that isn't in it has no price.

    Raises:
      TypeError, ValueError: if ``name`` is none, or the table can't be read.
      ImportError: if what the model needs isn't installed.
      OSError: if there is no such table.
    """

    _written = "model"

    def __init__(
        self,
        name: str,
        *,
        limiter: Limiter | JointLimiter | None = None,
        prices: PriceTable | str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not is_model_name(name):
            raise (ValueError if isinstance(name, str) else TypeError)(
                f"{name!r} names no model; write {FORMS}"
            )
        self.name: str = name
        self.limiter: Limiter | JointLimiter | None = limiter
        self._table = known_prices(prices)
        self._uses: trio.lowlevel.RunVar[_Use] = trio.lowlevel.RunVar("harness.models.named")
        made = self._make()
        self.price: Price | None = made.price
        self.no_price_because: str = made.no_price_because
        self.context_tokens: int | None = made.context_tokens

    def _make(self) -> Any:
        """Return the model, not open yet."""
        if self.name == "sim":
            return simulated_model(self.limiter)
        kind, _, name = self.name.partition(":")
        table = self._table
        price = None if table is None else table.prices.get(self.name)
        # By name, because it is loaded only if it is used: it may not be installed.
        class_ = pkgutil.resolve_name(f"harness.models:{_CLASSES[kind]}")
        model = class_(name, limiter=self.limiter, price=price)
        model.no_price_because = (
            f"because {VARIABLE} names no table of prices"
            if table is None
            else f"because {self.name!r} isn't in {table.source}, dated {table.dated}"
        )
        return model

    async def __aenter__(self) -> NamedModel:
        """Keep it open for the length of the block.

        Raises:
          ModelError: if it can't be opened; see the model's own ``async with``.

        Checkpoint: always.

        Cancellation: it isn't open because of this block.
        """
        refuse_outside_trio(f"NamedModel {self.name!r} was opened")
        use = self._use()
        async with use.changing:
            if not use.users and hasattr(use.model, "__aenter__"):
                await use.model.__aenter__()
            use.users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        use = self._use()
        # A block must end also when cancelled; who holds the lock opens or closes the model.
        with trio.CancelScope(shield=True):
            async with use.changing:
                use.users -= 1
                if not use.users and hasattr(use.model, "__aexit__"):
                    await use.model.__aexit__(None, None, None)

    def _use(self) -> _Use:
        try:
            return self._uses.get()
        except LookupError:
            use = _Use(self._make())
            self._uses.set(use)
            return use

    @enable_ki_protection
    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer.

        Args:
          request: What the model is asked.

        Raises:
          ModelError: if there is no usable answer, or the model can't be opened.

        Checkpoint: always.

        Cancellation: the request is abandoned.
        """
        refuse_outside_trio("NamedModel.complete() was called")
        async with self:
            answer: ModelResponse = await self._use().model.complete(request)
        return answer

    @asynccontextmanager
    @enable_ki_protection
    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        """Open the answer as a stream: text as it comes and, last, one `ModelResponse`.

        Args:
          request: What the model is asked.

        Raises:
          ModelError: if there is no answer; while it is read, if it breaks off.

        Checkpoint: on entry and exit, and for each piece.

        Cancellation: the connection is closed.
        """
        refuse_outside_trio("NamedModel.stream() was called")
        async with self, self._use().model.stream(request) as stream:
            yield stream

    def __copy__(self) -> NamedModel:
        # Not the clients: a copy may get another limiter.
        return NamedModel(self.name, limiter=self.limiter, prices=self._table)

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedModel, (self.name,)

    def __repr__(self) -> str:
        return f"<NamedModel {self.name!r}>"
