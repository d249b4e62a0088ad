"""Call models of OpenAI, and of every server with the same interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import openai

from harness._arguments import says_near_options
from harness.limits import JointLimiter, Limiter
from harness.models._batch_apis import OpenAIBatches
from harness.models._openai_chat import OpenAIChat
from harness.models._openai_responses import OpenAIResponses
from harness.models._price import Price
from harness.models._sdk_model import SdkModel

_OWN_HOSTS = ("openai.com", "azure.com")


@says_near_options
class OpenAIModel(SdkModel):
    """A model of OpenAI, or of a server with the same interface; opened with ``async with``.

    Args:
      name: The model's name at the provider.
      base_url: Where it is served; by default what the environment variable ``OPENAI_BASE_URL``
        says, or else OpenAI itself.
      api_key: The key; by default the environment variable ``OPENAI_API_KEY``. A server on this
        machine needs none.
      api: ``"chat"`` for chat completions, which all compatible servers have, or ``"responses"``.
      limiter: The provider's limits. With one, a refusal for rate is waited out.
      price: What it costs. A run with a budget in dollars needs it.
      max_output_tokens: The largest output of a call.
      context_tokens: Its context window, for `harness.agents.summarise`; the interface doesn't tell
        it.
      temperature: How random the answers are; by default the provider decides.
      enforce_schema: Whether to tell the provider which form an answer must have, if any. Turn it
        off for servers that refuse a ``response_format``.
      files: Which files it takes, as media types such as ``["image/*"]``; by default all that its
        interface takes, which is more than every model does.
      options: More arguments for the library's method ``create``, such as
        ``{"reasoning_effort": "low"}``.
        None replaces what the agent and the other arguments say: mappings are merged, the lists of
        tools joined, and anything else is refused.

    Raises:
      TypeError, ValueError: if an argument isn't what it should be.
    """

    _written = "OpenAIModel(...) as model"
    _provider = "openai"
    _sdk: ClassVar[Any] = openai
    _client_type = openai.AsyncOpenAI
    _key_variable = "OPENAI_API_KEY"
    _address_variable = "OPENAI_BASE_URL"

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api: Literal["chat", "responses"] = "chat",
        limiter: Limiter | JointLimiter | None = None,
        price: Price | None = None,
        max_output_tokens: int | None = None,
        context_tokens: int | None = None,
        temperature: float | None = None,
        enforce_schema: bool = True,
        files: Iterable[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if api not in ("chat", "responses"):
            raise ValueError(f'OpenAIModel(api=...) takes "chat" or "responses", not {api!r}')
        self.api: Literal["chat", "responses"] = api
        self._dialect = OpenAIChat() if api == "chat" else OpenAIResponses()
        super().__init__(
            name,
            base_url=base_url,
            api_key=api_key,
            limiter=limiter,
            price=price,
            max_output_tokens=max_output_tokens,
            context_tokens=context_tokens,
            temperature=temperature,
            enforce_schema=enforce_schema,
            files=files,
            options=options,
        )

    def _batch_api(self) -> OpenAIBatches:
        return OpenAIBatches("/v1/chat/completions" if self.api == "chat" else "/v1/responses")

    def _is_compatible(self) -> bool:
        host = urlsplit(str(self._open_clients().clients[0].base_url)).hostname or ""
        return not any(host == own or host.endswith(f".{own}") for own in _OWN_HOSTS)
