"""Open the model that a command line names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from harness import models
from harness.cli._errors import InputError
from harness.errors import ModelError
from harness.limits import Limiter


@asynccontextmanager
async def model_named(
    text: str, limiter: Limiter | None, *, prices: str | None = None, needs_price: bool = False
) -> AsyncIterator[models.NamedModel]:
    """Open a model for the duration of a block. Its key comes only from the environment.

    Args:
      text: Its name, as `harness.models.NamedModel` takes it.
      limiter: What limits it.
      prices: The path of a table of prices; None for the environment's.
      needs_price: Whether it may not be used without a price.

    Raises:
      InputError: if a package or the key is missing, the model can't be opened, or has no price.
    """
    try:
        model = models.NamedModel(text, limiter=limiter, prices=prices)
        if needs_price and model.price is None:
            raise InputError(
                f"--budget-usd can't be kept with --model {text}, which has no price "
                f"{model.no_price_because}; add it there, or use --budget-tokens"
            )
        opened = await model.__aenter__()
    except (ImportError, ModelError, OSError, ValueError) as error:
        raise InputError(f"--model {text}: {error}") from error
    async with AsyncExitStack() as stack:
        stack.push_async_exit(model)
        yield opened
