"""Hold leave to make one call to a model, and settle what it really used.

What a call is expected to use is reserved before it; what it used is settled after it, on every way
out: from the usage in the response, from what was known when it broke off, or, failing that, as
estimated.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
from trio.lowlevel import enable_ki_protection

from harness.errors import (
    ModelQuotaExhaustedError,
    ModelRateLimitedError,
    QuotaExhaustedError,
    RateLimitedError,
)
from harness.limits import JointLimiter, Limiter, ProviderPool, Reservation
from harness.models._failures import model_error
from harness.models._messages import ModelRequest, Usage
from harness.models._sizes import request_tokens


@attrs.frozen(eq=False, repr=False)
class Grant:
    """The share of a limit that one call holds."""

    _limiters: tuple[Limiter, ...]
    _reservation: Reservation | None

    @property
    def provider(self) -> str | None:
        """The name of the limiter that granted it."""
        return None if self._reservation is None else self._reservation.provider

    def settle(
        self, usage: Usage, *, headers: Mapping[str, str] | None = None, status: int | None = None
    ) -> None:
        """Replace the estimate with what was used, and report the response to the limiter."""
        if self._reservation is None:
            return
        provider = self._reservation.provider
        limiter = next(limiter for limiter in self._limiters if limiter.name == provider)
        self._reservation.settle(
            input_tokens=limiter.profile.counted_input_tokens(
                usage.input_tokens, cache_read_tokens=usage.cached_input_tokens
            ),
            output_tokens=usage.output_tokens,
            headers=headers,
            status=status,
        )

    def refused(self, error: ModelRateLimitedError) -> None:
        """Report a refusal for rate to the limiter, which begins the pause of all its callers.

        Not if the request alone is above the limit: then it says nothing about others.
        """
        if self._reservation is not None:
            self._reservation.settle(
                headers=error.headers, status=error.status_code, body=error.body
            )

    def refund(self) -> None:
        """Give it back, because nothing was sent."""
        if self._reservation is not None:
            self._reservation.refund()


NO_LIMIT = Grant((), None)


def members_of(limiter: Limiter | JointLimiter | ProviderPool) -> tuple[Limiter, ...]:
    """Return the limiters that ``limiter`` consists of."""
    return (limiter,) if isinstance(limiter, Limiter) else limiter.limiters


@asynccontextmanager
@enable_ki_protection
async def granted(
    limiter: Limiter | JointLimiter | ProviderPool,
    request: ModelRequest,
    *,
    model: str,
    provider: str | None = None,
    max_output_tokens: int | None,
) -> AsyncGenerator[Grant]:
    """Wait until a call may be made, and hold that leave for the length of the block.

    An error that passes through is reported to the limiter, with its status and headers.

    Args:
      limiter: Whose limits apply.
      request: What the model is asked.
      model: The model's name; estimates are kept per model.
      provider: Who serves the model; its errors name it.
      max_output_tokens: The largest output that the call allows.

    Raises:
      ModelRateLimitedError, ModelQuotaExhaustedError: if the limiter can't be waited for.
    """
    limiters = members_of(limiter)
    input_tokens = request_tokens(request, provider)
    reserved = limiter.reserve(
        model=model,
        input_tokens=input_tokens,
        output_tokens=_stated_output(limiters, model, input_tokens, max_output_tokens),
    )
    async with AsyncExitStack() as stack:
        try:
            reservation = await stack.enter_async_context(reserved)
        except RateLimitedError as error:
            raise model_error(
                ModelRateLimitedError,
                f"was not asked: {error}",
                model=model,
                provider=provider,
                retry_after=error.retry_after,
            ) from error
        except QuotaExhaustedError as error:
            raise model_error(
                ModelQuotaExhaustedError,
                f"was not asked: {error}",
                model=model,
                provider=provider,
                resets_after=error.resets_after,
            ) from error
        yield Grant(limiters, reservation)


def _stated_output(
    limiters: tuple[Limiter, ...], model: str, input_tokens: int, max_output_tokens: int | None
) -> int | None:
    """Return the output to reserve; ``None`` to let each limiter estimate it.

    The maximum bounds what a call can use, and some providers count it. If one in a pool does, the
    others reserve it too, and get back what isn't used.
    """
    if max_output_tokens is None:
        return None
    return max(
        limiter.estimate(
            model=model, input_tokens=input_tokens, max_output_tokens=max_output_tokens
        )
        - input_tokens
        for limiter in limiters
    )
