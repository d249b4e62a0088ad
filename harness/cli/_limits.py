"""Keep a provider's limits in a batch: the limiter that is asked for, and its state in words."""

from __future__ import annotations

from typing import Any

from harness.cli._errors import InputError
from harness.cli._options import BatchOptions
from harness.cli._records import Format
from harness.limits import Limiter, LimiterStatistics


def check_limits(options: BatchOptions, form: Format, *, counts_its_own: bool) -> None:
    """Refuse limits that can't be kept with what else the command line says.

    Args:
      options: The command line.
      form: The format of the input.
      counts_its_own: Whether the target says itself how many tokens its calls use, as agents do.

    Raises:
      InputError: if ``--tpm`` and ``--tokens`` aren't given together, or ``--tokens`` names a
        field of plain lines.
    """
    if options.tpm is not None and options.tokens is None and not counts_its_own:
        raise InputError(
            f"--tpm {options.tpm} needs --tokens: say how many tokens a record uses, input and "
            "output together, as a number or as the field that holds it"
        )
    if options.tokens is not None and options.tpm is None:
        raise InputError(
            f"--tokens {options.tokens} says what a record takes of --tpm, which is not given; "
            "give both or none"
        )
    if isinstance(options.tokens, str) and form == "lines":
        raise InputError(
            f"--tokens {options.tokens} names a field, and plain lines have none; give a number, "
            "or say --format jsonl or csv"
        )


def limiter_of(options: BatchOptions) -> Limiter | None:
    """Return a limiter of all that is limited; None if nothing is."""
    if options.rpm is options.tpm is options.concurrent is None:
        return None
    return Limiter(
        "batch",
        requests_per_minute=options.rpm,
        tokens_per_minute=options.tpm,
        concurrent=options.concurrent,
    )


def plan_text(options: BatchOptions) -> list[str]:
    """Return what is limited, in words, before anything has run."""
    parts: list[str] = []
    if options.rpm is not None:
        parts.append(f"{options.rpm:,} calls a minute")
    if options.tpm is not None:
        each = "" if options.tokens is None else f", {_each(options.tokens)}"
        parts.append(f"{options.tpm:,} tokens a minute{each}")
    if options.concurrent is not None:
        parts.append(f"{options.concurrent:,} calls at once")
    return parts


def _each(tokens: int | str) -> str:
    return f"{tokens:,} for each" if isinstance(tokens, int) else f"for each what {tokens!r} says"


def long_wait_text(tokens: int, per_minute: int) -> str:
    """Say what becomes of a record that takes more ``tokens`` than a minute has."""
    return (
        f"a record takes {tokens:,} tokens and --tpm allows {per_minute:,}: "
        "each waits for an empty minute"
    )


def now_text(limits: LimiterStatistics) -> str:
    """Return how far the limits are used now, for a line of progress."""
    parts = [f"{name} {use:.0%}" for name, use in limits.use.items()]
    parts.append(f"{limits.waiting:,} waiting")
    if limits.paused_seconds:
        parts.append(f"paused for {limits.paused_seconds:.0f} s")
    return f"limits: {', '.join(parts)}"


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
