"""Put somebody else's objects into words, whatever they do when asked.

A message about an error mustn't raise another: the ``__repr__`` of a key and the ``__str__`` of an
exception are the user's code.
"""

from __future__ import annotations

import re

from harness.errors import JournaledError

WORDS_AT_MOST = 300
"""How many characters of somebody else's text a message quotes."""

NAME_AT_MOST = 10_000
"""How many characters of a name people read; the path of a run deep down may have as many."""

GROUP_AT_MOST = 10
"""How many errors of an exception group a message quotes."""


def repr_of(value: object) -> str:
    """Return ``repr(value)``, shortened; or its type, if asking raises."""
    try:
        return _short(repr(value))
    except Exception:
        return f"<{type(value).__name__}, whose repr raises>"


def error_in_words(error: BaseException, *, at_most: int = WORDS_AT_MOST) -> str:
    """Return ``Type: message``, shortened; or only the type, if there is no message."""
    name = type(error).__name__
    try:
        text = _short(str(error), at_most)
    except Exception:
        return f"{name} (its text could not be read)"
    return f"{name}: {text}" if text else name


def errors_in_words(error: BaseException, *, at_most: int = WORDS_AT_MOST) -> str:
    """Return `error_in_words`, plus what an exception group holds, independent of its order."""
    words = error_in_words(error, at_most=at_most)
    if not isinstance(error, BaseExceptionGroup):
        return words
    held = sorted(errors_in_words(one, at_most=at_most) for one in error.exceptions)
    more = "" if len(held) <= GROUP_AT_MOST else f", and {len(held) - GROUP_AT_MOST} more"
    return f"{words}: [{', '.join(held[:GROUP_AT_MOST])}{more}]"


_SECRETS = r"""
    (?P<named>
      ["']? \b \w* (?: (?: api | access | private | auth ) [_-]? key | token | secret | passwd
        | password | authorization | cookie ) \b ["']?
      (?: \s* [:=] | (?<=["']) \s* , (?= \s* [bru]? ["'] ) ) \s*
      (?: [bru]? ["'] )? (?: (?: bearer | basic ) \s+ )?
    ) [^\s"',;)\]}]{6,}
    | (?P<scheme> \b (?: bearer | basic ) \s+ ) [\w.~+/=-]{8,}
    | (?P<user> :// [^\s/:@]* : ) [^\s/@]+ (?= @ )
    | \b (?: sk | pk | rk | xox[abps] ) - [\w-]{8,}
    | \b gh[pousr]_ \w{8,}
    | \b AKIA [0-9A-Z]{12,}
    | \b AIza [\w-]{20,}
    | \b (?: hf_ | glpat- ) \w{8,}
    | \b eyJ [\w-]{8,500} \. [\w-]{8,} (?: \. [\w-]* )?
    """
"""Compiled when first needed, because that would slow down ``import harness``."""

_LOOKED_AT_MOST = 20 * WORDS_AT_MOST


_HINTS = r"key|token|secret|passw|authoriz|bearer|basic|://|[spr]k-|xox[abps]-|gh[pousr]_|akia|aiza|hf_|glpat|eyj|cookie"
"""What every secret has in it: looking for this first is ten times as fast."""


def masked(text: str) -> str:
    """Return a text without anything that looks like a secret: keys, tokens, passwords."""
    if not re.search(_HINTS, text, re.IGNORECASE):
        return text
    return re.sub(_SECRETS, _without_secret, text, flags=re.IGNORECASE | re.VERBOSE)


def harmless(text: str) -> str:
    """Return a text without secrets, on one line, and with nothing in it that a terminal obeys.

    Of a very long one, its beginning and its end.
    """
    if len(text) > NAME_AT_MOST:
        text = f"{text[: NAME_AT_MOST // 2]}...{text[-NAME_AT_MOST // 2 :]}"
    text = masked(text)
    if text.isprintable():
        return text
    return "".join([sign if sign.isprintable() else repr(sign)[1:-1] for sign in text])


def masked_repr_of(value: object) -> str:
    """Return `repr_of` with anything removed that looks like a secret: keys, tokens, passwords."""
    try:
        text = repr(value)[:_LOOKED_AT_MOST]
    except Exception:
        return repr_of(value)
    return _short(masked(text))


def _without_secret(found: re.Match[str]) -> str:
    return f"{found['named'] or found['scheme'] or found['user'] or ''}[key]"


def _short(text: str, at_most: int = WORDS_AT_MOST) -> str:
    return text if len(text) <= at_most else f"{text[:at_most]}..."


def told(error: BaseException) -> tuple[str, str]:
    """Return the name and the words of an error, whatever its ``__str__`` does."""
    if isinstance(error, JournaledError):
        return error.type_name, error.message
    try:
        words = str(error)
    except Exception as broken:
        words = f"(its message can't be shown: {type(broken).__name__})"
    return type(error).__name__, words
