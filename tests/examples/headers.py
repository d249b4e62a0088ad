"""Read what an example script promises to print."""

import inspect
import textwrap
from types import ModuleType

LABEL = "Prints:"


def promised_output(script: ModuleType) -> list[str]:
    """Return the lines after ``Prints:`` in the script's docstring, up to the next blank line."""
    header = inspect.getdoc(script) or ""
    _, label, promise = header.partition(f"\n{LABEL}")
    assert label, f"{script.__name__} doesn't say what it prints"
    block = promise.partition("\n\n")[0]
    return textwrap.dedent(" " * len(LABEL) + block).strip("\n").splitlines()
