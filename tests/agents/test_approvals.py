"""Tools that a person has to approve: their runs wait, and go on where they stopped."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, Conversation, RunEnded, tool
from harness.errors import ApprovalPending, JournalError, JournalLockedError
from harness.journal import edit_journal, open_journal, read_journal
from harness.models import ModelRequest
from tests.agents.fakes import Fake, Said, Script, calls, is_valid, last_user


class Desk:
    """An agent with one tool that needs no approval and one that does, and what they did."""

    def __init__(self, *said: Said, **options: Any) -> None:
        self.made: list[str] = []
        self.keys: list[str] = []

        @tool
        async def look(order: int) -> str:
            """Look an order up."""
            await trio.lowlevel.checkpoint()
            self.made.append(f"look {order}")
            return "12 dollars"

        @tool(approve=True, **options)
        async def refund(order: int, usd: int = 12) -> str:
            """Refund an order."""
            await trio.lowlevel.checkpoint()
            self.keys.append(harness.current_run().effect_key())
            self.made.append(f"refund {order}")
            return "refunded"

        asked = calls(("look", {"order": 7}), ("refund", {"order": 7}))
        self.model = Script(*(said or (asked, "Done.")))
        self.agent = Agent("desk", model=self.model, tools=[look, refund])

    async def session(self, folder: Path, *items: str, **options: Any) -> harness.Results[Any]:
        async with open_journal(folder / "run.db", **options) as journal:
            return await harness.fan_out(
                self.agent,
                items or ("order 7",),
                name="batch",
                key=str,
                journal=journal,
                policy=harness.BestEffort(),
            )


def answer(folder: Path, say: Any, *ids: str, item: str = "order 7") -> None:
    with edit_journal(folder / "run.db") as editor:
        editor.answer("batch", item, say, ids)


# In one process -----------------------------------------------------------------------------------


async def test_a_run_waits_and_goes_on_where_it_stopped() -> None:
    desk = Desk()
    with pytest.raises(ApprovalPending) as caught:
        await desk.agent.run("Refund order 7")
    pending = caught.value
    (waiting,) = pending.waiting
    assert (waiting.tool, waiting.arguments) == ("refund", {"order": 7})
    assert pending.partial.waiting == pending.waiting
    assert not pending.partial.complete
    assert is_valid(pending.partial.messages)
    assert desk.made == ["look 7"], "the other calls of the turn are made"

    pending.approve(waiting.id)
    reply = await desk.agent.resume(pickle.loads(pickle.dumps(pending)))
    assert reply.output == "Done."
    assert reply.complete
    assert desk.made == ["look 7", "refund 7"]
    assert [one.content for one in reply.messages if one.role == "tool"] == [
        "12 dollars",
        "refunded",
    ]
    assert len(desk.model.requests) == reply.turns == 2
    assert reply.usage.total == 20, "all that the run used, before and after"


async def test_a_refusal_is_told_to_the_model() -> None:
    desk = Desk()
    with pytest.raises(ApprovalPending) as caught:
        await desk.agent.run("Refund order 7")
    caught.value.deny(reason="too much")
    reply = await desk.agent.resume(caught.value)
    assert desk.made == ["look 7"]
    assert reply.messages[-2].content == "a person refused this call: too much"


async def test_calls_that_nobody_answered_wait_on() -> None:
    desk = Desk(calls(("refund", {"order": 1}), ("refund", {"order": 2})), "Done.")
    with pytest.raises(ApprovalPending) as first:
        await desk.agent.run("Refund both")
    one, two = first.value.waiting
    first.value.approve(two.id)
    with pytest.raises(ApprovalPending) as second:
        await desk.agent.resume(first.value)
    assert desk.made == ["refund 2"]
    assert second.value.waiting == (one,), "with the same id"
    second.value.approve()
    assert (await desk.agent.resume(second.value)).output == "Done."
    assert desk.made == ["refund 2", "refund 1"]
    assert len(desk.model.requests) == 2


async def test_nobody_is_asked_about_arguments_that_do_not_fit() -> None:
    desk = Desk(calls(("refund", {"order": "seven"})), "Done.")
    reply = await desk.agent.run("Refund order 7")
    assert "don't fit" in reply.messages[-2].text
    assert not desk.made


async def test_an_answer_to_other_arguments_is_refused() -> None:
    desk = Desk()
    with pytest.raises(ApprovalPending) as caught:
        await desk.agent.run("Refund order 7")
    pending = caught.value
    with pytest.raises(ValueError, match=r"no call 0000 waits for approval; those that do: \w+"):
        pending.approve("0000")
    (waiting,) = pending.waiting
    pending.approve()
    (state,) = pending._states.values()
    state["messages"][-1]["tool_calls"][1]["arguments"]["usd"] = 1200
    with pytest.raises(ApprovalPending) as again:
        await desk.agent.resume(pending)
    assert again.value.waiting[0].id != waiting.id, "what was approved isn't this"
    assert desk.made == ["look 7"]


async def test_an_agent_that_asked_another_waits_with_it() -> None:
    desk = Desk()
    asked = calls(("desk", {"prompt": "Refund order 7"}))
    boss = Agent("boss", model=Script(asked, "All done."), tools=[desk.agent.as_tool()])
    with pytest.raises(ApprovalPending) as caught:
        await boss.run("Make Ada happy")
    with pytest.raises(ValueError, match="can't resume a run of agent 'boss'"):
        await desk.agent.resume(caught.value)
    caught.value.approve()
    reply = await boss.resume(caught.value)
    assert reply.output == "All done."
    assert desk.made == ["look 7", "refund 7"]
    assert reply.delegated_usage.total == 20, "counted once"
    assert len(desk.model.requests) == 2


async def test_a_conversation_gets_the_whole_run_once_it_has_ended() -> None:
    desk = Desk()
    conversation = Conversation()
    with pytest.raises(ApprovalPending) as caught:
        await desk.agent.run("Refund order 7", conversation=conversation)
    assert not len(conversation)
    caught.value.approve()
    reply = await desk.agent.resume(caught.value, conversation=conversation)
    assert conversation.messages == reply.messages
    assert len(conversation) == 5


async def test_a_stream_ends_with_what_waits() -> None:
    desk = Desk()
    events: list[Any] = []
    with pytest.raises(ApprovalPending):
        async with desk.agent.stream("Refund order 7") as stream:
            async for event in stream:
                events.append(event.payload)
    assert events[-1] == RunEnded("cancelled")
    assert stream.run.status == "cancelled"
    assert stream.reply.waiting


async def test_a_fan_out_goes_on_with_the_other_items() -> None:
    desk = Desk()

    def answer_by_prompt(request: ModelRequest) -> Said:
        if "Refund" in last_user(request) and len(request.messages) == 1:
            return calls(("refund", {"order": 7}))
        return "Hello."

    agent = desk.agent.with_model(Fake(answer_by_prompt))
    results = await harness.fan_out(agent, ["Refund", "Hi", "Refund"], limit=1)
    assert [one.status for one in results] == ["cancelled", "ok", "cancelled"]
    assert isinstance(results[0].error, ApprovalPending)
    summary = results.summary()
    assert (summary.waiting, summary.cancelled, summary.failed) == (2, 2, 0)
    assert "2 waiting for approval" in str(summary)
    assert "cancelled" not in str(summary)


async def test_agents_side_by_side_in_one_item_wait_together(tmp_path: Path) -> None:
    desk = Desk(calls(("refund", {"order": 7})), "Done.")

    async def both(item: str) -> list[str]:
        outputs: list[str] = []

        async def one(prompt: str) -> None:
            outputs.append((await desk.agent.run(prompt)).output)

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(one, f"{item} {number}")
        return outputs

    async def session() -> harness.Results[list[str]]:
        async with open_journal(tmp_path / "run.db") as journal:
            return await harness.fan_out(
                both,
                ["order 7"],
                name="batch",
                key=str,
                journal=journal,
                policy=harness.BestEffort(),
            )

    for _ in range(2):
        assert (await session())[0].status == "cancelled"
        answer(tmp_path, True)
    assert (await session())[0].value == ["Done.", "Done."]
    assert desk.made == ["refund 7"] * 2, "the first isn't made again when the second waits"


async def test_agents_that_had_answered_before_are_not_asked_again(tmp_path: Path) -> None:
    """A later session runs the item's function from the start; only its agents remember."""
    triage = Agent("triage", model=Script("refund"))
    first, second = Desk(), Desk()

    async def handle(item: str) -> str:
        said = await triage.run(item)
        for desk in (first, second):
            said = await desk.agent.run(f"{said.output} {item}")
        return said.output

    for approve in (True, True, False):
        async with open_journal(tmp_path / "run.db") as journal:
            (result,) = await harness.fan_out(
                handle,
                ["order 7"],
                name="batch",
                key=str,
                journal=journal,
                policy=harness.BestEffort(),
            )
        if approve:
            assert result.status == "cancelled"
            answer(tmp_path, True)
    assert result.value == "Done."
    assert first.made == second.made == ["look 7", "refund 7"]
    models = (triage.model, first.model, second.model)
    assert [len(model.requests) for model in models] == [1, 2, 2]  # type: ignore[attr-defined]


