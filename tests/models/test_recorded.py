"""Recorded once, replayed offline: the same answers, whole and in pieces."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.budgets import budget_statistics
from harness.errors import (
    CassetteError,
    ModelRateLimitedError,
    ModelStatusError,
    UnrecordedRequestError,
)
from harness.limits import Limiter
from harness.models import (
    FallbackModel,
    Finish,
    FunctionModel,
    Message,
    ModelRequest,
    ModelResponse,
    ModelStream,
    RecordedModel,
    ScriptedModel,
    ToolCall,
    ToolDescription,
    Usage,
)
from harness.models._canonical import (
    difference,
    request_json,
    request_key,
    response_json,
    response_of_json,
)
from tests.models.providers import open_model
from tests.scale import scaled


def ask(text: str) -> ModelRequest:
    return ModelRequest([Message("user", text)])


class Counting:
    """A model that never says the same twice, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.asked += 1
        number = self.asked
        await trio.sleep(random.random())
        return ModelResponse(f"{number}: {request.messages[-1].content}", usage=Usage(3, number))

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        whole = await self.complete(request)

        async def pieces() -> AsyncGenerator[str | ModelResponse]:
            for letter in whole.content:
                await trio.sleep(0.01)
                yield letter
            yield whole

        stream = pieces()
        try:
            yield stream
        finally:
            await stream.aclose()


async def streamed(model: RecordedModel, request: ModelRequest) -> list[str | ModelResponse]:
    async with model.stream(request) as stream:
        return [piece async for piece in stream]


