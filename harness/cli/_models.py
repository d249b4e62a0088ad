"""Open the model that a command line names."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from harness import models
from harness.cli._errors import InputError
from harness.errors import ModelError
from harness.limits import Limiter
from harness.testing.provider import Answer, AnswerToolCall, ProviderRequest, open_provider

FORMS = "openai:NAME, anthropic:NAME, local:PATH or sim"
SIMULATED = "sim"

_CLASSES = {"openai": "OpenAIModel", "anthropic": "AnthropicModel", "local": "LocalModel"}


def check_model(text: str) -> None:
    """Refuse what names no model.

    Raises:
      InputError: if ``text`` has none of the forms.
    """
    kind, _, name = text.partition(":")
    if text != SIMULATED and (kind not in _CLASSES or not name):
        raise InputError(f"--model {text!r} names no model; write {FORMS}")


@asynccontextmanager
async def model_named(text: str, limiter: Limiter | None) -> AsyncIterator[models.Model]:
    """Open a model for the time of a block. Its key comes from the environment alone.

    Raises:
      InputError: if a package or the key is missing, or the model can't be opened.
    """
    kind, _, name = text.partition(":")
    async with AsyncExitStack() as stack:
        try:
            if text == SIMULATED:
                provider = await stack.enter_async_context(open_provider(answer=simulated))
                model: Any = models.OpenAIModel(
                    "simulated", base_url=f"{provider.base_url}/v1", limiter=limiter
                )
            else:
                model = getattr(models, _CLASSES[kind])(name, limiter=limiter)
            opened = await stack.enter_async_context(model)
        except (ImportError, ModelError, OSError, ValueError) as error:
            raise InputError(f"--model {text}: {error}") from error
        yield opened


def simulated(request: ProviderRequest) -> Answer | str:
    """Be a model that costs nothing: call each tool once, then answer.

    The arguments are made up from the tool's schema; a text is the prompt.
    """
    messages = request.body.get("messages", [])
    prompt = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    said = [m["content"] for m in messages if m["role"] == "tool"]
    tools = request.body.get("tools", [])
    if len(said) < len(tools):
        asked = tools[len(said)]["function"]
        arguments = {
            parameter: made_up(schema, str(prompt))
            for parameter, schema in asked.get("parameters", {}).get("properties", {}).items()
        }
        return Answer(tool_calls=(AnswerToolCall(asked["name"], json.dumps(arguments)),))
    found = f" (the tools say: {'; '.join(map(str, said))})" if said else ""
    return f"simulated answer to: {prompt}{found}"


def made_up(schema: dict[str, Any], text: str) -> Any:
    """Return a value that fits a JSON schema, as far as its type says."""
    if "default" in schema:
        return schema["default"]
    for choices in ("enum", "examples"):
        if schema.get(choices):
            return schema[choices][0]
    for other in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return made_up(other, text)
    kind = schema.get("type")
    plain = {"integer": 1, "number": 1.0, "boolean": False, "array": [], "null": None}
    if kind == "object":
        return {name: made_up(of, text) for name, of in schema.get("properties", {}).items()}
    return plain.get(str(kind), text)
