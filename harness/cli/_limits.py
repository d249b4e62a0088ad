"""Keep a provider's limits in a batch: the limiter that is asked for, and its state in words."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from harness.cli._errors import InputError
from harness.cli._later import named
from harness.cli._options import BatchOptions, EvalOptions, VerifyOptions
from harness.limits import Limiter, LimiterStatistics
from harness.limits._other_processes import other_process


def limiter_of(
    options: BatchOptions | VerifyOptions, shared: str = "harness.cluster:FleetLimiter"
) -> Limiter | None:
    """Return a limiter for everything that is limited; None if nothing is.

    Args:
      options: What the command line says.
      shared: The class of one that is shared with other processes.
    """
    if isinstance(options, BatchOptions) and options.fleet is not None:
        where, name = options.fleet, ""
        if "://" in where:
            where, _, name = where.partition("#")
        try:
            made: Limiter = named(shared)(
                where,
                name or "harness batch",
                requests_per_minute=options.rpm,
                tokens_per_minute=options.tpm,
                concurrent=options.concurrent,
            )
        except (ImportError, ValueError) as error:
            raise InputError(f"can't share the limits: {error}") from error
        return made
    return own_limiter(options)


def is_limited(options: BatchOptions | EvalOptions | VerifyOptions) -> bool:
    """Return whether the command line limits anything."""
    return not (options.rpm is options.tpm is options.concurrent is None)


def own_limiter(options: BatchOptions | EvalOptions | VerifyOptions) -> Limiter | None:
    """Return a limiter that shares nothing with other processes; None if nothing is limited."""
    if not is_limited(options):
        return None
    # Without a name, because the same limits may be those of different accounts.
    return Limiter(
        requests_per_minute=options.rpm,
        tokens_per_minute=options.tpm,
        concurrent=options.concurrent,
    )


@asynccontextmanager
async def open_limits(limiter: Limiter | None) -> AsyncGenerator[None]:
    """Open limits that are kept with other processes, for the block.

    Raises:
      InputError: if that can't be done.
    """
    async with AsyncExitStack() as stack:
        if isinstance(limiter, AbstractAsyncContextManager):  # Shared with other processes.
            try:
                await stack.enter_async_context(limiter)
            except ConnectionError as error:
                raise InputError(
                    f"can't share the limits: {error}; without --fleet the batch starts, and keeps "
                    "its limits alone"
                ) from error
            except (OSError, RuntimeError, ValueError) as error:
                raise InputError(f"can't share the limits: {error}") from error
        yield


def other_batch(options: BatchOptions) -> str | None:
    """Say that another process has limits of its own for the same target; None if none has."""
    if options.fleet is not None:
        return None
    file, colon, function = options.target.rpartition(":")
    target = f"{os.path.realpath(file)}{colon}{function}"
    other = other_process(f"harness batch {target}")
    if other is None:
        return None
    return (
        f"process {other} runs {options.target}, too, and each keeps within its own limits; share "
        "them with --fleet FILE|URL if both use one account"
    )


def long_wait_text(tokens: int, per_minute: int) -> str:
    """Say what becomes of a record that takes more ``tokens`` than a minute has."""
    return (
        f"a record takes {tokens:,} tokens and --tpm allows {per_minute:,}: "
        "each waits for an empty minute"
    )


def feasible_text(
    limiter: Limiter, *, tokens: float | None, seconds: float | None = None, limit: int = 0
) -> str | None:
    """Say how many records a minute the limits come to, and which of them binds.

    Args:
      limiter: The batch's limiter.
      tokens: How many tokens a record takes, on average; what was really used counts more.
      seconds: How long a call takes on average, if known.
      limit: How many records may be in flight.

    Returns:
      The words; None if tokens are limited, and nobody has said how many a record takes.
    """
    try:
        found = limiter.feasible(seconds=seconds)
    except ValueError:
        if tokens is None:
            return None
        found = limiter.feasible(tokens=tokens, seconds=seconds)
    if found.in_flight is None or found.in_flight == limit:
        return str(found)
    changes = "changes nothing" if limit > found.in_flight else "holds it back"
    return f"{found}; --limit {limit:,} {changes}"


def now_text(limits: LimiterStatistics) -> str:
    """Return how far the limits are used now, for a line of progress."""
    parts = [f"{name} {use:.0%}" for name, use in limits.use.items()]
    parts.append(f"{limits.waiting:,} waiting")
    if limits.paused_seconds:
        parts.append(f"paused for {limits.paused_seconds:.0f} s")
    return f"limits: {', '.join(parts)}"


def now_forms(limits: LimiterStatistics) -> list[str]:
    """Return how far the limits are used now, in ever shorter forms."""
    waiting = f"{limits.waiting:,} waiting"
    forms = [now_text(limits)]
    if limits.use:
        name, use = max(limits.use.items(), key=lambda one: one[1])
        forms.append(f"limits: {name} {use:.0%}, {waiting}")
    return [*forms, waiting]


def end_text(limits: LimiterStatistics) -> str:
    """Return what the limits did to a batch that is over, for its summary."""
    used = ", ".join(
        f"{name} {dimension.use:.0%} of {dimension.limit:,.0f}"
        for name, dimension in limits.dimensions.items()
    )
    parts = [f"{used} in the last minute"] if used else []
    if limits.waits:
        mean_seconds = limits.waited_seconds / limits.waits
        parts.append(f"{limits.waits:,} of {limits.granted:,} calls waited, {mean_seconds:.1f} s")
    else:
        parts.append("no call waited")
    if limits.rate_limited:
        parts.append(f"{limits.rate_limited:,} refused, {_counted(limits.pauses, 'pause')}")
    return f"limits: {'; '.join(parts)}"


def _counted(count: int, word: str) -> str:
    return f"1 {word}" if count == 1 else f"{count:,} {word}s"


def as_json(limits: LimiterStatistics) -> dict[str, Any]:
    """Return the state of the limits at a batch's end, for its summary as JSON."""
    return {
        **{
            name: {
                "limit": dimension.limit,
                "period_seconds": dimension.period_seconds,
                "used": dimension.used,
                "use": round(dimension.use, 6),
            }
            for name, dimension in limits.dimensions.items()
        },
        "concurrent": limits.concurrent,
        "granted": limits.granted,
        "waits": limits.waits,
        "waited_seconds": round(limits.waited_seconds, 6),
        "pauses": limits.pauses,
        "rate_limited": limits.rate_limited,
    }