async def test_what_was_recorded_is_replayed(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "deep" / "cassette.jsonl"
    counting = Counting()
    recording = RecordedModel(path, counting)
    one = await recording.complete(ask("one"))
    assert one == ModelResponse("1: one", usage=Usage(3, 1))
    assert json.loads(path.read_text().splitlines()[0])["response"]["content"] == "1: one", (
        "it is on the disk when the call returns"
    )
    two = await streamed(recording, ask("two"))
    assert two == [*"2: two", ModelResponse("2: two", usage=Usage(3, 2))]

    for model in (RecordedModel(path), RecordedModel(path, counting), recording):
        assert await model.complete(ask("one")) == one
        assert await streamed(model, ask("two")) == two, "in the pieces that came"
        assert await model.complete(ask("two")) == two[-1]
        assert await streamed(model, ask("one")) == ["1: ", "one", one]
    assert counting.asked == 2


async def test_a_session_that_records_sees_what_a_replay_sees(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Equal concurrent requests are asked once; a place in their order would be shared state."""
    path = tmp_path / "cassette.jsonl"
    counting = Counting()

    async def session(model: RecordedModel) -> list[str]:
        async def call(number: int) -> str:
            request = ask(f"question {number % 10}")
            if number % 3:
                return (await model.complete(request)).content
            whole = (await streamed(model, request))[-1]
            assert isinstance(whole, ModelResponse)
            return whole.content

        results = await harness.fan_out(call, range(scaled(60, full=1_000)), limit=60)
        return results.values()

    recorded = await session(RecordedModel(path, counting))
    assert counting.asked == 10
    assert len(path.read_text().splitlines()) == 10
    assert await session(RecordedModel(path)) == recorded


async def test_half_of_a_surrogate_pair_is_recorded_in_a_file_of_utf_8(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path, request = tmp_path / "c.jsonl", ask("half \ud83c")
    first = await RecordedModel(path, ScriptedModel(["half \udcb2"])).complete(request)
    path.read_text(encoding="utf-8")
    again = await RecordedModel(path).complete(request)
    assert again.content == first.content == "half \udcb2"


async def test_an_unknown_request_shows_where_the_nearest_differs(tmp_path: Path) -> None:
    path = tmp_path / "cassette.jsonl"
    talk = (Message("system", "be brief"), Message("user", "How is the weather in Zürich today?"))
    recording = RecordedModel(path, ScriptedModel(["fine", "good"]))
    await recording.complete(ModelRequest([Message("system", "be long"), talk[1]]))
    await recording.complete(ModelRequest(talk))
    replaying = RecordedModel(path, name="weather")
    asked = ModelRequest([talk[0], Message("user", "How is the weather in Bern today?")])
    async with harness.open_run("offline"):
        for use in (replaying.complete, lambda request: streamed(replaying, request)):
            with pytest.raises(UnrecordedRequestError) as caught:
                await use(asked)
            said = str(caught.value)
            assert "model 'weather'" in said
            assert "run 'offline'" in said
            assert "in line 2" in said
            assert "messages[1].content" in said
            assert "Bern" in said
            assert "Zürich" in said
    with pytest.raises(UnrecordedRequestError, match=r"tools is \[.*, and was missing"):
        await replaying.complete(ModelRequest(talk, [ToolDescription("clock", "", {})]))


async def test_a_cassette_that_is_not_there_has_recorded_nothing(tmp_path: Path) -> None:
    model = RecordedModel(tmp_path / "none.jsonl")
    with pytest.raises(UnrecordedRequestError, match="empty or not there; give RecordedModel"):
        await model.complete(ask("hello"))
    assert not (tmp_path / "none.jsonl").exists()


async def test_errors_and_halves_are_not_recorded(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "cassette.jsonl"

    def fail(request: ModelRequest) -> str:
        raise ModelStatusError("broken", status_code=500)

    with pytest.raises(ModelStatusError):
        await RecordedModel(path, FunctionModel(fail)).complete(ask("one"))
    recording = RecordedModel(path, Counting())
    async with recording.stream(ask("two")) as stream:
        assert await anext(stream) == "1"
    with trio.move_on_after(0):
        await recording.complete(ask("three"))
    assert not path.exists()
    await recording.complete(ask("two"))
    assert len(path.read_text().splitlines()) == 1


async def test_a_torn_last_line_is_no_recording(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "cassette.jsonl"
    recording = RecordedModel(path, Counting())
    for text in ("one", "two"):
        await recording.complete(ask(text))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in (first, first + 1, first + 20, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert len(RecordedModel(path)._cassette.recordings) == 1
        again = RecordedModel(path, Counting())
        await again.complete(ask("two"))
        assert len(path.read_bytes().splitlines()) == 2
        assert len(RecordedModel(path)._cassette.recordings) == 2


@pytest.mark.parametrize("line", ["{", "3", '{"request": {}}', '{"request": {}, "response": 3}'])
def test_a_line_that_is_no_recording_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "cassette.jsonl"
    path.write_text(f'{{"request": {{}}, "response": {{}}}}\n{line}\n')
    with pytest.raises(CassetteError, match="line 2 of the cassette"):
        RecordedModel(path)
    with pytest.raises(CassetteError, match="can't be read"):
        RecordedModel(tmp_path)


async def test_a_full_disk_is_told_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    path = tmp_path / "cassette.jsonl"
    recording = RecordedModel(path, Counting())
    await recording.complete(ask("one"))

    def half(fd: int) -> None:
        os.ftruncate(fd, os.fstat(fd).st_size - 7)
        raise OSError("no space left")

    monkeypatch.setattr("harness.models._cassette.os.fsync", half)

    async def fails(number: int) -> None:
        with pytest.raises(OSError, match="no space left"):
            await recording.complete(ask(f"number {number}"))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(fails, number)
    monkeypatch.undo()
    assert len(path.read_bytes().splitlines()) == 1
    await recording.complete(ask("two"))
    recordings = RecordedModel(path)._cassette.recordings
    assert {request_key(request_json(ask(text))) for text in ("one", "two")} == set(recordings)


async def test_two_that_record_to_one_file_keep_each_others_recordings(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Each once cut off what the other had written since it was opened."""
    path = tmp_path / "cassette.jsonl"
    both = [RecordedModel(path, Counting()), RecordedModel(path, Counting())]
    count = scaled(40, full=400)
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(both[number % 2].complete, ask(f"number {number} " + "x" * 5_000))
    replayed = RecordedModel(path)
    for number in range(count):
        response = await replayed.complete(ask(f"number {number} " + "x" * 5_000))
        assert f": number {number} x" in response.content


async def test_a_chain_records_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "cassette.jsonl"
    real = Counting()
    chain = FallbackModel([RecordedModel(path, real, limiter=Limiter("first", concurrent=5))])
    said = [(await chain.complete(ask("one"))).content for _ in range(2)]
    async with chain.stream(ask("two")) as stream:
        pieces = [piece async for piece in stream]
    assert said == ["1: one", "1: one"]
    assert len(pieces) == len("2: two") + 1
    assert real.asked == 2
    assert await streamed(RecordedModel(path), ask("two")) == pieces


async def test_a_refusal_while_recording_is_waited_out(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    refusal = ModelRateLimitedError(
        "too many", status_code=429, headers={"retry-after": "20"}, retry_after=20
    )
    replies = iter((refusal, "yes"))

    def answer(request: ModelRequest) -> str:
        reply = next(replies)
        if isinstance(reply, str):
            return reply
        raise refusal

    limiter = Limiter("provider", requests_per_minute=600)
    model = RecordedModel(tmp_path / "c.jsonl", FunctionModel(answer), limiter=limiter)
    assert (await model.complete(ask("one"))).content == "yes"
    assert trio.current_time() >= 20


async def test_who_asks_the_same_while_he_reads_it_does_not_wait_for_himself(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cassette.jsonl"
    model = RecordedModel(path, FunctionModel(lambda request: "one two"))
    with trio.fail_after(10):  # Of real time: for the clock of tests a thread is nobody at work.
        async with model.stream(ask("one")) as stream:
            await anext(stream)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(model.complete, ask("one"))
            inside = await model.complete(ask("one"))
            pieces = [piece async for piece in stream]
    assert pieces[-1] == inside == await RecordedModel(path).complete(ask("one"))


async def test_a_cassette_holds_no_key(tmp_path: Path) -> None:
    path = tmp_path / "cassette.jsonl"
    async with open_model(
        "chat", answer=lambda request: "yes", options={"api_key": "sk-a-very-secret-key"}
    ) as (model, _):
        await RecordedModel(path, model).complete(ask("hello"))
        await streamed(RecordedModel(path, model), ask("hello again"))
    assert "secret" not in path.read_text()
    assert (await RecordedModel(path).complete(ask("hello"))).content == "yes"


async def test_replays_keep_limits_and_budgets_and_recordings_are_billed_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "cassette.jsonl"
    limiter = Limiter("inner", tokens_per_minute=10_000)
    whole = ModelResponse("yes", usage=Usage(50, 7))
    inner = ScriptedModel([whole], limiter=limiter)
    for answering in (inner, None):
        model = RecordedModel(path, answering)
        async with harness.open_run("paid", budget=harness.Budget(tokens=1_000)):
            await model.complete(ask("hello"))
            (budget,) = budget_statistics()
            assert budget.tokens is not None
            assert budget.tokens.spent == 57
    own = Limiter("own", tokens_per_minute=10_000)
    await RecordedModel(path, limiter=own).complete(ask("hello"))
    await RecordedModel(path, inner, limiter=own).complete(ask("hello again"))
    await streamed(RecordedModel(path, inner, limiter=own), ask("hello once more"))
    assert own.statistics().dimensions["tokens"].used == 3 * 57
    assert limiter.statistics().dimensions["tokens"].used == 3 * 57


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
CALLS = st.builds(
    ToolCall,
    st.text(),
    st.text(),
    st.dictionaries(st.text(), JSON_VALUES, max_size=3),
    unreadable=st.none() | st.text(),
)
RESPONSES = st.builds(
    ModelResponse,
    st.text(),
    tool_calls=st.lists(CALLS, max_size=3),
    usage=st.builds(Usage, st.integers(0), st.integers(0), cached_input_tokens=st.integers(0, 10)),
    finish=st.sampled_from(get_args(Finish)),
    reasoning=st.text(),
)
REQUESTS = st.builds(
    ModelRequest,
    st.lists(
        st.builds(
            Message,
            st.sampled_from(["system", "user", "assistant", "tool"]),
            st.text(max_size=5),
            st.lists(CALLS, max_size=1),
        ),
        max_size=3,
    ),
)


@given(RESPONSES)
def test_a_response_comes_back_as_it_went(response: ModelResponse) -> None:
    values = json.loads(json.dumps(response_json(response)))
    assert response_of_json(values) == response


@pytest.mark.slow
@given(REQUESTS, REQUESTS)
def test_requests_have_one_key_if_they_are_equal_and_else_a_difference(
    one: ModelRequest, other: ModelRequest
) -> None:
    first: dict[str, Any] = request_json(one)
    second = request_json(other)
    assert (request_key(first) == request_key(second)) == (first == second)
    if first != second:
        assert difference(first, second)
