"""Put somebody else's objects into words, whatever they do when they are asked.

A message about an error must not raise another: the ``__repr__`` of a key and the ``__str__`` of an
exception are the user's code.
"""

from __future__ import annotations

import re

WORDS_AT_MOST = 300
"""Characters of a foreign object's text that a message quotes."""

GROUP_AT_MOST = 10
"""Errors of an exception group that a message quotes."""


def repr_of(value: object) -> str:
    """Return ``repr(value)``, shortened; or its type, if asking raises."""
    try:
        return _short(repr(value))
    except Exception:
        return f"<{type(value).__name__}, whose repr raises>"


def error_in_words(error: BaseException, *, at_most: int = WORDS_AT_MOST) -> str:
    """Return ``Type: message``, shortened; or the type alone, if there is none to be had."""
    name = type(error).__name__
    try:
        text = _short(str(error), at_most)
    except Exception:
        return f"{name} (its text could not be read)"
    return f"{name}: {text}" if text else name


def errors_in_words(error: BaseException, *, at_most: int = WORDS_AT_MOST) -> str:
    """Return `error_in_words`, with what an exception group holds, whatever order it came in."""
    words = error_in_words(error, at_most=at_most)
    if not isinstance(error, BaseExceptionGroup):
        return words
    held = sorted(errors_in_words(one, at_most=at_most) for one in error.exceptions)
    more = "" if len(held) <= GROUP_AT_MOST else f", and {len(held) - GROUP_AT_MOST} more"
    return f"{words}: [{', '.join(held[:GROUP_AT_MOST])}{more}]"


_SECRETS = r"""
    (?P<named>
      ["']? \b \w* (?: api_?key | token | secret | passwd | password | authorization ) \b ["']?
      \s* [:=] \s* (?: [bru]? ["'] )? (?: (?: bearer | basic ) \s+ )?
    ) [^\s"',;)\]}]{6,}
    | (?P<scheme> \b (?: bearer | basic ) \s+ ) [\w.~+/=-]{8,}
    | (?P<user> :// [^\s/:@]+ : ) [^\s/@]+ (?= @ )
    | \b (?: sk | pk | rk | xox[abps] ) - [\w-]{8,}
    | \b gh[pousr]_ \w{8,}
    | \b AKIA [0-9A-Z]{12,}
    """
"""Compiled when it is first needed: that would be felt in ``import harness``."""

_LOOKED_AT_MOST = 20 * WORDS_AT_MOST


def masked_repr_of(value: object) -> str:
    """Return `repr_of` with what looks like a secret taken out: keys, tokens, passwords."""
    try:
        text = repr(value)[:_LOOKED_AT_MOST]
    except Exception:
        return repr_of(value)
    return _short(re.sub(_SECRETS, _without_secret, text, flags=re.IGNORECASE | re.VERBOSE))


def _without_secret(found: re.Match[str]) -> str:
    return f"{found['named'] or found['scheme'] or found['user'] or ''}[key]"


def _short(text: str, at_most: int = WORDS_AT_MOST) -> str:
    return text if len(text) <= at_most else f"{text[:at_most]}..."
