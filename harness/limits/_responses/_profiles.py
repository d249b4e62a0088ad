"""Describe how providers differ: what they count, over which window, in which headers.

A profile is a value. For a provider that isn't here, make one and give it to the limiter.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from harness._arguments import says_near_options

MINUTE_SECONDS = 60.0
DAY_SECONDS = 86_400.0
MONTH_SECONDS = 30 * DAY_SECONDS


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


@says_near_options
@attrs.frozen(kw_only=True)
class ProviderProfile:
    """How one provider limits its users."""

    name: str
    """The provider's name, in lower case."""

    counts_requested_maximum: bool = False
    """Whether the output that a request allows is what counts, not what it gets."""

    counts_cache_reads: bool = True
    """Whether input tokens read from the provider's cache count against the limit."""

    requests_evenly_spaced: bool = False
    """Whether requests are judged over seconds, so that even a small burst may be refused."""

    renamed: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)
    """Dimensions that mean something else here, such as requests counted per day."""

    window_seconds: Mapping[str, float] = attrs.field(factory=dict, converter=_frozen)
    """The window of each dimension, where it isn't a minute for all."""

    def counted_input_tokens(self, input_tokens: int, *, cache_read_tokens: int = 0) -> int:
        """Return how much of a request's input counts against the limit.

        Args:
          input_tokens: The whole input.
          cache_read_tokens: The part that was read from the provider's cache.
        """
        return input_tokens if self.counts_cache_reads else input_tokens - cache_read_tokens


OPENAI = ProviderProfile(name="openai", counts_requested_maximum=True)

AZURE_OPENAI = ProviderProfile(
    name="azure", counts_requested_maximum=True, requests_evenly_spaced=True
)

ANTHROPIC = ProviderProfile(name="anthropic", counts_cache_reads=False)

GEMINI = ProviderProfile(name="gemini")

MISTRAL = ProviderProfile(name="mistral", requests_evenly_spaced=True)

COHERE = ProviderProfile(name="cohere")

GROQ = ProviderProfile(name="groq", renamed={"requests": "requests_day"})

TOGETHER = ProviderProfile(
    name="together", requests_evenly_spaced=True, window_seconds={"requests": 1.0, "tokens": 1.0}
)

FIREWORKS = ProviderProfile(name="fireworks")

OPENROUTER = ProviderProfile(name="openrouter")

_PROFILES = MappingProxyType(
    {
        "openai": OPENAI,
        "azure": AZURE_OPENAI,
        "azure-openai": AZURE_OPENAI,
        "azure_openai": AZURE_OPENAI,
        "azure openai": AZURE_OPENAI,
        "anthropic": ANTHROPIC,
        "gemini": GEMINI,
        "google": GEMINI,
        "mistral": MISTRAL,
        "cohere": COHERE,
        "groq": GROQ,
        "together": TOGETHER,
        "fireworks": FIREWORKS,
        "openrouter": OPENROUTER,
    }
)

GENERIC = ProviderProfile(name="")
"""For a provider that nothing is known about."""


def profile_of(provider: object) -> ProviderProfile | None:
    """Return the profile for a provider's name, or ``None`` if there is none.

    Args:
      provider: A profile, which is returned, or a name; its case doesn't matter.
    """
    if isinstance(provider, ProviderProfile):
        return provider
    if isinstance(provider, str):
        return _PROFILES.get(provider.strip().lower())
    return None


def profile_names() -> tuple[str, ...]:
    """Return the names that `profile_of` knows."""
    return tuple(_PROFILES)
