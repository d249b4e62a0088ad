"""Look at what calls inside one run share: the values of its `RunLocal`s.

When each input has a run of its own, none sees another's `RunLocal` values. Inside one run, all
calls see the same value, and it ends with the run, so it is found from the run and not by a walk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from harness._words import repr_of
from harness.runs import Run, RunLocal, locals_of
from harness.testing.objects import Part, Place, Reached, SharedState, Suspect


@attrs.define(eq=False)
class SameRun:
    """The run that calls share, while a program with one is run."""

    state: SharedState
    run: Run | None = None
    was_cancelled: bool = False
    """Whether the last one was cancelled; only a call in it can do that."""
    _parts: dict[RunLocal[Any], RunLocalPart] = attrs.field(factory=dict, init=False)
    _used: dict[RunLocal[Any], None] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Add what a walk found."""
        for place, local in self.state.reached.run_locals:
            self._add(local, place)

    @contextmanager
    def holding(self, run: Run) -> Iterator[None]:
        """Look into ``run`` while the block lasts."""
        self.run = run
        try:
            yield
        finally:
            self._used.update(dict.fromkeys(locals_of(run)))
            self.run = None

    def add_used(self) -> None:
        """Add what no walk reached, such as a library's `RunLocal`."""
        for local in self._used:
            if local not in self._parts:
                self._add(local, Place(repr(local)))

    def suspects(self, locals: Iterable[RunLocal[Any]]) -> list[Suspect]:
        """Return these as suspects."""
        found: list[Suspect] = []
        for local in locals:
            if local not in self._parts:
                self._add(local, Place(repr(local)))
            found.append(Suspect(self._parts[local]))
        return found

    def _add(self, local: RunLocal[Any], place: Place) -> None:
        part = self._parts[local] = RunLocalPart(place, local, lambda: self.run)
        self.state.add(part)


@attrs.frozen(eq=False)
class _Value:
    """What a `RunLocal` held, and everything reachable from it, each part as it was taken."""

    value: Any
    inside: tuple[tuple[Part, Any], ...]


class RunLocalPart(Part):
    """What a `RunLocal` holds in the run that calls share, with everything reachable from it.

    A run that gets contents of its own gets another value, made by the factory.
    """

    __slots__ = ("_run",)

    def __init__(self, place: Place, local: RunLocal[Any], run: Callable[[], Run | None]) -> None:
        super().__init__(place, "RunLocal", local)
        self._run = run

    def take(self) -> _Value | None:
        """Return the value; None without a run, or if the run has no value yet."""
        run = self._run()
        held = {} if run is None else locals_of(run)
        if self.thing not in held:
            return None
        value = held[self.thing]
        reached = Reached()
        reached.add(self.place, value)
        return _Value(value, tuple((part, part.take()) for part in reached.parts))

    def changed(self, before: _Value | None, after: _Value | None) -> tuple[Any, ...]:
        """Return whether it is another value, or something in it differs."""
        if before is None or after is None:
            return () if before is after else super().changed(before, after)
        same = (
            before.value is after.value
            and len(before.inside) == len(after.inside)
            and all(
                one.thing is other.thing and not one.changed(was, now)
                for (one, was), (other, now) in zip(before.inside, after.inside, strict=True)
            )
        )
        return () if same else super().changed(before, after)

    def put(self, contents: _Value | None, keys: Collection[Any] | None = None) -> None:
        """Give the run this value, or take away the one it has."""
        run = self._run()
        if run is None:
            return
        if contents is not None:
            self.thing._ready(run)[self.thing] = contents.value
        elif run._locals is not None:
            run._locals.pop(self.thing, None)


def check_run_locals(shared: object) -> Sequence[RunLocal[Any]]:
    """Return what ``shared=[...]`` declares.

    Raises:
      TypeError: if it isn't a list of `RunLocal`s.
    """
    if isinstance(shared, Iterable) and not isinstance(shared, str | bytes):
        found = list(shared)
        if all(isinstance(one, RunLocal) for one in found):
            return found
    raise TypeError(
        "shared= takes a list of the RunLocals that the calls of a run share on purpose, or a "
        f"mapping from object paths to functions of the object, not {repr_of(shared)}"
    )
