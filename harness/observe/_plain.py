"""Make somebody else's text fit to be shown: on a line of a terminal, in a page, in a file.

Names of runs, keys and errors are whatever the user's data says. Here they lose what would act on a
terminal or reorder a line, what looks like a secret, and what is too long. What a browser would
take for markup stays: the pages insert text only as text.
"""

from __future__ import annotations

import re

from harness._words import masked

SHOWN_AT_MOST = 300
"""How many characters of a name or a message are shown."""

# Control characters, those that change the direction of a line, and halves of surrogate pairs.
_UNSHOWABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def plain(text: object, *, at_most: int = SHOWN_AT_MOST) -> str:
    """Return ``text`` as one harmless line of at most ``at_most`` characters, and a mark if cut."""
    words = f"{text}"
    # A secret that is cut in two is no longer recognized, so look at a bit more than is shown.
    shown = masked(words[: at_most + 200])
    if len(words) > at_most:
        shown = f"{shown[:at_most]}..."
    return _UNSHOWABLE.sub(_escaped, shown)


def plain_lines(text: str, *, at_most: int) -> str:
    """Return ``text`` as `plain` does, but with its line breaks."""
    # By line, because looking for secrets takes long where any of it looks like one.
    cut = f"{text[:at_most]}..." if len(text) > at_most else text
    return "\n".join(plain(line, at_most=at_most) for line in cut.split("\n"))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")
