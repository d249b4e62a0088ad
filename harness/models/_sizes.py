"""Guess how many tokens a text has, before the provider has counted them.

Four bytes to a token: right to within a third for most languages and models, and good enough for a
guess that the provider's own count replaces as soon as the answer is there.
"""

from __future__ import annotations

from harness.models._file_sizes import file_tokens
from harness.models._messages import ModelRequest, ModelResponse, Usage

_BYTES_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4  # What a provider adds around each.


def text_tokens(text: str) -> int:
    """Return about how many tokens ``text`` has."""
    # In bytes, because in many scripts a letter is a token or more.
    size_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size_bytes // _BYTES_PER_TOKEN)


def request_tokens(request: ModelRequest, provider: str | None = None) -> int:
    """Return about how many tokens of input a request has.

    Args:
      request: The request.
      provider: Whose rule counts for files; see `file_tokens`.
    """
    tokens = 0
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            tokens += _TOKENS_PER_MESSAGE + text_tokens(content)
        else:
            tokens += _TOKENS_PER_MESSAGE + text_tokens(message.text)
            tokens += sum(file_tokens(file, provider) for file in message.files)
        for call in message.tool_calls:
            tokens += text_tokens(call.name) + text_tokens(str(call.arguments))
    for tool in request.tools:
        tokens += text_tokens(tool.name) + text_tokens(tool.description)
        tokens += text_tokens(str(tool.parameters))
    if request.output_schema is not None:
        tokens += text_tokens(str(request.output_schema))
    return tokens


def response_tokens(response: ModelResponse) -> int:
    """Return about how many tokens of output a response has."""
    tokens = text_tokens(response.content)
    for call in response.tool_calls:
        tokens += text_tokens(call.name) + text_tokens(str(call.arguments))
    return tokens


def usage_of(request: ModelRequest, response: ModelResponse, provider: str | None = None) -> Usage:
    """Return what was used: as the response says, or else a guess."""
    if response.usage.total:
        return response.usage
    return Usage(request_tokens(request, provider), response_tokens(response))
