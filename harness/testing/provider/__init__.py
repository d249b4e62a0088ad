"""Simulate a model provider, to test agents and limits with.

It speaks OpenAI's chat completions and responses and Anthropic's messages, streaming
and not, to their real clients; it enforces limits as real providers do and counts
every request that breaks one; and it makes requests go wrong in ways that repeat from run to run.
::

    def answer(request: ProviderRequest) -> str:
        return f"You said: {request.prompt}"

    async with open_provider(answer=answer, requests_per_minute=600) as provider:
        client = AsyncOpenAI(base_url=provider.base_url, api_key="any", max_retries=0)
        ...
    assert provider.statistics().violations == 0

With ``http=False`` there are no sockets: `Provider.request` calls the same code directly, even on a
virtual clock.
"""

from harness.testing.provider._answers import (
    Answer,
    AnswerFunction,
    AnswerResult,
    AnswerToolCall,
    ErrorAnswer,
    ProviderRequest,
)
from harness.testing.provider._counters import ProviderStatistics
from harness.testing.provider._fates import Faults, Latency, Storm, lognormal
from harness.testing.provider._limits import Judged
from harness.testing.provider._provider import Provider, ProviderReply, open_provider

__all__ = [
    "Answer",
    "AnswerFunction",
    "AnswerResult",
    "AnswerToolCall",
    "ErrorAnswer",
    "Faults",
    "Judged",
    "Latency",
    "Provider",
    "ProviderReply",
    "ProviderRequest",
    "ProviderStatistics",
    "Storm",
    "lognormal",
    "open_provider",
]
