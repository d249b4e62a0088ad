"""Read the comments that say that something is shared on purpose, and why."""

from __future__ import annotations

import io
import re
import tokenize

import attrs

from harness.testing.audit._finding import Rule

NO_REASON = Rule(
    name="silence-without-reason",
    title="a comment that silences without saying why",
    why="whoever reads the code next has to find out again whether it is right to share this",
    fix="write why it may be shared: # harness: shared (filled at import, constant after that)",
)

_COMMENT = re.compile(r"#\s*harness:\s*shared\b\s*(?:\((?P<reason>.*)\))?")


@attrs.frozen
class Silence:
    """One such comment."""

    line: int
    column: int
    reason: str
    alone: bool
    """Whether the line holds nothing else; then it is about the next line of code."""


def silences_in(text: str) -> list[Silence]:
    """Return the comments of a file, in order."""
    found: list[Silence] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                match = _COMMENT.search(token.string)
                if match is not None:
                    line, column = token.start
                    alone = not token.line[:column].strip()
                    reason = (match["reason"] or "").strip()
                    found.append(Silence(line, column + match.start() + 1, reason, alone))
    except (tokenize.TokenError, SyntaxError):
        pass  # The parser reports what is wrong with the file.
    return found


def silenced_lines(silences: list[Silence], text: str) -> set[int]:
    """Return the lines that comments with a reason are about."""
    lines = text.splitlines()
    silenced: set[int] = set()
    for silence in silences:
        if not silence.reason:
            continue
        line = silence.line
        if silence.alone:
            while line < len(lines) and (
                not lines[line].strip() or lines[line].lstrip().startswith("#")
            ):
                line += 1
            line += 1
        silenced.add(line)
    return silenced
