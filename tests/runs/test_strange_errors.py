"""The body's own error leaves the block, whatever it is like: a note on it is a courtesy."""

from __future__ import annotations

import pytest
import trio

import harness
from tests.support.strange_errors import STRANGE, WITH_TEXT


@pytest.mark.parametrize("kind", STRANGE)
async def test_a_strange_error_of_the_body_comes_out_as_itself(kind: str) -> None:
    """Noting the run on it raised, and the real error was only the context of that one."""
    error = STRANGE[kind]()
    caught: Exception | None = None
    try:
        async with harness.open_run("job") as run:
            raise error
    except Exception as out:  # Not pytest.raises, which such an error can break as well.
        caught = out
    assert caught is error
    assert run.status == "failed"


@pytest.mark.parametrize("kind", WITH_TEXT)
@pytest.mark.slow
async def test_a_strange_error_of_a_task_comes_out_as_itself(kind: str) -> None:
    error = WITH_TEXT[kind]()

    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        raise error

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("job") as run:
                harness.start_soon(nursery, fails, run=run)
    assert caught.value.exceptions[0] is error