# With a journal -----------------------------------------------------------------------------------


async def test_later_sessions_go_on_with_what_was_approved(tmp_path: Path) -> None:
    desk = Desk()
    for _ in range(2):  # The second session has nothing to do.
        (result,) = await desk.session(tmp_path)
        assert result.status == "cancelled"
        assert isinstance(result.error, ApprovalPending)
        assert len(desk.model.requests) == 1
        assert desk.made == ["look 7"]
    with read_journal(tmp_path / "run.db") as reader:
        totals = reader.totals("batch")
        assert (totals.waiting, totals.open, totals.attempts) == (1, 1, 0)
        (item,) = reader.waiting("batch")
        assert item.key == "order 7"
        assert item.calls[0].arguments == {"order": 7}
        assert [one.status for one in reader.items("batch")] == ["waiting"]
    answer(tmp_path, True, item.calls[0].id)
    (result,) = await desk.session(tmp_path)
    assert result.value.output == "Done."
    assert result.attempts == 1
    assert desk.made == ["look 7", "refund 7"]
    assert len(desk.model.requests) == 2
    with read_journal(tmp_path / "run.db") as reader:
        assert reader.totals("batch").waiting == 0
        assert not list(reader.waiting("batch"))
    (result,) = await desk.session(tmp_path)
    assert result.ok
    assert len(desk.model.requests) == 2


