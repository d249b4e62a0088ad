"""What a line loads is told without running it, or any code of the user's."""

from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

from harness.testing.objects._loads import MISSING, Spot, is_at_await, spot_of, touches


class Slotted:
    __slots__ = ("empty", "full")

    kind = "slotted"

    def __init__(self) -> None:
        self.full = 1


class Lazy:
    asked = 0

    @property
    def costly(self) -> int:
        Lazy.asked += 1
        return 1


SETTINGS = SimpleNamespace(name="x")


def sample(thing: Any, slotted: Any, lazy: Lazy) -> Iterator[Any]:
    yield None
    yield thing.inner.held, slotted.full, slotted.empty, slotted.kind, lazy.costly, SETTINGS.name


def frame_of(*arguments: Any) -> FrameType:
    generator = sample(*arguments)
    next(generator)
    frame: FrameType = generator.gi_frame  # type: ignore[attr-defined]
    assert frame is not None
    assert is_at_await(frame)
    frames.append(generator)
    return frame


frames: list[object] = []


def test_each_kind_of_attribute_is_followed_to_where_it_is_kept() -> None:
    inner = SimpleNamespace(held=[])
    thing = SimpleNamespace(inner=inner)
    slotted = Slotted()
    frame = frame_of(thing, slotted, Lazy())
    line = sample.__code__.co_firstlineno + 2
    loaded = {touch.name: touch for touch in touches(frame, Spot(line, frame.f_lasti))}
    assert loaded["thing"].value is thing
    assert loaded["thing"].owner is sample.__code__
    assert loaded["inner"].owner is thing
    assert loaded["held"].owner is inner
    assert loaded["held"].value is inner.held
    assert loaded["full"].owner is slotted
    assert loaded["full"].value == 1
    assert loaded["empty"].value is MISSING
    assert loaded["kind"].owner is Slotted
    assert loaded["SETTINGS"].owner is sample.__globals__
    assert loaded["name"].value == "x"
    assert Lazy.asked == 0


def test_what_stands_before_the_spot_is_over() -> None:
    frame = frame_of(SimpleNamespace(inner=None), Slotted(), Lazy())
    line = sample.__code__.co_firstlineno + 2
    assert list(touches(frame, Spot(line, 10_000))) == []
    assert list(touches(frame, spot_of(frame))) == []


def test_a_chain_that_breaks_off_is_followed_so_far() -> None:
    frame = frame_of(SimpleNamespace(inner=None), Slotted(), Lazy())
    line = sample.__code__.co_firstlineno + 2
    loaded = {touch.name: touch for touch in touches(frame, Spot(line, frame.f_lasti))}
    assert loaded["held"].value is MISSING
