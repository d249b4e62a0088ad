"""The simulated provider with the models that can ask it, for the tests in this folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from harness.models import AnthropicModel, Message, ModelRequest, ModelResponse, OpenAIModel
from harness.testing.provider import Provider, open_provider

ProviderModel: TypeAlias = OpenAIModel | AnthropicModel

WAYS = ("chat", "responses", "messages")
"""The dialects that the simulated provider speaks, and models for each."""


def make_model(way: str, base_url: str, **options: Any) -> ProviderModel:
    """Return a model, not opened yet."""
    options = {"api_key": "any", **options}
    if way == "messages":
        return AnthropicModel("m", base_url=base_url, **options)
    return OpenAIModel("m", base_url=f"{base_url}/v1", api=way, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def open_model(
    way: str, *, options: dict[str, Any] | None = None, **provider_options: Any
) -> AsyncGenerator[tuple[ProviderModel, Provider]]:
    """Open a provider, and a model that asks it."""
    async with (
        open_provider(**provider_options) as provider,
        make_model(way, provider.base_url, **(options or {})) as model,
    ):
        yield model, provider


def ask(text: str) -> ModelRequest:
    """Return a request of one message."""
    return ModelRequest([Message("user", text)])


async def read(model: ProviderModel, request: ModelRequest) -> tuple[str, ModelResponse]:
    """Read a stream to its end; return the text of its pieces and the whole."""
    pieces: list[str] = []
    whole = None
    async with model.stream(request) as stream:
        async for piece in stream:
            if isinstance(piece, ModelResponse):
                whole = piece
            else:
                pieces.append(piece)
    assert whole is not None
    return "".join(pieces), whole
