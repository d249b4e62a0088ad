"""Deps have a type: for checkers at no cost, and at run time where it is asked for."""

from __future__ import annotations

from typing import Any, Protocol, TypedDict

import pytest

import harness
from harness.errors import RunEndedError


class Database:
    def __repr__(self) -> str:
        return "<a database>"


class Postgres(Database):
    pass


class Asks(Protocol):
    def ask(self) -> str: ...


class Settings(TypedDict):
    url: str


async def test_a_run_gives_deps_of_the_class_that_is_asked_for() -> None:
    database = Postgres()
    async with harness.open_run("desk", deps=database):
        assert harness.current_run(Postgres).deps is database
        async with harness.open_run("below"):
            assert harness.current_run(Database).deps is database
            assert harness.current_run(Database) is harness.current_run()


async def test_other_deps_are_refused_by_name() -> None:
    async with harness.open_run("desk", deps="a string"), harness.open_run("below"):
        with pytest.raises(
            TypeError,
            match=r"run 'desk/below' has 'a string' as its deps, but .*"
            r"asks for an instance of Database; give it one, or a run above it",
        ):
            harness.current_run(Database)


async def test_no_deps_are_refused() -> None:
    async with harness.open_run("desk"):
        with pytest.raises(TypeError, match=r"run 'desk' has no deps, but .* of Database"):
            harness.current_run(Database)


async def test_of_a_type_with_parameters_the_class_is_checked() -> None:
    async with harness.open_run("desk", deps={"a": 1}):
        assert harness.current_run(dict[str, int]).deps == {"a": 1}
        with pytest.raises(TypeError, match="asks for an instance of list"):
            harness.current_run(list[int])


@pytest.mark.parametrize("asked", [Asks, Settings, "Database"])
async def test_what_cannot_be_checked_is_refused(asked: Any) -> None:
    async with harness.open_run("desk", deps={}):
        with pytest.raises(TypeError, match=r"can't check .* `run: Run\[.*\] = current_run\(\)`"):
            harness.current_run(asked)


async def test_an_ended_run_has_no_deps_to_check() -> None:
    async with harness.open_run("desk", deps=Database()) as run:
        pass
    token = harness.runs._current.current.set(run)
    try:
        assert harness.current_run() is run
        with pytest.raises(RunEndedError, match="its deps are gone"):
            harness.current_run(Database)
    finally:
        harness.runs._current.current.reset(token)


async def test_a_subscripted_run_is_the_class() -> None:
    """So annotations that are read at run time cost nothing and break nothing."""
    assert harness.Run[Database].__origin__ is harness.Run  # type: ignore[attr-defined]
    async with harness.open_run("desk") as run:
        assert isinstance(run, harness.Run)
        assert not hasattr(run, "__dict__")
        assert not hasattr(run, "__orig_class__")
