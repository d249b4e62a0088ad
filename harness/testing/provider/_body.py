"""Read a request's JSON body, whoever sent it.

What gets through is an object that can be written as JSON again, even inside a few more brackets,
and walked by recursive functions.
"""

from __future__ import annotations

import json
from typing import NoReturn

from harness.testing.provider._dialect import JSONObject, UnreadableRequest

# Deeper than any real request, and far below Python's own limit.
MAX_NESTING = 200


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def read_body(content: bytes) -> JSONObject:
    """Return the JSON object that ``content`` is.

    Raises:
      UnreadableRequest: if it isn't JSON, isn't an object, or is nested too deeply.
    """
    try:
        body = _DECODER.decode(content.decode())
    except (ValueError, RecursionError) as error:
        raise UnreadableRequest(f"the body isn't JSON in UTF-8: {str(error)[:120]}") from error
    if not isinstance(body, dict):
        raise UnreadableRequest(f"the body is JSON of type {type(body).__name__}, not an object")
    # Counting brackets is quick, and clears the usual body of being nested too deeply.
    if content.count(b"[") + content.count(b"{") > MAX_NESTING and _nested_too_deep(body):
        raise UnreadableRequest(f"the body is nested deeper than {MAX_NESTING} levels")
    return body


def _nested_too_deep(body: JSONObject) -> bool:
    level: list[object] = [body]
    for _ in range(MAX_NESTING):
        inner: list[object] = []
        for value in level:
            children = value.values() if isinstance(value, dict) else value
            assert isinstance(children, (list, type(body.values())))
            inner.extend(child for child in children if isinstance(child, (dict, list)))
        if not inner:
            return False
        level = inner
    return True
