"""Choose orders in which things can arrive: all if they are few, or else a telling selection.

First come the orders that find most with the fewest trials: as recorded, reversed, each one first,
each one last, each swapped with its neighbour. Random ones follow, each at most once.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

Order = tuple[int, ...]


def arrival_orders(count: int, *, at_most: int, seed: int) -> Iterator[Order]:
    """Yield different orders of ``count`` things, the recorded one first."""
    if math.factorial(min(count, 170)) <= at_most:
        yield from itertools.permutations(range(count))
        return
    seen: set[Order] = set()
    for order in itertools.chain(_telling(count), _random(count, seed)):
        if order not in seen:
            seen.add(order)
            yield order
            if len(seen) == at_most:
                return


def _telling(count: int) -> Iterator[Order]:
    places = tuple(range(count))
    yield places
    yield places[::-1]
    for place in places:
        others = places[:place] + places[place + 1 :]
        yield (place, *others)
        yield (*others, place)
    for place in places[:-1]:
        yield (*places[:place], place + 1, place, *places[place + 2 :])


def _random(count: int, seed: int) -> Iterator[Order]:
    draw = random.Random(seed)
    places = list(range(count))
    while True:
        draw.shuffle(places)
        yield tuple(places)
