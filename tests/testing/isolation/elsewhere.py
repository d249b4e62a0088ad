"""State of a module that agents import in their functions, or reach by names in strings."""

NOTES: list[str] = []

setting = ""

chosen = ""


class Session:
    """Whose turn it is."""

    user: str | None = None
