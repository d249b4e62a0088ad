"""Turn an agent's answer into a value of the type asked for.

The model is told the type as a JSON schema: in words, and in the request for providers that can
enforce one. Its answer is validated here in any case.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import msgspec

from harness._words import error_in_words
from harness.agents._json_in_text import Found, find_values, values_in_words
from harness.agents._signatures import why_not
from harness.agents._types import JsonType, read_type


class OutputMisfit(Exception):
    """An answer doesn't fit; the message says why, in words for the model."""


@attrs.frozen(eq=False)
class OutputType:
    """What an answer must be."""

    schema: dict[str, Any]
    """The JSON schema of the type."""

    _type: JsonType

    @property
    def instructions(self) -> str:
        """What the model is told about the form of its answer."""
        schema = msgspec.json.encode(self.schema).decode()
        return (
            "Give your final answer as JSON alone, with no other text, so that it satisfies this "
            f"JSON schema: {schema}"
        )

    def convert(self, plain: Any) -> Any:
        """Return the value that JSON holds, as `Agent.output_as_json` gave it."""
        return self._type.convert(plain)

    def parse(self, text: str) -> tuple[Any, str]:
        """Return the value that the answer holds, and what the model thought aloud before it.

        Of several values, the last that fits is the answer: models correct themselves.

        Raises:
          OutputMisfit: if none fits.
        """
        try:
            return self._type.decode(text), ""
        except Exception as error:  # From JSON that is none, or a check of the type itself.
            misfit = error
        found = find_values(text)
        for value in reversed(found.values):
            try:
                return self._fit(value), found.reasoning
            except Exception as error:
                misfit = error if value is found.values[-1] else misfit
        for value in self._less_likely(found):
            with contextlib.suppress(Exception):
                return self._fit(value), found.reasoning
        raise OutputMisfit(
            str(misfit) if isinstance(misfit, msgspec.DecodeError) else error_in_words(misfit)
        ) from misfit

    def _fit(self, value: str) -> Any:
        try:
            return self._type.decode(value)
        except Exception:
            with contextlib.suppress(Exception):
                return self._type.convert_loosely(json.loads(value))
            raise

    def _less_likely(self, found: Found) -> Iterator[str]:
        """Yield values that only a type which fits nothing else can mean."""
        for value in reversed(found.values):
            yield from self._unwrapped(value)
        if found.values:
            yield f"[{','.join(found.values)}]"  # One after the other, instead of a list.
            return
        named = _named(self._words, found.rest)
        if len(named) == 1:
            yield json.dumps(named[0])
        yield from values_in_words(found.rest)

    def _unwrapped(self, value: str) -> Iterator[str]:
        """Yield what is in a value that has only one thing in it that fits: it is wrapped in it."""
        outer = json.loads(value)
        if isinstance(outer, list) and len(outer) != 1:
            return
        inside: list[str] = []
        for one in outer.values() if isinstance(outer, dict) else outer:
            text = one if isinstance(one, str) and one[:1] in ("{", "[") else json.dumps(one)
            with contextlib.suppress(Exception):
                self._fit(text)
                inside.append(text)
        if len(inside) == 1:
            yield inside[0]

    @property
    def _words(self) -> list[str]:
        """The strings that the type names, if it is a choice of some."""
        forms = [self.schema, *self.schema.get("anyOf", ()), *self.schema.get("$defs", {}).values()]
        if any(form.get("type") == "object" for form in forms):
            return []
        words = [word for form in forms for word in (*form.get("enum", ()), form.get("const"))]
        return [word for word in words if isinstance(word, str)]


def _named(words: list[str], text: str) -> list[str]:
    """Return those of the words that are in the text; spelt otherwise only if none is as it is."""
    for flags in (0, re.IGNORECASE):
        found = [one for one in words if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", text, flags)]
        if found:
            return found
    return []


def read_output_type(output_type: Any) -> OutputType | None:
    """Return how to read answers as ``output_type``; None for plain text.

    Raises:
      TypeError: if the type can't be made from JSON.
    """
    if output_type is None or output_type is str:
        return None
    try:
        read = read_type(output_type)
        return OutputType(read.schema, read)
    except TypeError as error:
        raise TypeError(
            f"Agent(output_type=...) can't make {output_type!r} out of JSON: {why_not(error)}; "
            "give a plain type such as list[str], a dataclass, attrs or msgspec class of such, or "
            "a pydantic model"
        ) from error
