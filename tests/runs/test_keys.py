"""The keys of effects: equal in every attempt, and never another item's or effect's."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
import uuid
from collections.abc import Hashable
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RunEndedError
from harness.runs._keys import ToolCallBlock, item_key
from harness.shared import open_once
from harness.shared._idempotency_keys import words_of_key

RETRY = harness.Attempt(retry=harness.Retry(3, on=OSError, jitter=0))


def key() -> str:
    return harness.current_run().idempotency_key


async def test_all_attempts_at_an_item_and_the_runs_inside_them_share_its_key(
    autojump_clock: MockClock,
) -> None:
    seen: dict[int, list[str]] = {}

    async def work(item: int) -> None:
        seen.setdefault(item, []).append(key())
        async with harness.open_run("inside"), harness.open_run("deeper"):
            seen[item].append(key())
        if len(seen[item]) < 6:
            raise OSError

    (await harness.fan_out(work, range(3), each=RETRY)).raise_if_incomplete()
    assert [len(set(keys)) for keys in seen.values()] == [1, 1, 1]
    assert len({keys[0] for keys in seen.values()}) == 3


async def test_two_fan_outs_have_no_key_in_common() -> None:
    seen: list[str] = []

    async def work(item: int) -> None:
        seen.append(key())

    async with harness.open_run("job"):
        for _ in range(2):
            await harness.fan_out(work, range(3))
    await harness.fan_out(work, range(3))
    assert len(set(seen)) == 9


async def test_items_below_an_item_have_keys_made_from_its_own(autojump_clock: MockClock) -> None:
    """A retry of the outer item asks for the same effects again, and each stays its own."""
    attempts: dict[int, list[list[str]]] = {}

    async def inner(seen: list[str], item: int) -> None:
        seen.append(key())
        await harness.fan_out(partial(innermost, seen), range(2))

    async def innermost(seen: list[str], item: int) -> None:
        seen.append(key())

    async def outer(item: int) -> None:
        seen = [key()]
        attempts.setdefault(item, []).append(seen)
        async with harness.open_run("first half"):
            await harness.fan_out(partial(inner, seen), range(2), limit=1)
        async with harness.open_run("second half"):
            await harness.fan_out(partial(inner, seen), range(2), limit=1)
        await harness.fan_out(partial(inner, seen), range(2), limit=1, name="named")
        if len(attempts[item]) < 2:
            raise OSError

    (await harness.fan_out(outer, range(2), each=RETRY)).raise_if_incomplete()
    for first, second in attempts.values():
        assert sorted(first) == sorted(second)
        assert len(set(first)) == len(first) == 1 + 3 * 2 * 3
    assert not set(attempts[0][0]) & set(attempts[1][0])


async def test_a_run_in_no_item_has_a_key_of_its_own() -> None:
    async with harness.open_run("outer") as outer:
        async with harness.open_run("inner") as inner:
            assert inner.idempotency_key == inner.idempotency_key != outer.idempotency_key
        assert outer.effect_key("mail") != outer.idempotency_key
    with pytest.raises(RunEndedError):
        outer.idempotency_key  # noqa: B018
    with pytest.raises(RunEndedError):
        outer.effect_key("mail")


async def test_each_effect_has_a_key_whatever_the_order(autojump_clock: MockClock) -> None:
    seen: list[dict[str, str]] = []

    async def work(item: int) -> None:
        names = ["mail:ada", "mail:bob", "fee"]
        if seen:
            names.reverse()
        seen.append({name: harness.current_run().effect_key(name) for name in names})
        if len(seen) == 1:
            raise OSError

    (await harness.fan_out(work, [0], each=RETRY)).raise_if_incomplete()
    assert seen[0] == seen[1]
    assert len(set(seen[0].values())) == 3


async def test_outside_of_a_tool_call_an_effect_needs_a_name() -> None:
    async with harness.open_run("job") as run:
        with pytest.raises(TypeError, match="needs a name outside a tool call"):
            run.effect_key()
        with pytest.raises(ValueError, match="tells this effect from others"):
            run.effect_key("")
        with pytest.raises(TypeError, match="takes a name as a string"):
            run.effect_key(3)  # type: ignore[arg-type]


async def test_a_tool_call_names_its_effects_and_its_equals_are_told_apart() -> None:
    async with harness.open_run("agent") as run:
        with ToolCallBlock(run, "send(to='ada')"):
            first = run.effect_key()
            assert run.effect_key() == first
            with ToolCallBlock(run, "send(to='ada')"):  # Under way at the same time.
                second = run.effect_key()
            with ToolCallBlock(run, "send(to='bob')"):
                bob = run.effect_key()
            assert run.effect_key() == first
            assert run.effect_key("mine") != first
        with pytest.raises(OSError, match="no route"), ToolCallBlock(run, "send(to='ada')"):
            third = run.effect_key()
            raise OSError("no route")
        with ToolCallBlock(run, "send(to='ada')"):
            assert run.effect_key() == third, "the call that tries again"
        assert len({first, second, third, bob}) == 4


async def test_tool_calls_are_counted_anew_in_each_attempt(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def work(item: int) -> None:
        async with harness.open_run("agent") as agent:
            with ToolCallBlock(agent, "send(to='ada')"):
                seen.append(agent.effect_key())
        if len(seen) == 1:
            raise OSError

    (await harness.fan_out(work, [0], each=RETRY)).raise_if_incomplete()
    assert seen[0] == seen[1]


def test_the_key_of_a_journaled_item_depends_on_all_it_is_made_of() -> None:
    keys = {
        item_key(origin, batch, item, value)
        for origin in ("a", "ab")
        for batch in ("b", "bc")
        for item in ("c", "")
        for value in ("c", "d")
    }
    assert len(keys) == 16
    assert item_key("a", "b", "c", "d") == item_key("a", "b", "c", "d")


class Colour(enum.Enum):
    RED = 1


@attrs.frozen
class Refund:
    ticket: int


@pytest.mark.parametrize(
    "key", ["a", 3, ("refund", 7), frozenset("abc"), Colour.RED, Refund(3), uuid.UUID(int=3), None]
)
def test_a_key_of_a_once_is_put_into_words_that_last(key: Hashable) -> None:
    assert words_of_key(key) is not None


@pytest.mark.parametrize("key", [object(), (1, object()), test_two_fan_outs_have_no_key_in_common])
def test_an_object_without_lasting_words_has_none(key: Hashable) -> None:
    """Its address may later be another object's, whose effect would then be skipped."""
    assert words_of_key(key) is None


@pytest.mark.slow
def test_the_words_of_a_set_are_the_same_in_every_process() -> None:
    program = (
        "from harness.shared._idempotency_keys import words_of_key; "
        "print(words_of_key((1, frozenset(['a', 'bc', 'def', ('g', 'h')]))))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1


async def test_the_effects_of_a_once_have_the_keys_of_their_names() -> None:
    seen: dict[object, str] = {}

    async with open_once() as once, harness.open_run("job") as run:

        async def note(name: object, idempotency_key: str) -> None:
            await trio.lowlevel.checkpoint()
            seen[name] = idempotency_key

        for name in ("mail:ada", ("mail", "ada"), "('mail', 'ada')", object()):
            await once(name, partial(note, name))
        assert seen["mail:ada"] == run.effect_key("mail:ada")
        assert len(set(seen.values())) == 4
