"""The models of OpenAI and Anthropic, through their own libraries."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness import models
from harness.errors import (
    MissingApiKeyError,
    ModelError,
    ModelNotOpenError,
    ModelUnreachableError,
)
from harness.limits import Limiter
from harness.models import (
    AnthropicModel,
    Message,
    ModelRequest,
    ModelResponse,
    OpenAIModel,
    ToolCall,
    ToolDescription,
    Usage,
)
from harness.testing.provider import Answer, AnswerToolCall, Faults, ProviderRequest
from tests.models.providers import WAYS, ask, make_model, open_model, read

TEXT = "It is sunny — 21 °C in Zürich,\n  and dry."  # 41 characters, 11 tokens.
CALLS = (
    AnswerToolCall("weather", {"city": "Zürich", "days": [1, 2]}, id="call_a"),
    AnswerToolCall("clock", {}, id="call_b"),
)
TOOLS = (
    ToolDescription(
        "weather",
        "Tells the weather.",
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    ),
)


def answer(request: ProviderRequest) -> Answer | str:
    if request.prompt == "tools":
        return Answer(TEXT, CALLS)
    if request.prompt == "only tools":
        return Answer("", CALLS)
    if request.prompt == "cut short":
        return Answer(TEXT, finish="length")
    return TEXT if request.prompt == "weather" else request.prompt


@pytest.fixture
def autojump_clock() -> MockClock:
    """A virtual clock that leaves sockets the time to answer."""
    return MockClock(autojump_threshold=0.02)


@pytest.mark.parametrize("way", WAYS)
async def test_text_tools_and_usage_come_whole_and_in_pieces(way: str) -> None:
    calls = (
        ToolCall("call_a", "weather", {"city": "Zürich", "days": [1, 2]}),
        ToolCall("call_b", "clock", {}),
    )
    size = sum(len(call.name + call.arguments_json) for call in CALLS)
    async with open_model(way, answer=answer) as (model, provider):
        for prompt, expected in [
            ("weather", ModelResponse(TEXT, usage=Usage(2, 11))),
            ("cut short", ModelResponse(TEXT, usage=Usage(3, 11), finish="length")),
            (
                "tools",
                ModelResponse(TEXT, tool_calls=calls, usage=Usage(2, -(-(len(TEXT) + size) // 4))),
            ),
            ("only tools", ModelResponse("", tool_calls=calls, usage=Usage(3, -(-size // 4)))),
        ]:
            assert await model.complete(ask(prompt)) == expected
            assert await read(model, ask(prompt)) == (expected.content, expected)
        assert provider.statistics().connections_opened == 1, "it is used again"
        assert provider.statistics().clients_gone == 0
    assert provider.statistics().connections == 0


@pytest.mark.slow
async def test_a_stream_comes_while_it_is_written(autojump_clock: MockClock) -> None:
    async with open_model("chat", answer=answer, faults=Faults(event_gap_seconds=1.0)) as (
        model,
        _,
    ):
        moments: list[float] = []
        async with model.stream(ask("weather")) as stream:
            async for _ in stream:
                moments.append(trio.current_time())
        assert moments[-1] - moments[0] >= 2


HISTORY = ModelRequest(
    [
        Message("system", "Be brief."),
        Message("user", "How is the weather?"),
        Message("assistant", "I look.", [ToolCall("a", "weather", {"city": "Bonn"})]),
        Message("tool", "rain", tool_call_id="a"),
        Message("assistant", "", [ToolCall("b", "clock"), ToolCall("c", "clock")]),
        Message("tool", "noon", tool_call_id="b"),
        Message("tool", "an error", tool_call_id="c"),
        Message("user", "And now?"),
    ],
    TOOLS,
)


async def body_of(way: str, request: ModelRequest, **options: Any) -> dict[str, Any]:
    """Return what a model sends for a request."""
    bodies: list[dict[str, Any]] = []

    def keep(request: ProviderRequest) -> str:
        bodies.append(dict(request.body))
        return "yes"

    async with open_model(way, answer=keep, options=options) as (model, _):
        await model.complete(request)
    return bodies[0]


async def test_a_history_in_the_words_of_chat_completions() -> None:
    body = await body_of("chat", HISTORY)
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is the weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Bonn"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": name, "type": "function", "function": {"name": "clock", "arguments": "{}"}}
                for name in "bc"
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
        {"role": "tool", "tool_call_id": "c", "content": "an error"},
        {"role": "user", "content": "And now?"},
    ]
    (tool,) = body["tools"]
    assert tool["function"]["parameters"] == TOOLS[0].parameters


async def test_a_history_in_the_words_of_responses() -> None:
    body = await body_of("responses", HISTORY)
    assert body["input"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": "I look."},
        {
            "type": "function_call",
            "call_id": "a",
            "name": "weather",
            "arguments": '{"city": "Bonn"}',
        },
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {"type": "function_call", "call_id": "b", "name": "clock", "arguments": "{}"},
        {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "noon"},
        {"type": "function_call_output", "call_id": "c", "output": "an error"},
        {"role": "user", "content": "And now?"},
    ]
    assert body["store"] is False
    assert body["tools"][0]["name"] == "weather"


async def test_a_history_in_the_words_of_messages() -> None:
    """Consecutive messages to the model are one turn: Anthropic wants the results that way."""
    body = await body_of("messages", HISTORY)
    assert body["system"] == "Be brief."
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "How is the weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Bonn"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": "rain"}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": name, "name": "clock", "input": {}} for name in "bc"
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": "noon"},
                {"type": "tool_result", "tool_use_id": "c", "content": "an error"},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    assert body["max_tokens"] == 4_096
    assert body["tools"][0]["input_schema"] == TOOLS[0].parameters


SCHEMA = {
    "$ref": "#/$defs/Ticket",
    "$defs": {
        "Ticket": {
            "type": "object",
            "properties": {
                "kind": {"enum": ["a", "b"]},
                "urgency": {"type": "integer", "minimum": 0},
            },
            "required": ["kind", "urgency"],
        }
    },
}


@pytest.mark.slow
async def test_the_form_of_an_answer_is_passed_on_to_be_enforced() -> None:
    request = ModelRequest([Message("user", "sort")], output_schema=SCHEMA)
    chat = (await body_of("chat", request))["response_format"]
    assert chat["type"] == "json_schema"
    assert chat["json_schema"]["strict"] is True
    schema = chat["json_schema"]["schema"]
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["properties"]["urgency"] == {"type": "integer"}
    responses = (await body_of("responses", request))["text"]["format"]
    assert responses == {"type": "json_schema", **chat["json_schema"]}
    messages = (await body_of("messages", request))["output_config"]
    assert messages == {"format": {"type": "json_schema", "schema": schema}}
    for way in WAYS:
        body = await body_of(way, request, enforce_schema=False)
        assert not {"response_format", "text", "output_config"} & set(body)


@pytest.mark.slow
async def test_settings_and_options_are_sent() -> None:
    options = {
        "max_output_tokens": 50,
        "temperature": 0.5,
        "options": {"extra_body": {"top_p": 0.9}},
    }
    for way, name in zip(WAYS, ("max_tokens", "max_output_tokens", "max_tokens"), strict=True):
        body = await body_of(way, ask("hello"), **options)
        assert (body[name], body["temperature"], body["top_p"]) == (50, 0.5, 0.9)
    async with OpenAIModel("m", api_key="any") as model:
        sent = model._arguments(ask("hello"))
        assert "max_tokens" not in sent
    async with OpenAIModel("m", api_key="any", max_output_tokens=50) as model:
        assert model._arguments(ask("hello"))["max_completion_tokens"] == 50
    async with open_model("chat", answer=answer, options={"options": {"no_such": 1}}) as (bad, _):
        with pytest.raises(TypeError, match="no_such"):
            await bad.complete(ask("hello"))


async def test_every_call_is_settled_with_usage_and_headers(autojump_clock: MockClock) -> None:
    """The limiter hears the provider's count, and so corrects limits that were stated wrongly."""
    for way in WAYS:
        limiter = Limiter("any", requests_per_minute=1_000, tokens_per_minute=100_000)
        async with open_model(
            way,
            answer=lambda request: Answer("yes", input_tokens=300, output_tokens=20),
            requests_per_minute=40,
            judged="minute",
            options={"limiter": limiter},
        ) as (model, _):
            await model.complete(ask("hello"))
            await read(model, ask("hello again"))
        dimensions = limiter.statistics().dimensions
        assert dimensions["tokens"].used == pytest.approx(640, abs=1)
        assert dimensions["requests"].limit == 40, way


