"""Define what runs a program of one kind under control: a trio program, or another loop's.

What is general is a source of choices (`Control`), the steps it picks, and who makes them: strands
(see `_strand`). A *backend* holds back everything in a program that could go on, asks
`Control.pick` who does, calls the observers around that step, and does what is left to do when
nobody can go on: let a reply arrive, move a virtual clock, wait for the outside, or call it a
deadlock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Protocol

import outcome

from harness.testing.schedules._control import Control
from harness.testing.schedules._ending import Ending
from harness.testing.schedules._strand import Kind, Observer, Strands


class Backend(Strands, Protocol):
    """Runs programs of one kind with their steps under control."""

    @property
    def kind(self) -> Kind:
        """What it runs."""
        ...

    def run(
        self,
        program: Callable[[], Awaitable[Any]],
        control: Control,
        ending: Ending,
        observers: tuple[Observer, ...],
        context: Context,
    ) -> outcome.Outcome[Any]:
        """Run a program once, in this thread, and return how it ended.

        Args:
          program: Its main function; what it is called names the main strand.
          control: Admits each strand when it starts, and then picks who makes each step.
          ending: Is given a way to cut the program short, and told why it doesn't end by itself.
          observers: Look on between the steps.
          context: The context variables that the main strand starts with.
        """
        ...
