"""Answer without asking anybody: a model to try agents out with, which costs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.limits import JointLimiter, Limiter
from harness.models._file import content_in_words
from harness.models._function import FunctionModel
from harness.models._messages import ModelRequest, ModelResponse, ToolCall
from harness.models._price import Price

REFERENCES_AT_MOST = 20
"""How many nested references of a schema are followed; it may refer to itself."""


def simulated_model(limiter: Limiter | JointLimiter | None) -> FunctionModel:
    """Return the model."""
    free = Price(input_usd_per_million_tokens=0, output_usd_per_million_tokens=0)
    return FunctionModel(simulated, limiter=limiter, price=free)


def simulated(request: ModelRequest) -> ModelResponse:
    """Call each tool once, then answer.

    The arguments are made up from the tool's schema, and so is an answer that has to fit one; a
    text answer is the prompt.
    """
    said_by: dict[str, list[str]] = {"user": [], "tool": []}
    for message in request.messages:
        said_by.setdefault(message.role, []).append(content_in_words(message.content))
    said = said_by["tool"]
    prompt = said_by["user"][-1] if said_by["user"] else ""
    if len(said) < len(request.tools):
        asked = request.tools[len(said)]
        arguments = made_up(asked.parameters, prompt)
        return ModelResponse(tool_calls=[ToolCall(f"call_{len(said)}", asked.name, arguments)])
    if request.output_schema is not None:
        # Of the first prompt: a later one may ask for a repair.
        return ModelResponse(json.dumps(made_up(request.output_schema, said_by["user"][0])))
    found = f" (the tools say: {'; '.join(said)})" if said else ""
    return ModelResponse(f"simulated answer to: {prompt}{found}")


def made_up(schema: Mapping[str, Any], text: str, depth: int = 0) -> Any:
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

    def inner(of: Mapping[str, Any]) -> Any:
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
