"""Show somebody else's text on a terminal: on one line, and without anything that steers it.

A key, a value or an error may come from a web page. A terminal would obey the escape sequences in
it: they could hide a line, or rename the window.
"""

from __future__ import annotations

import re
import unicodedata

_STEERING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode: controls, marks of direction, halves of pairs, what has no shape, ends of
lines."""

_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^/]*@")
_PASSWORD_OPTION = re.compile(r"(?<=password=)[^&]+")


def shown(text: str, *, most: int | None = None) -> str:
    """Return ``text`` with each character that isn't plainly seen as an escape, cut to a length."""
    cut = most is not None and len(text) > most
    if cut:
        text = f"{text[: max(0, (most or 0) - 3)]}..."
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(one) if unicodedata.category(one) in _STEERING else one for one in text)


def shown_path(path: str) -> str:
    """Return a path as it may be shown: an address without its password."""
    return shown(_PASSWORD_OPTION.sub("***", _PASSWORD.sub(r"\1@", path)))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
