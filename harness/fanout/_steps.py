"""Say what the items of a pipeline or a router go through, for a journal that records each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs


@attrs.frozen
class Steps:
    """The steps, and what they belong to."""

    target: str
    """What to record as the batch's function."""

    of: Any
    """The pipeline or the router; it has the functions."""

    functions: Mapping[str, tuple[str | None, Callable[..., Any]]]
    """The function of each step by its name, after the name of the step before it, if there is one.
    A step counts as done only as long as its function and those before it are the same."""

    last: str | None
    """The step that comes last for every item; None if any may be the last."""

    new_job: Callable[..., Any]
    """Makes the job of an item, from what `JournaledJob` is made from."""

    several: bool
    """Whether an item ends with the values of several outputs, and not with that of its last step.
    """
