"""Calls inside one run share its `RunLocal`s, which a run for each input hides."""

from __future__ import annotations

import re

import pytest
import trio

import harness
from harness.errors import ScheduleError
from harness.testing import assert_isolated
from tests.scale import scaled

pytestmark = pytest.mark.slow

INPUTS = ["lost card", "wrong fee", "new pin"]
SCHEDULES = scaled(30, full=300)

NOTES = harness.RunLocal(list, name="notes")
SEEN: dict[str, str] = {}


class Desk:
    messages: harness.RunLocal[list[str]] = harness.RunLocal(list, name="messages")

    async def answer(self, ticket: str) -> str:
        messages = self.messages.get()
        messages.append(ticket)
        await trio.sleep(1)
        return messages[0]

    @harness.open_run("desk")
    async def answer_in_a_run_of_its_own(self, ticket: str) -> str:
        return await self.answer(ticket)


DESK = Desk()


async def answer(ticket: str) -> str:
    NOTES.get().append(ticket)
    await trio.sleep(1)
    return str(NOTES.get()[-1])


async def answer_from_a_table(ticket: str) -> str:
    SEEN[harness.current_run().name] = ticket
    await trio.sleep(1)
    return SEEN.pop(harness.current_run().name, "nothing")


async def local(ticket: str) -> str:
    messages = [ticket]
    await trio.sleep(1)
    return messages[0]


async def cancel_the_run(ticket: str) -> str:
    await trio.sleep(1)
    if ticket == "lost card":
        harness.current_run().cancel("enough")
    await trio.sleep(1)
    return ticket


async def test_what_differs_only_inside_one_run_is_reported_and_does_not_fail() -> None:
    seen = await assert_isolated(DESK.answer, INPUTS, schedules=SCHEDULES)
    assert seen.per_run == (f"{__name__}.Desk.messages",)
    assert "Desk.answer is isolated per run, not per call" in seen.per_run_report
    assert "same_run=True" in seen.per_run_report


async def test_inside_one_run_it_fails_and_the_run_local_is_named() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(answer, INPUTS, schedules=SCHEDULES, same_run=True)
    text = str(caught.value)
    assert text.startswith("answer is isolated per run, not per call: inside one run, ")
    assert caught.value.objects == (f"{__name__}.NOTES",)
    assert f"{__name__}.NOTES  (RunLocal)\n  written by call 1 ('lost card') at answer (" in text
    assert re.search(
        r"written by call [23] \(.*\) at answer \(", text
    )  # It changed what was there.
    assert "every call gave what it gives alone" in text
    advice = text.splitlines()[-1]
    order = ["local variable", "@harness.open_run('answer')", "shared=[NOTES]"]
    assert sorted(order, key=advice.index) == order


async def test_one_call_after_the_other_in_one_run_is_enough() -> None:
    with pytest.raises(ScheduleError, match="call 2 after call 1 gives something else") as caught:
        await assert_isolated(DESK.answer, INPUTS, schedules=SCHEDULES, same_run=True)
    assert "no concurrency is needed" in str(caught.value)


@pytest.mark.parametrize("right", [DESK.answer_in_a_run_of_its_own, local])
async def test_what_belongs_to_the_call_passes_in_one_run_and_in_many(right: object) -> None:
    for same_run in (False, True):
        seen = await assert_isolated(
            right,  # type: ignore[arg-type]
            INPUTS,
            schedules=SCHEDULES,
            same_run=same_run,
        )
        assert (seen.per_run, seen.per_run_report) == ((), "")


async def test_a_declared_run_local_is_meant_to_be_shared() -> None:
    seen = await assert_isolated(answer, INPUTS, schedules=SCHEDULES, same_run=True, shared=[NOTES])
    assert seen.runs == len(INPUTS)
    assert not (await assert_isolated(answer, INPUTS, schedules=SCHEDULES, shared=[NOTES])).per_run


async def test_what_is_declared_hides_nothing_else() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(
            DESK.answer, INPUTS, schedules=SCHEDULES, same_run=True, shared=[NOTES]
        )
    assert caught.value.objects == (f"{__name__}.Desk.messages",)


async def test_a_table_by_the_name_of_the_run_is_named_like_any_object() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(answer_from_a_table, INPUTS, schedules=SCHEDULES, same_run=True)
    assert caught.value.objects == (f"{__name__}.SEEN['calls']",)
    assert "per run, not per call" in str(caught.value)


async def test_a_call_that_cancels_the_run_it_shares_is_found() -> None:
    with pytest.raises(ScheduleError, match="isolated per run, not per call") as caught:
        await assert_isolated(cancel_the_run, INPUTS, schedules=SCHEDULES, same_run=True)
    assert "a call cancelled the run, which is that of the other calls too" in str(caught.value)
    assert "fix: give each call a run of its own, with @harness.open_run('cancel_the_run')" in str(
        caught.value
    )


async def test_the_replay_string_of_one_run_is_enough_to_fail_again() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(answer, INPUTS, schedules=SCHEDULES, same_run=True)
    replay = caught.value.schedule
    assert replay is not None
    with pytest.raises(ScheduleError, match="inside one run") as again:
        await assert_isolated(answer, INPUTS, schedule=replay)
    assert again.value.schedule == replay
