"""A `FanOutError` is an ordinary exception group that also carries the results."""

import copy
import pickle
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, OtherError, statuses


async def body(item: int) -> int:
    """Fail with one error for item 1, another for item 2, together."""
    if item == 0:
        return item
    await trio.sleep(1)
    if item == 1:
        raise Boom("lost the ticket")
    if item == 2:
        raise OtherError("no such queue")
    await trio.sleep_forever()
    return item


async def make_error() -> FanOutError[Any]:
    """Return the error of a fan-out named ``nightly`` of which two items failed."""
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(5), limit=3, name="nightly")
    return caught.value


STATUSES = ["ok", "failed", "failed", "cancelled", "skipped"]


async def test_it_is_an_exception_group_with_one_entry_per_failed_item(
    autojump_clock: MockClock,
) -> None:
    error = await make_error()
    assert isinstance(error, ExceptionGroup)
    assert {type(entry) for entry in error.exceptions} == {Boom, OtherError}
    assert len(error.exceptions) == 2
    assert statuses(error.results) == STATUSES


async def test_its_message_names_run_leaf_error_and_count(autojump_clock: MockClock) -> None:
    error = await make_error()
    for text in (error.message, str(error)):
        assert "nightly" in text
        assert ("Boom: lost the ticket" in text) or ("OtherError: no such queue" in text)
        assert "2" in text


async def test_the_message_names_the_path_inside_another_run(autojump_clock: MockClock) -> None:
    with pytest.raises(FanOutError) as caught:
        async with harness.open_run("outer"):
            await harness.fan_out(body, range(3), name="nightly")
    assert "outer/nightly" in str(caught.value)


@pytest.mark.slow
async def test_the_message_stays_short_for_thousands_of_failures(
    autojump_clock: MockClock,
) -> None:
    async def fails(item: int) -> None:
        await trio.sleep(1)
        raise Boom("x" * 10_000)

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(fails, range(3_000), limit=3_000)
    assert len(caught.value.exceptions) == 3_000
    assert "3000" in str(caught.value) or "3,000" in str(caught.value)
    assert len(str(caught.value)) < 3_000


async def test_except_star_keeps_the_results(autojump_clock: MockClock) -> None:
    seen: list[tuple[type, type, list[str]]] = []

    def note(group: Any) -> None:
        seen.append((type(group), type(group.exceptions[0]), statuses(group.results)))

    try:
        raise await make_error()
    except* Boom as group:
        note(group)
    except* OtherError as group:
        note(group)
    assert seen == [(FanOutError, Boom, STATUSES), (FanOutError, OtherError, STATUSES)]


async def test_split_and_subgroup_keep_the_results(autojump_clock: MockClock) -> None:
    error = await make_error()
    match, rest = error.split(Boom)
    assert isinstance(match, FanOutError)
    assert isinstance(rest, FanOutError)
    assert match.results is rest.results is error.results
    assert match.message == error.message
    sub = error.subgroup(OtherError)
    assert isinstance(sub, FanOutError)
    assert sub.results is error.results
    assert error.subgroup(KeyError) is None


async def test_derive_keeps_type_message_and_results(autojump_clock: MockClock) -> None:
    error = await make_error()
    derived = error.derive([KeyError("k")])
    assert type(derived) is FanOutError
    assert derived.message == error.message
    assert derived.results is error.results


async def test_a_base_exception_can_be_derived_into_a_base_group(
    autojump_clock: MockClock,
) -> None:
    """`ExceptionGroup` can't hold one; trio derives such groups when Ctrl-C comes late."""
    error = await make_error()
    exits: Any = [KeyboardInterrupt()]
    derived: Any = error.derive(exits)
    assert isinstance(derived, BaseExceptionGroup)
    assert isinstance(derived.exceptions[0], KeyboardInterrupt)


async def test_a_pickle_keeps_everything(autojump_clock: MockClock) -> None:
    error = await make_error()
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is FanOutError
        assert again.message == error.message
        assert [type(entry) for entry in again.exceptions] == [
            type(entry) for entry in error.exceptions
        ]
        assert [entry.args for entry in again.exceptions] == [
            entry.args for entry in error.exceptions
        ]
        assert statuses(again.results) == STATUSES
        assert again.results[0].value == 0


async def test_an_outer_nursery_can_split_it_like_any_group(autojump_clock: MockClock) -> None:
    async def whole() -> None:
        await harness.fan_out(body, range(3), name="nightly")

    with pytest.RaisesGroup(pytest.RaisesGroup(Boom, OtherError)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(whole)


async def test_a_nested_error_of_one_entry_keeps_its_results(autojump_clock: MockClock) -> None:
    """A group of one is unwrapped so that its error is found; this group says more than its error.

    What the inner fan-out had done was lost as soon as exactly one of its items failed.
    """

    async def outer(item: int) -> object:
        return await harness.fan_out(body, [0, 0, 1])

    [result] = await harness.fan_out(outer, [0], policy=harness.BestEffort())
    assert isinstance(result.error, FanOutError)
    assert len(result.error.exceptions) == 1
    assert len(result.error.results) == 3
    assert len(result.error.results.failed) == 1
