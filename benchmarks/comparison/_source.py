"""A source of 500 items that knows how far ahead of what is done it is read."""

from collections.abc import Iterator

COUNT = 500
AT_ONCE = 10


class Source:
    """Yields numbers. Count each that is done with `done`."""

    def __init__(self) -> None:
        self.taken = 0
        self.ended = 0
        self.most_ahead = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(COUNT):
            self.taken += 1
            self.most_ahead = max(self.most_ahead, self.taken - self.ended)
            yield number

    def done(self) -> None:
        """Note that an item is done."""
        self.ended += 1


def show(*, plain: Source | str, bounded: Source | str, order: str) -> None:
    """Print how far ahead each was read, or what there is instead."""
    for what, source in (("taken ahead, plainly", plain), ("taken ahead, bounded", bounded)):
        print(f"{what}: {source if isinstance(source, str) else f'{source.most_ahead:,}'}")
    print(f"order of results: {order}")