async def test_what_a_provider_had_in_its_cache_is_told_and_not_limited() -> None:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 90,
        "cache_creation_input_tokens": 5,
        "output_tokens": 7,
    }
    read_whole = models.AnthropicModel("m")._dialect.read(
        {"content": [{"type": "text", "text": "yes"}], "usage": usage}
    )
    assert read_whole.usage == Usage(105, 7, cached_input_tokens=90, cache_write_input_tokens=5)


@pytest.mark.parametrize("way", WAYS)
async def test_a_model_is_used_inside_its_block_only(way: str) -> None:
    limiter = Limiter("full", concurrent=1)
    model = make_model(way, "http://127.0.0.1:9", limiter=limiter)
    async with limiter.reserve():  # It says so at once, before it waits in a line.
        for _ in range(2):
            with pytest.raises(ModelNotOpenError, match="'m' is not open; use it inside"):
                await model.complete(ask("hello"))
            with pytest.raises(ModelNotOpenError):
                async with model.stream(ask("hello")):
                    pass
            with pytest.raises(TypeError, match=r"async with (OpenAI|Anthropic|Local)Model\("):
                with model:  # type: ignore[union-attr]
                    pytest.fail("the block was entered")
            async with model:
                with pytest.raises(ModelNotOpenError, match="open already"):
                    await model.__aenter__()


