"""Small request bodies for the tests of the simulated provider."""

from __future__ import annotations

from typing import Any

from harness.testing.provider import ProviderRequest

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
PATHS = (CHAT, RESPONSES, MESSAGES)


def ask(path: str, prompt: str = "hello", **more: Any) -> dict[str, Any]:
    """Return the smallest body that asks ``prompt`` in the dialect of ``path``."""
    if path == RESPONSES:
        return {"model": "test", "input": prompt, **more}
    body: dict[str, Any] = {"model": "test", "messages": [{"role": "user", "content": prompt}]}
    if path == MESSAGES:
        body["max_tokens"] = 100
    return {**body, **more}


def echo(request: ProviderRequest) -> str:
    """Answer with the prompt."""
    return request.prompt
