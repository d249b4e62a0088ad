"""State what a model costs, so that budgets can be kept in dollars."""

from __future__ import annotations

from typing import Any

import attrs

from harness._arguments import check_dollars, says_near_options
from harness.models._messages import Usage

_TOKENS = 1_000_000


def _check_usd(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is None and attribute.default is None:
        return
    check_dollars(f"Price({attribute.name}=...)", value, advice="0 if they are free")


@says_near_options
@attrs.frozen(kw_only=True)
class Price:
    """What a provider charges for a model's tokens. Prices aren't built in: they change."""

    input_usd_per_million_tokens: float = attrs.field(validator=_check_usd)
    """Dollars for a million tokens of input."""

    output_usd_per_million_tokens: float = attrs.field(validator=_check_usd)
    """Dollars for a million tokens of output."""

    cached_input_usd_per_million_tokens: float | None = attrs.field(
        default=None, validator=_check_usd
    )
    """Dollars for a million tokens of input from the provider's cache; None for the price of other
    input."""

    cache_write_usd_per_million_tokens: float | None = attrs.field(
        default=None, validator=_check_usd
    )
    """Dollars for a million tokens of input that the provider puts in its cache; None for the price
    of other input."""

    def cost_usd(self, usage: Usage) -> float:
        """Return what ``usage`` costs, in dollars."""
        input_usd = self.input_usd_per_million_tokens
        read_usd = self.cached_input_usd_per_million_tokens
        write_usd = self.cache_write_usd_per_million_tokens
        read = min(usage.cached_input_tokens, usage.input_tokens)
        written = min(usage.cache_write_input_tokens, usage.input_tokens - read)
        return (
            (usage.input_tokens - read - written) * input_usd
            + read * (input_usd if read_usd is None else read_usd)
            + written * (input_usd if write_usd is None else write_usd)
            + usage.output_tokens * self.output_usd_per_million_tokens
        ) / _TOKENS
