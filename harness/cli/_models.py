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

SIMULATED = "sim"

REFERENCES_AT_MOST = 20
"""How many nested references of a schema are followed; it may refer to itself."""

_CLASSES = {"openai": "OpenAIModel", "anthropic": "AnthropicModel", "local": "LocalModel"}


@asynccontextmanager
async def model_named(text: str, limiter: Limiter | None) -> AsyncIterator[models.Model]:
    """Open a model for the duration of a block. Its key comes only from the environment.

    Raises:
      InputError: if a package or the key is missing, or the model can't be opened.
    """
    kind, _, name = text.partition(":")
    async with AsyncExitStack() as stack:
        try:
            if text == SIMULATED:
                provider = await stack.enter_async_context(open_provider(answer=simulated))
                model: Any = models.OpenAIModel(
                    "simulated",
                    base_url=f"{provider.base_url}/v1",
                    limiter=limiter,
                    price=models.Price(
                        input_usd_per_million_tokens=0, output_usd_per_million_tokens=0
                    ),
                )
            else:
                model = getattr(models, _CLASSES[kind])(name, limiter=limiter)
            opened = await stack.enter_async_context(model)
        except (ImportError, ModelError, OSError, ValueError) as error:
            raise InputError(f"--model {text}: {error}") from error
        yield opened


def simulated(request: ProviderRequest) -> Answer | str:
    """Act as a model that costs nothing: call each tool once, then answer.

    The arguments are made up from the tool's schema, and so is an answer that has to fit one; a
    text answer is the prompt.
    """
    messages = request.body.get("messages", [])
    prompt = str(next((m["content"] for m in reversed(messages) if m["role"] == "user"), ""))
    said = [m["content"] for m in messages if m["role"] == "tool"]
    tools = request.body.get("tools", [])
    if len(said) < len(tools):
        asked = tools[len(said)]["function"]
        arguments = made_up(asked.get("parameters", {}), prompt)
        return Answer(tool_calls=(AnswerToolCall(asked["name"], json.dumps(arguments)),))
    schema = _schema_of_answer(messages)
    if schema is not None:
        first = next(m["content"] for m in messages if m["role"] == "user")
        return json.dumps(made_up(schema, str(first)))  # Not what a repair turn says.
    found = f" (the tools say: {'; '.join(map(str, said))})" if said else ""
    return f"simulated answer to: {prompt}{found}"


def _schema_of_answer(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the schema that an agent with an ``output_type`` puts last in its instructions."""
    system = next((str(m["content"]) for m in messages if m["role"] == "system"), "")
    try:
        schema = json.loads(system.rpartition("JSON schema: ")[2])
    except ValueError:
        return None
    return schema if isinstance(schema, dict) else None


def made_up(schema: dict[str, Any], text: str, depth: int = 0) -> Any:
    """Return a value that fits a JSON schema, as far as its types go."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and depth < REFERENCES_AT_MOST:
        named = schema.get("$defs", {}).get(reference.rpartition("/")[2], {})
        return made_up({**named, "$defs": schema.get("$defs", {})}, text, depth + 1)
    for given in ("default", "const"):
        if given in schema:
            return schema[given]
    for choices in ("enum", "examples"):
        if schema.get(choices):
            return schema[choices][0]

    def inner(of: dict[str, Any]) -> Any:
        return made_up({"$defs": schema.get("$defs", {}), **of}, text, depth)

    for other in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return inner(other)
    kind = schema.get("type")
    plain = {"integer": 1, "number": 1.0, "boolean": False, "null": None}
    if kind == "array":
        return [inner(of) for of in schema.get("prefixItems", ())]
    if kind == "object":
        return {name: inner(of) for name, of in schema.get("properties", {}).items()}
    return plain.get(str(kind), text)
