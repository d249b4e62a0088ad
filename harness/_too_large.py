"""Read from a refusal whether the request alone is above the limit, so that no wait can help.

Providers refuse such a request with the status of a full limit, and only the text tells the two
apart: "Limit 30000, Requested 45000".
"""

from __future__ import annotations

import re

_LONGEST_TEXT = 4_000
_NUMBERS = re.compile(
    r"\blimit:?\s{0,3}([0-9][0-9,]{0,18})\b.{0,80}?\brequested:?\s{0,3}([0-9][0-9,]{0,18})\b",
    re.IGNORECASE | re.DOTALL,
)
_WORDS = re.compile(r"\brequest(?: is)? too large\b", re.IGNORECASE)


def is_above_limit(text: str) -> bool:
    """Return whether ``text`` says that a request can't succeed at any time."""
    text = text[:_LONGEST_TEXT]
    numbers = _NUMBERS.search(text)
    if numbers is None:
        return _WORDS.search(text) is not None
    limit, requested = (int(number.replace(",", "")) for number in numbers.groups())
    return requested > limit
