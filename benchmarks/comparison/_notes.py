"""Keep notes of runs in two places that leak everywhere, and say which runs saw another's."""

from collections.abc import Iterable
from contextvars import ContextVar

RUNS = range(20)

of_the_module: list[int] = []
filled_before: ContextVar[list[int]] = ContextVar("filled_before", default=[])  # noqa: B039


def take(number: int, *own: list[int]) -> None:
    """Note this run's number in every place."""
    for notes in (of_the_module, filled_before.get(), *own):
        notes.append(number)


def saw_others(own: Iterable[object]) -> tuple[bool, ...]:
    """Return, for each place, whether it has the notes of more than one run."""
    return tuple(len(set(notes)) > 1 for notes in (of_the_module, filled_before.get(), own))


def show(seen: Iterable[tuple[bool, ...]], *, offered: str) -> None:
    """Print in how many runs each place had another run's notes."""
    module, variable, own = map(sum, zip(*seen, strict=True))
    print(f"a list of the module: {module} of {len(RUNS)}")
    print(f"a context variable that was filled before: {variable} of {len(RUNS)}")
    print(f"what it has for a run: {own} of {len(RUNS)} ({offered})")
