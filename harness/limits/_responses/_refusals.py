"""Read the provider's response off an error that a client library raised for it.

A function that calls a provider under a reservation may raise the library's error and settle
nothing. The error carries the response, so the pause it asks for needn't be lost.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.limits._responses._headers import HeaderSource


class Response(NamedTuple):
    """What is known of a provider's response, from its caller or from an error."""

    status: int | None
    headers: HeaderSource
    body: object


ANSWERED = Response(None, None, None)
"""A response of which nothing is known but that it was one."""


def response_of(error: BaseException) -> Response | None:
    """Return the response that ``error`` carries, or ``None`` if it is another kind of error.

    It looks at ``status_code``, ``status`` and ``response.status_code``, and at ``headers``
    and ``response.headers``, as the libraries of all large providers name them.
    """
    response = _attribute(error, "response")
    status = None
    for holder, name in (
        (error, "status_code"),
        (error, "status"),
        (response, "status_code"),
        (response, "status"),
    ):
        value = _attribute(holder, name)
        if isinstance(value, int) and not isinstance(value, bool):
            status = value
            break
    if status is None:
        return None
    headers = _attribute(error, "headers")
    if headers is None:
        headers = _attribute(response, "headers")
    return Response(status, headers, _attribute(error, "body"))


def _attribute(holder: object, name: str) -> object:
    # Somebody else's property may do anything, and this runs while the real error is passing.
    try:
        return getattr(holder, name, None)
    except Exception:
        return None
