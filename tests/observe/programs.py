"""Programs whose critical path is known before they run: own code, and groups of runs in it."""

from __future__ import annotations

import random

import attrs
import trio
from trio.testing import MockClock

import harness
from harness.observe import record

Part = "float | tuple[Program, ...]"


@attrs.frozen
class Program:
    """A run that does its parts one after the other: sleeps, and groups of runs side by side."""

    name: str
    parts: tuple[float | tuple[Program, ...], ...]

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return sum(_seconds(part) for part in self.parts)

    def path_back(self, above: str = "", until: float | None = None) -> list[tuple[str, float]]:
        """Return by brute force who is on the critical path for how long, the last first."""
        path = f"{above}/{self.name}" if above else self.name
        found: list[tuple[str, float]] = []
        for part in reversed(self.parts):
            if isinstance(part, float):
                found.append((path, part))
            else:
                found += max(part, key=lambda one: one.seconds).path_back(path)
        return found


def _seconds(part: float | tuple[Program, ...]) -> float:
    return part if isinstance(part, float) else max(one.seconds for one in part)


def random_program(draw: random.Random, depth: int, name: str = "root") -> Program:
    """Return a random program, whose durations are all different."""
    parts: list[float | tuple[Program, ...]] = [draw.random()]
    if depth:
        for number in range(draw.randint(0, 3)):
            parts.append(
                tuple(
                    random_program(draw, depth - 1, f"{number}-{sibling}")
                    for sibling in range(draw.randint(1, 4))
                )
            )
            if draw.random() < 0.7:
                parts.append(draw.random())
    return Program(name, tuple(parts))


async def carry_out(program: Program) -> None:
    """Run a program; a group of one in its own task, others in a nursery."""
    async with harness.open_run(program.name):
        for part in program.parts:
            if isinstance(part, float):
                await trio.sleep(part)
            elif len(part) == 1:
                await carry_out(part[0])
            else:
                async with trio.open_nursery() as nursery:
                    for one in part:
                        nursery.start_soon(carry_out, one)


def recorded(program: Program, path: str) -> None:
    """Run a program on a virtual clock, and record it."""

    async def main() -> None:
        async with record(path):
            await carry_out(program)

    trio.run(main, clock=MockClock(autojump_threshold=0))
