"""Write a table as text, its columns aligned, for a terminal or a report."""

from __future__ import annotations

from collections.abc import Sequence

NUMERIC = frozenset("0123456789.,-%")


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a line per row. Columns of numbers are aligned to the right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(NUMERIC.issuperset(cell) for cell in column[1:]) for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in (head, *rows)
    )
