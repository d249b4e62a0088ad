"""Read the limits that a user states: which dimensions, over which periods."""

from __future__ import annotations

from harness.limits._numbers import checked_positive
from harness.limits._rate import Rate
from harness.limits._responses._profiles import (
    GENERIC,
    MINUTE_SECONDS,
    ProviderProfile,
    profile_names,
    profile_of,
)

KINDS = ("requests", "tokens", "input_tokens", "output_tokens")
"""What can be limited; a kind is an index into this."""

StatedRate = tuple[int, str, Rate]
"""A kind, the dimension's name in statistics, and the rate."""


def stated_rates(
    per_minute: tuple[float | None, ...], rates: tuple[Rate | None, ...]
) -> tuple[StatedRate, ...]:
    """Return every rate that was given.

    Args:
      per_minute: An amount per minute for each kind, or ``None``.
      rates: A rate for each kind, or ``None``.

    Raises:
      TypeError, ValueError: if one isn't a positive, finite number, or isn't a `Rate`.
    """
    stated: list[StatedRate] = []
    for kind, (amount, rate) in enumerate(zip(per_minute, rates, strict=True)):
        name = KINDS[kind]
        if amount is not None:
            checked_positive(f"{name}_per_minute", amount)
            stated.append((kind, name, Rate(amount, MINUTE_SECONDS)))
        if rate is None:
            continue
        if not isinstance(rate, Rate):
            raise TypeError(
                f"{name} is {rate!r}, but must be a Rate, such as Rate(600, 6) for 600 in 6 "
                f"seconds; an amount per minute is {name}_per_minute"
            )
        # Both limits of one kind hold; the second needs a name of its own.
        own_name = name if amount is None else f"{name} per {rate.period:g} s"
        stated.append((kind, own_name, rate))
    return tuple(stated)


def changed_rates(
    old: tuple[StatedRate, ...], new: tuple[StatedRate, ...], *, limiter: str
) -> tuple[StatedRate, ...]:
    """Return ``old`` with the amounts of ``new``.

    Raises:
      ValueError: if ``new`` limits something over a period that ``old`` doesn't.
    """
    amounts = {(kind, rate.period): rate for kind, _, rate in new}
    for kind, name, rate in new:
        if not any((kind, rate.period) == (known, old_rate.period) for known, _, old_rate in old):
            has = ", ".join(f"{name}: {rate}" for _, name, rate in old) or "none on a rate"
            raise ValueError(
                f"limiter {limiter!r} has no limit on {name} per {rate.period:g} s to change; it "
                f"has {has}. What was used isn't known for others; make another limiter for them"
            )
    return tuple((kind, name, amounts.get((kind, rate.period), rate)) for kind, name, rate in old)


def stated_profile(name: str, provider: object) -> ProviderProfile:
    """Return the profile that a user chose, or that the limiter's name implies.

    Raises:
      TypeError: if ``provider`` is neither a profile nor a string.
      ValueError: if no profile has that name.
    """
    if provider is None:
        return profile_of(name) or GENERIC
    if not isinstance(provider, str | ProviderProfile):
        raise TypeError(f"provider is {provider!r}, but must be a name or a ProviderProfile")
    profile = profile_of(provider)
    if profile is None:
        raise ValueError(
            f"there is no profile of a provider {provider!r}; the names are "
            f"{', '.join(profile_names())}, or pass a ProviderProfile of your own"
        )
    return profile