async def test_effects_after_the_wait_have_keys_of_their_own(tmp_path: Path) -> None:
    """An equal call was made before the wait: with its key, this one would be taken for it."""
    asked = calls(("refund", {"order": 7}))
    desk = Desk(asked, asked, "Done.")
    for _ in range(2):
        await desk.session(tmp_path)
        answer(tmp_path, True)
    await desk.session(tmp_path)
    assert desk.made == ["refund 7"] * 2
    assert len(set(desk.keys)) == 2


async def test_a_retry_of_what_failed_after_an_approval_starts_over(tmp_path: Path) -> None:
    desk = Desk(on_error="run", timeout=0)
    await desk.session(tmp_path)
    answer(tmp_path, True)
    (result,) = await desk.session(tmp_path)
    assert result.status == "failed"
    (result,) = await desk.session(tmp_path, retry_failed=True)
    assert isinstance(result.error, ApprovalPending), "a person is asked again"
    assert desk.made == ["look 7"] * 2


async def test_journal_retry_forgets_what_was_answered(tmp_path: Path) -> None:
    desk = Desk()
    await desk.session(tmp_path)
    answer(tmp_path, True)
    with edit_journal(tmp_path / "run.db") as editor:
        editor.retry("batch", ["order 7"])
        assert not list(editor.waiting("batch"))
        with pytest.raises(JournalError, match="no call waits for approval"):
            editor.answer("batch", "order 7", True)
    (result,) = await desk.session(tmp_path)
    assert isinstance(result.error, ApprovalPending)
    assert desk.made == ["look 7"] * 2


async def test_nobody_answers_beside_a_session(tmp_path: Path) -> None:
    desk = Desk()
    await desk.session(tmp_path)
    async with open_journal(tmp_path / "run.db"):
        with pytest.raises(JournalLockedError):
            answer(tmp_path, True)


# Retries ------------------------------------------------------------------------------------------


async def test_a_tool_is_tried_again_as_its_retry_says(autojump_clock: MockClock) -> None:
    keys: list[str] = []

    @tool(retry=harness.Retry(3, first_delay=10, jitter=0, on=OSError), timeout=5)
    async def look(order: int) -> str:
        """Look an order up."""
        keys.append(harness.current_run().effect_key())
        if len(keys) < 3:
            raise OSError("busy")
        await trio.sleep(4)
        return "12 dollars"

    agent = Agent("a", model=Script(calls(("look", {"order": 7})), "Done."), tools=[look])
    reply = await agent.run("hi")
    assert reply.messages[-2].content == "12 dollars"
    assert trio.current_time() == 34, "two delays, and its own time"
    assert len(keys) == 3
    assert len(set(keys)) == 1


async def test_a_tool_whose_retries_are_used_up_fails_as_before(autojump_clock: MockClock) -> None:
    tries: list[int] = []

    @tool(retry=harness.Retry(2, first_delay=1))
    async def look(order: int) -> str:
        """Look an order up."""
        tries.append(order)
        raise KeyError(order)

    model = Script(calls(("look", {"order": 7}), ("look", {"order": "x"})), "Done.")
    reply = await Agent("a", model=model, tools=[look]).run("hi")
    assert tries == [7, 7], "arguments that don't fit aren't tried at all"
    assert reply.messages[-3].text.startswith("the tool failed: KeyError")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry": 3}, r"tool\(retry=\.\.\.\) takes a harness.Retry, such as Retry\(3\), not 3"),
        ({"approve": "yes"}, r"tool\(approve=\.\.\.\) takes True or False, not 'yes'"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        tool(**options)(len)
