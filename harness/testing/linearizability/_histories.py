"""Tell whether calls that overlapped gave what some order of them, one after the other, gives.

That is *linearizability* (Herlihy and Wing, 1990): each call seems to take effect at one moment
between its beginning and its end. The search is Wing and Gong's (1993): take a call that nothing
had to precede, see whether it gives the same next in the order so far, and go on; if it doesn't, go
back. As Lowe does (2017), what was tried before isn't tried again: the same calls done, and the
object in the same state. Calls that never return are judged as by Burckhardt et al. (Line-Up,
2010): there must be an order of the others after which such a call doesn't return either.

No model of the object is needed: what an order gives is found out by running it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import attrs

from harness.testing._outcomes import Outcome


@attrs.define(eq=False)
class Call:
    """A call of an operation, and when it began and ended among all such events."""

    task: int
    operation: int
    began: int
    ended: int | None = None
    """None if it never returned."""

    outcome: Outcome | None = None


class Sequential(Protocol):
    """What the object does if its operations are called one after the other."""

    def outcome(self, order: tuple[int, ...]) -> Outcome | None:
        """Return how the last of these operations ends; None if one of them never returns."""
        ...

    def state(self, order: tuple[int, ...]) -> Hashable:
        """Return something that is equal for two orders only if they leave equal objects."""
        ...


def is_linearizable(
    calls: Sequence[Call], sequential: Sequential, same: Callable[[Outcome, Outcome], bool]
) -> bool:
    """Return whether some order of the calls, one after the other, gives what they gave."""
    returned = [call for call in calls if call.ended is not None]
    stuck = [call for call in calls if call.ended is None]

    def fits(order: tuple[int, ...], call: Call) -> bool:
        got, alone = call.outcome, sequential.outcome(order)
        return got is not None and alone is not None and same(alone, got)

    def never_returns(call: Call, order: tuple[int, ...]) -> bool:
        return sequential.outcome((*order, call.operation)) is None

    ends: list[Callable[[tuple[int, ...]], bool]] = [partial(never_returns, call) for call in stuck]
    ends = ends or [lambda order: True]
    return all(_search(returned, sequential, fits, ends_well) for ends_well in ends)


def _search(
    calls: Sequence[Call],
    sequential: Sequential,
    fits: Callable[[tuple[int, ...], Call], bool],
    ends_well: Callable[[tuple[int, ...]], bool],
) -> bool:
    tried: set[tuple[frozenset[Call], Hashable]] = set()
    pending: list[tuple[frozenset[Call], tuple[int, ...]]] = [(frozenset(), ())]
    while pending:
        done, order = pending.pop()
        if len(done) == len(calls):
            if ends_well(order):
                return True
            continue
        for call in next_calls([one for one in calls if one not in done]):
            longer, more = (*order, call.operation), done | {call}
            if fits(longer, call) and (key := (more, sequential.state(longer))) not in tried:
                tried.add(key)
                pending.append((more, longer))
    return False


def next_calls(calls: Iterable[Call]) -> list[Call]:
    """Return the calls that may come first: none of the others had ended when they began."""
    left = list(calls)
    first_end = min((call.ended for call in left if call.ended is not None), default=None)
    return [call for call in left if first_end is None or call.began < first_end]


def orders(calls: Sequence[Call]) -> Iterator[tuple[Call, ...]]:
    """Yield every order of calls in which one that had ended comes before one that began later."""
    if not calls:
        yield ()
    for first in next_calls(calls):
        for rest in orders([call for call in calls if call is not first]):
            yield (first, *rest)