async def test_a_missing_key_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, variable in [
        (OpenAIModel("gpt"), "OPENAI_API_KEY"),
        (OpenAIModel("gpt", base_url="https://models.example/v1"), "OPENAI_API_KEY"),
        (AnthropicModel("claude"), "ANTHROPIC_API_KEY"),
    ]:
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(
            MissingApiKeyError, match=rf"has no key: set .* {variable}.*run 'nightly'"
        ):
            async with harness.open_run("nightly"):
                async with model:
                    pass
        monkeypatch.setenv(variable, "sk-from-the-environment")
        async with model:
            pass
    monkeypatch.delenv("OPENAI_API_KEY")
    async with OpenAIModel("m", base_url="http://127.0.0.1:9/v1"):
        pass  # A server on this machine needs none.
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:9/v1")
    async with OpenAIModel("m"):
        pass


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_from_a_file_is_sent_without_the_end_of_its_line(way: str) -> None:
    async with open_model(way, answer=answer, options={"api_key": "sk-secret-key\n"}) as (model, _):
        assert await model.complete(ask("weather")) is not None


@pytest.mark.parametrize("key", ["sk-secret\nkey", "sk-secret key", "sk-secrét-key"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_key_that_can_not_be_sent_is_told_and_not_quoted(way: str, key: str) -> None:
    """The layers beneath quote the header that they can't send, with the key in it."""
    model = make_model(way, "http://127.0.0.1:9", api_key=key)
    with pytest.raises(
        MissingApiKeyError, match=r"'m' of .* has a key that can't be sent"
    ) as caught:
        await model.__aenter__()
    assert "secr" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://[::1", "http://models.example:port/v1"])
@pytest.mark.parametrize("kind", [OpenAIModel, AnthropicModel])
async def test_an_address_that_is_none_is_a_typed_error(
    kind: type[OpenAIModel] | type[AnthropicModel], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an error of the HTTP library, of no type that anybody here knows."""
    with pytest.raises(ModelUnreachableError, match=r"'m' of .* could not be reached: InvalidURL"):
        async with kind("m", base_url=address, api_key="sk-secret-key"):
            pass
    variable = "OPENAI" if kind is OpenAIModel else "ANTHROPIC"
    monkeypatch.setenv(f"{variable}_BASE_URL", address)
    monkeypatch.delenv(f"{variable}_API_KEY", raising=False)
    with pytest.raises(MissingApiKeyError):
        async with kind("m"):
            pass


@pytest.mark.parametrize("way", WAYS)
async def test_text_that_can_not_be_written_is_a_typed_error(way: str) -> None:
    """Half of a pair, in a history of somebody else's; it was an error of the library's insides."""
    async with open_model(way, answer=answer) as (model, provider):
        request = ModelRequest([Message("user", "caf\udce9")])
        with pytest.raises(ModelError, match=r"'m' of .* was not asked: .*surrogates not all"):
            await model.complete(request)
        with pytest.raises(ModelError, match="was not asked"):
            async with model.stream(request):
                pass
        assert provider.statistics().requests == 0
        assert await model.complete(ask("weather")) is not None


def test_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(TypeError, match=r"OpenAIModel\(options=...\) takes a mapping .* not 5"):
        OpenAIModel("m", options=5)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_left_early_closes_its_connection_without_a_word(
    way: str, autojump_clock: MockClock, recwarn: pytest.WarningsRecorder
) -> None:
    """The libraries leave generators suspended, which trio would find and warn of."""
    async with open_model(way, answer=answer, faults=Faults(event_gap_seconds=0.5)) as (
        model,
        provider,
    ):
        for _ in range(3):
            async with model.stream(ask("weather")) as stream:
                assert isinstance(await anext(stream), str)
        gc.collect()
        await trio.sleep(5)
        statistics = provider.statistics()
        assert (statistics.in_flight, statistics.connections) == (0, 0)
        assert await model.complete(ask("still here")) is not None
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


async def test_a_model_whose_opening_was_cancelled_is_not_open() -> None:
    """Nobody leaves a block that was never entered: it would be "open already" from then on."""
    model = OpenAIModel("m", api_key="sk-any")
    with trio.CancelScope() as scope:
        scope.cancel()
        async with model:
            raise AssertionError("entered in spite of the cancel")
    assert scope.cancelled_caught
    async with model:
        pass


def test_keys_stand_in_no_repr() -> None:
    for model in (
        OpenAIModel("m", api_key="sk-secret-key"),
        AnthropicModel("m", api_key="sk-secret-key"),
    ):
        assert "secret" not in repr(model)


@pytest.mark.parametrize(
    ("name", "needed", "extra"),
    [
        ("OpenAIModel", "openai", "openai"),
        ("AnthropicModel", "anthropic", "anthropic"),
        ("LocalModel", "xllamacpp", "local"),
    ],
)
def test_without_its_extra_a_model_says_what_to_install(
    name: str, needed: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"harness.models._{extra}"
    monkeypatch.setitem(sys.modules, needed, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(
        ImportError,
        match=rf"harness.models.{name} needs {needed}, .* pip install 'trio-harness\[{extra}\]'",
    ):
        getattr(models, name)


@pytest.mark.slow
def test_models_load_no_library_before_they_are_used() -> None:
    code = (
        "import sys, harness.models as m;"
        "m.ScriptedModel(['a']);"
        "extras = {'openai', 'anthropic', 'xllamacpp', 'msgspec'};"
        "print(json.dumps(sorted(extras & set(sys.modules))))"
    )
    printed = subprocess.check_output([sys.executable, "-c", f"import json;{code}"], text=True)
    assert json.loads(printed) == []
