"""A real Ctrl-C, at any moment, ends the program: nothing hangs, breaks trio, or is left."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness
from tests.scale import scaled
from tests.support.signals import Endless, strikes

PACKAGE = Path(harness.__file__).parent

SEEDS = scaled(200, full=10_000)
AT_ONCE = scaled(100, full=500)

real_signals = pytest.mark.skipif(os.name != "posix", reason="needs the system's timer")


@real_signals
@pytest.mark.real_clock
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_a_ctrl_c_leaves_nothing_and_hangs_nowhere(first: int) -> None:
    """Wherever it strikes: in our code, in the user's, or in trio's on behalf of either."""
    found = strikes("harness", first, first + AT_ONCE)
    assert len(found) == AT_ONCE
    assert sum(bool(one.place) for one in found) > AT_ONCE / 10, "they hardly struck"
    assert [one for one in found if one.wrong] == []


@real_signals
@pytest.mark.real_clock
def test_plain_trio_is_wrong_only_where_a_signal_came() -> None:
    """The control. Of blocks as everybody writes them, one strike in some hundreds breaks some."""
    found = strikes("trio", 0, AT_ONCE)
    assert len(found) == AT_ONCE
    assert sum(bool(one.place) for one in found) > AT_ONCE / 10
    assert [one for one in found if one.wrong and not one.place] == []


def test_a_run_that_never_ends_is_noticed_without_a_clock() -> None:
    noticed: list[str] = []
    endless = Endless(lambda: noticed.append("it never ends"))
    for _ in range(1_000_000):
        endless.before_io_wait(0)
    assert noticed == ["it never ends"]


@pytest.mark.slow
def test_what_trio_does_not_protect_is_called_by_protected_code_alone() -> None:
    """A Ctrl-C in `Event.wait` breaks trio; in `start_soon` it leaves a task that never ends."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not {"testing", "cli"} & set(path.parts)
        for line in exposed(ast.parse(path.read_text()), is_protected=False)
    ]
    assert [one for one in found if not one.startswith("asyncio_bridge/_loop.py")] == []


def exposed(node: ast.AST, *, is_protected: bool) -> Iterator[int]:
    """Yield the lines that call those two where a Ctrl-C can strike."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        by = {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
        is_protected = "enable_ki_protection" in by or (
            is_protected and "disable_ki_protection" not in by
        )
    if not is_protected:
        if isinstance(node, ast.Attribute) and node.attr == "start_soon":
            yield node.lineno
        if isinstance(node, ast.Await) and ast.unparse(node.value).endswith(".wait()"):
            yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from exposed(child, is_protected=is_protected)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("async def f(e):\n    await e.wait()", [2]),
        ("@enable_ki_protection\nasync def f(e):\n    await e.wait()", []),
        ("def f(n):\n    n.start_soon(g)", [2]),
        ("@enable_ki_protection\ndef f(n):\n    c.run(lambda: n.start_soon(g))", []),
        ("@disable_ki_protection\ndef f(n):\n    n.start_soon(g)", [3]),
    ],
)
def test_an_exposed_call_is_found(source: str, lines: list[int]) -> None:
    assert [*exposed(ast.parse(source), is_protected=False)] == lines
