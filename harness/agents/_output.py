"""Turn an agent's answer into a value of the type asked for.

The model is told the type as a JSON schema: in words, and in the request for providers that can
enforce one. Its answer is validated here in any case.
"""

from __future__ import annotations

import re
from typing import Any

import attrs
import msgspec

from harness._words import error_in_words
from harness.agents._signatures import why_not
from harness.agents._types import JsonType, read_type

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.DOTALL)


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

    def parse(self, text: str) -> Any:
        """Return the value that the answer holds.

        Raises:
          OutputMisfit: if it isn't JSON, or doesn't fit the type.
        """
        try:
            try:
                return self._type.decode(text)
            except msgspec.DecodeError:
                # Models like to wrap JSON in a fence, with a friendly word before it.
                fenced = _FENCED.search(text)
                if fenced is None:
                    raise
                return self._type.decode(fenced[1])
        except msgspec.DecodeError as error:
            raise OutputMisfit(str(error)) from error
        except Exception as error:
            raise OutputMisfit(error_in_words(error)) from error  # From a check of the type itself.


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
