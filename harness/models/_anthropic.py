"""Call Anthropic's models."""

from __future__ import annotations

from typing import Any, ClassVar

import anthropic

from harness._arguments import says_near_options
from harness.models._anthropic_messages import AnthropicMessages
from harness.models._batch_apis import AnthropicBatches
from harness.models._sdk_model import SdkModel


@says_near_options
class AnthropicModel(SdkModel):
    """One of Anthropic's models, opened with ``async with``.

    Args:
      name: The model's name at the provider.
      base_url: Where it is served; by default what the environment variable ``ANTHROPIC_BASE_URL``
        says, or else Anthropic itself.
      api_key: The key; by default the environment variable ``ANTHROPIC_API_KEY``. A server on
        this machine needs none.
      limiter: The provider's limits. With one, a refusal for rate is waited out.
      price: What it costs. A run with a budget in dollars needs it.
      max_output_tokens: The largest output of a call; by default 4,096, because Anthropic requires
        a number.
      context_tokens: Its context window, for `harness.agents.summarise`; the interface doesn't tell
        it.
      temperature: How random the answers are; by default the provider decides. Newer models refuse
        it.
      enforce_schema: Whether to tell the provider which form an answer must have, if any. Turn it
        off for models too old to enforce it.
      cache_prompts: Whether the provider should keep what a request begins with, for five minutes:
        the tools and instructions, for all agents that share them, and the conversation so far, for
        its next turn. Writing to its cache costs more than other input, reading from it much less;
        see `Price`.
      files: Which files it takes, as media types such as ``["image/*"]``; by default all that its
        interface takes, which is more than every model does.
      options: More arguments for the library's method ``create``, such as
        ``{"extra_body": {"top_k": 5}}``.
        None replaces what the agent and the other arguments say: mappings are merged, the lists of
        tools joined, and anything else is refused.

    Raises:
      TypeError, ValueError: if an argument isn't what it should be.
    """

    _written = "AnthropicModel(...) as model"
    _provider = "anthropic"
    _sdk: ClassVar[Any] = anthropic
    _client_type = anthropic.AsyncAnthropic
    _key_variable = "ANTHROPIC_API_KEY"
    _address_variable = "ANTHROPIC_BASE_URL"
    _dialect = AnthropicMessages()

    def _batch_api(self) -> AnthropicBatches:
        return AnthropicBatches()
