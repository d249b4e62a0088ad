"""Count tokens without a tokenizer, the same on every machine.

One token per four characters of text, rounded up. The text of a request is every string in its
messages, instructions and tools, but not roles, types and ids. Images, recordings and documents
count by the public rule of whoever serves the API, in `harness.models._file_sizes`.
Real tokenizers come close to this for English; what matters here is that a test can compute the
number by hand.
"""

from __future__ import annotations

CHARACTERS_PER_TOKEN = 4

_NOT_TEXT = frozenset(
    {
        "role",
        "type",
        "id",
        "call_id",
        "tool_call_id",
        "tool_use_id",
        "status",
        "url",
        "image_url",
        "data",
        "media_type",
        "file_data",
        "file_id",
        "cache_control",
    }
)


def count_tokens(characters: int) -> int:
    """Return how many tokens a text with this many characters counts as."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def count_characters(*parts: object) -> int:
    """Return how many characters of text are anywhere in parts of a request.

    It keeps its own list instead of recursing, because how deeply a body is nested is up to whoever
    sent it.
    """
    total = 0
    pending = list(parts)
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, dict):
            pending.extend(value for key, value in part.items() if key not in _NOT_TEXT)
        elif isinstance(part, list):
            pending.extend(part)
    return total
