"""Reading what providers, and servers that only nearly speak like them, send."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agents import Conversation
from harness.errors import (
    ContentFilterError,
    ContextWindowError,
    ModelAccessError,
    ModelRequestError,
    ModelStatusError,
)
from harness.models import Message, ModelRequest, ModelResponse, ToolCall, ToolDescription, Usage
from harness.models import _events as events_module
from harness.models._anthropic_messages import AnthropicMessages
from harness.models._canonical import response_json, response_of_json
from harness.models._dialect import (
    CallSettings,
    Dialect,
    ReportedError,
    UnreadableReply,
    finish_of,
    tool_call,
)
from harness.models._events import EventDecoder, EventTooLargeError
from harness.models._failures import status_error_kind
from harness.models._openai_chat import OpenAIChat
from harness.models._openai_responses import OpenAIResponses
from harness.models._options import with_options
from harness.models._schemas import enforceable, root_object
from harness.models._sizes import request_tokens, text_tokens


def decode(*chunks: bytes) -> list[str]:
    decoder = EventDecoder()
    events: list[str] = []
    for chunk in chunks:
        events.extend(decoder.feed(chunk))
    return [*events, *decoder.end()]


# Events -------------------------------------------------------------------------------------------


def test_events_as_the_specification_has_them() -> None:
    assert decode(b"data: a\n\ndata:b\n\n") == ["a", "b"]
    assert decode(b"event: x\nid: 3\ndata: a\ndata: b\n\n: a comment\n\n") == ["a\nb"]
    assert decode(b"data: a\r\n\r\ndata: b\r\rdata: c\n\n") == ["a", "b", "c"]
    assert decode(b"data: a\n\ndata: no empty line") == ["a", "no empty line"]
    assert decode(b"data: a\r", b"\ndata: b\r\n\r", b"\n") == ["a\nb"], "one end in two chunks"
    assert decode(b"retry: 3\n\n") == []
    assert decode("data: 21 °C\n\n".encode()) == ["21 °C"]


LINES = st.lists(
    st.sampled_from([b"data: a", "data: °".encode(), b"data:", b"", b"event: x", b": c"]),
    max_size=12,
)


@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 100), max_size=8))
def test_where_the_bytes_are_cut_makes_no_difference(
    lines: list[bytes], line_end: bytes, cuts: list[int]
) -> None:
    stream = line_end.join([*lines, b"", b""])
    places = sorted({min(cut, len(stream)) for cut in cuts})
    chunks = [
        stream[begin:end] for begin, end in zip([0, *places], [*places, len(stream)], strict=True)
    ]
    assert decode(*chunks) == decode(stream)


def test_an_event_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "MOST_BYTES", 1_000)
    decoder = EventDecoder()
    for _ in range(50):
        assert list(decoder.feed(b"data: whole\n\n" * 10)), "many small ones are fine"
    with pytest.raises(EventTooLargeError):
        for _ in range(50):
            list(decoder.feed(b"data: " + b"x" * 100))


# Chat completions ---------------------------------------------------------------------------------


def read_stream(dialect: Dialect, events: list[Any]) -> tuple[str, ModelResponse]:
    reader = dialect.reader()
    text = "".join(reader.take(event) for event in events)
    reader.take_end()
    assert reader.done
    return text, reader.whole()


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def call(index: int | None, arguments: str | None, **fields: Any) -> dict[str, Any]:
    function = {"arguments": arguments, "name": fields.pop("name", None)}
    place = {} if index is None else {"index": index}
    return {**place, **fields, "function": function}


def test_pieces_of_several_calls_are_put_together() -> None:
    text, whole = read_stream(
        OpenAIChat(),
        [
            chunk(role="assistant", content=None),
            chunk(
                tool_calls=[call(0, "", id="a", name="one"), call(1, '{"x"', id="b", name="two")]
            ),
            chunk(tool_calls=[call(1, ": 1}")]),
            chunk(tool_calls=[call(0, '{"y": 2}')]),
            chunk("tool_calls"),
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
            "[DONE]",
        ],
    )
    assert text == ""
    assert whole == ModelResponse(
        tool_calls=[ToolCall("a", "one", {"y": 2}), ToolCall("b", "two", {"x": 1})],
        usage=Usage(3, 4),
    )


def test_servers_that_leave_things_out_are_understood() -> None:
    """No call numbers, no ids, no end marker, usage alongside the last piece."""
    whole = read_stream(
        OpenAIChat(),
        [
            chunk(tool_calls=[call(None, '{"x": 1}', id="a", name="one")]),
            chunk(tool_calls=[call(None, '{"x": 2}', id="b", name="two")]),
            {**chunk("tool_calls"), "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        ],
    )[1]
    assert [(made.id, made.arguments) for made in whole.tool_calls] == [
        ("a", {"x": 1}),
        ("b", {"x": 2}),
    ]
    whole = read_stream(
        OpenAIChat(),
        [
            chunk(tool_calls=[call(None, '{"x"', name="one")]),
            chunk("tool_calls", tool_calls=[call(None, ": 1}")]),
        ],
    )[1]
    assert whole.tool_calls == (ToolCall("call_0", "one", {"x": 1}),)


def test_what_is_not_known_is_passed_over() -> None:
    text, whole = read_stream(
        OpenAIChat(),
        [
            {"object": "new.kind"},
            {"choices": None},
            {"choices": ["odd"]},
            {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
            chunk(reasoning_content="I think", content="yes", audio={}),
            chunk("stop", content=["parts"]),
        ],
    )
    begun = {"type": "content_block_start", "index": [], "content_block": []}
    assert AnthropicMessages().reader().take(begun) == ""
    assert OpenAIChat().reader().take(chunk(tool_calls=[{"index": [1]}])) == ""
    assert text == "yes"
    assert whole == ModelResponse("yes", reasoning="I think")


def test_text_in_parts_is_text() -> None:
    """As given by some servers that have parts of other kinds too."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [thought, {"type": "text", "text": "yes"}, {"type": "text", "text": " and no"}]
    message = {"content": parts}
    whole = OpenAIChat().read({"choices": [{"message": message, "finish_reason": "stop"}]})
    assert whole.content == "yes and no"
    text, whole = read_stream(
        OpenAIChat(), [chunk(content=[thought]), chunk(content=parts[1:]), chunk("stop")]
    )
    assert text == whole.content == "yes and no"


def test_a_refusal_is_an_answer() -> None:
    assert read_stream(OpenAIChat(), [chunk(refusal="I must"), chunk("stop", refusal=" not")])[
        1
    ] == ModelResponse("I must not", finish="refusal")
    message = {"content": None, "refusal": "I must not"}
    whole = OpenAIChat().read({"choices": [{"message": message, "finish_reason": "stop"}]})
    assert (whole.content, whole.finish) == ("I must not", "refusal")
    parts = [{"type": "refusal", "refusal": "I must not"}]
    output = [{"type": "reasoning"}, {"type": "message", "content": parts}]
    assert OpenAIResponses().read({"status": "completed", "output": output}).content == "I must not"
    silent = AnthropicMessages().read({"content": [], "stop_reason": "refusal"})
    assert silent == ModelResponse(finish="refusal")


def test_a_model_that_thought_up_all_its_output_is_told_from_an_empty_one() -> None:
    for reason in ("length", "stop"):
        message = {"message": {"content": ""}, "finish_reason": reason}
        assert OpenAIChat().read({"choices": [message]}) == ModelResponse(finish=reason)


@pytest.mark.parametrize(
    ("reason", "calls", "finish"),
    [
        ("stop", 1, "tool_calls"),  # As Ollama ends calls of tools.
        ("tool_calls", 0, "other"),
        ("model_length", 0, "length"),
        ("SAFETY", 0, "content_filter"),
        ("pause_turn", 0, "other"),
        (None, 0, "stop"),
        (7, 1, "tool_calls"),
    ],
)
def test_each_word_for_an_ending_means_one_of_six(reason: object, calls: int, finish: str) -> None:
    assert finish_of(reason, [ToolCall("1", "t")] * calls) == finish


@pytest.mark.parametrize(
    ("given_arguments", "expected"),
    [
        ('{"a": 1}', ToolCall("i", "t", {"a": 1})),
        ({"a": 1}, ToolCall("i", "t", {"a": 1})),
        ("", ToolCall("i", "t")),
        (None, ToolCall("i", "t")),
        ("null", ToolCall("i", "t")),
        ("[]", ToolCall("i", "t")),
        ([], ToolCall("i", "t")),
        ('""', ToolCall("i", "t")),
        (r'"{\"a\": 1}"', ToolCall("i", "t", {"a": 1})),
        ('{"a": ', ToolCall("i", "t", unreadable='{"a": ')),
        ("[1]", ToolCall("i", "t", unreadable="[1]")),
        ("[" * 100_000, ToolCall("i", "t", unreadable="[" * 100_000)),
    ],
)
def test_arguments_that_are_no_object_are_kept_as_they_came(
    given_arguments: object, expected: ToolCall
) -> None:
    """So whoever runs the tools can tell the model, and it can correct itself."""
    assert tool_call("i", "t", given_arguments, 0) == expected


# What has to come back with a call ----------------------------------------------------------------

SETTINGS = CallSettings(model="m")
_IN_PIECES = {
    "text": "text_delta",
    "thinking": "thinking_delta",
    "signature": "signature_delta",
    "partial_json": "input_json_delta",
}


def sent_again(dialect: Dialect, whole: ModelResponse) -> list[Any]:
    """Return the messages of the next request, after the history was saved and loaded."""
    results = [Message("tool", "noon", tool_call_id=call.id) for call in whole.tool_calls]
    history = [Message("user", "hi"), Message("assistant", whole.content, whole.tool_calls)]
    loaded = Conversation.from_json(Conversation([*history, *results]).to_json())
    assert response_of_json(response_json(whole)) == whole
    messages: list[Any] = dialect.body(ModelRequest(loaded.messages), SETTINGS)["messages"]
    return messages


def test_what_a_model_thought_before_it_calls_a_tool_is_sent_back_unchanged() -> None:
    """Anthropic refuses the result of a call that was thought about, without the thoughts."""
    thought = {"type": "thinking", "thinking": "What time is it?", "signature": "c2ln"}
    hidden = {"type": "redacted_thinking", "data": "aGlkZGVu"}
    content: list[dict[str, Any]] = [
        thought,
        hidden,
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "clock", "input": {"zone": "UTC"}},
        {**thought, "signature": "b3RoZXI="},
        {"type": "tool_use", "id": "b", "name": "clock", "input": {}},
    ]
    dialect = AnthropicMessages()
    whole = dialect.read({"content": content, "stop_reason": "tool_use"})
    assert sent_again(dialect, whole)[1] == {"role": "assistant", "content": content}

    events: list[Any] = [{"type": "message_start", "message": {}}]
    for index, block in enumerate(content):
        begun = {name: "" if name in _IN_PIECES else value for name, value in block.items()}
        if "input" in begun:
            begun["input"] = {}
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        pieces = (
            {**block, "partial_json": json.dumps(block["input"])} if "input" in block else block
        )
        for name, kind in _IN_PIECES.items():
            for piece in (pieces.get(name, "")[:3], pieces.get(name, "")[3:]):
                if piece:
                    delta = {"type": kind, name: piece}
                    events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}]
    text, streamed = read_stream(dialect, [*events, {"type": "message_stop"}])
    assert text == "I look."
    assert streamed == whole
    assert "What time" not in str(sent_again(OpenAIChat(), whole)), "it is nobody else's"


@pytest.mark.parametrize("dialect", [OpenAIChat(), OpenAIResponses(), AnthropicMessages()])
@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("look_up-2", "look_up-2"),
        ("functions.look up", "functions_look_up"),
        ("", "_"),
        ("n" * 65, "n" * 64),
        ("größe", "gr__e"),
    ],
)
def test_a_name_that_no_provider_takes_back_is_sent_as_one_they_take(
    dialect: Dialect, name: str, sent: str
) -> None:
    """Models call tools that don't exist; the next request was refused for its history."""
    history = [
        Message("user", "hi"),
        Message("assistant", tool_calls=[ToolCall("c1", name, {})]),
        Message("tool", "there is no such tool", tool_call_id="c1"),
    ]
    body = json.dumps(dialect.body(ModelRequest(history), SETTINGS))
    assert re.findall(r'"name": "(.*?)"', body) == [sent]


def test_what_a_server_adds_to_a_call_is_sent_back() -> None:
    """Google's has its signature there, and refuses a history without."""
    extra = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    made = call(0, "{}", id="a", name="clock", **extra)
    _, whole = read_stream(OpenAIChat(), [chunk(tool_calls=[made]), chunk("tool_calls")])
    message = {"message": {"content": None, "tool_calls": [made]}}
    assert OpenAIChat().read({"choices": [message]}) == whole
    (again,) = sent_again(OpenAIChat(), whole)[1]["tool_calls"]
    assert again == {
        "id": "a",
        "type": "function",
        "function": {"name": "clock", "arguments": "{}"},
        **extra,
    }


def test_the_beginning_of_a_request_is_marked_for_the_cache() -> None:
    tool = ToolDescription("t", "A tool.", {"type": "object"})
    history = [Message("system", "Be kind."), Message("user", "hi")]
    settings = CallSettings(model="m", cache_prompts=True)
    mark = {"cache_control": {"type": "ephemeral"}}
    body = AnthropicMessages().body(ModelRequest(history, [tool]), settings)
    assert body["system"] == [{"type": "text", "text": "Be kind.", **mark}]
    assert body["messages"][-1]["content"] == [{"type": "text", "text": "hi", **mark}]
    assert "cache_control" not in body["tools"][-1], "the mark after it is for both"
    body = AnthropicMessages().body(ModelRequest(history[1:], [tool]), settings)
    assert body["tools"][-1]["cache_control"] == mark["cache_control"]
    assert "cache_control" not in str(AnthropicMessages().body(ModelRequest(history), SETTINGS))


NUMBERS = st.none() | st.text() | st.floats() | st.integers() | st.lists(st.integers())


@given(NUMBERS, NUMBERS)
def test_usage_is_never_nonsense(one: object, other: object) -> None:
    usage = {"prompt_tokens": one, "completion_tokens": other, "prompt_tokens_details": one}
    message = {"message": {"content": "x"}}
    read = OpenAIChat().read({"choices": [message], "usage": usage}).usage
    assert type(read.input_tokens) is int
    assert read.input_tokens >= 0
    assert read.output_tokens >= 0


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "delta",
                    "content",
                    "tool_calls",
                    "function",
                    "output",
                    "type",
                    "text",
                    "index",
                    "usage",
                    "content_block",
                    "id",
                    "error",
                    "response",
                ]
            ),
            inside,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON_VALUES, st.sampled_from([OpenAIChat(), OpenAIResponses(), AnthropicMessages()]))
def test_whatever_comes_is_read_or_called_unreadable(value: object, dialect: Dialect) -> None:
    """Anything else would come out of a call as an obscure ``TypeError``."""
    from_reader = dialect.reader()
    for attempt in (lambda: dialect.read(value), lambda: from_reader.take(value)):
        with contextlib.suppress(UnreadableReply, ReportedError):
            attempt()


# Schemas ------------------------------------------------------------------------------------------


def test_schemas_are_brought_into_the_form_that_can_be_enforced() -> None:
    def obj(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
        return {"type": "object", "properties": properties, "required": required}

    closed = enforceable(
        obj(
            {"minimum": {"type": "integer", "minimum": 3}, "sub": obj({"a": {}}, ["a"])},
            ["minimum", "sub"],
        ),
        all_required=True,
    )
    assert closed == {
        **obj(
            {
                "minimum": {"type": "integer"},
                "sub": {**obj({"a": {}}, ["a"]), "additionalProperties": False},
            },
            ["minimum", "sub"],
        ),
        "additionalProperties": False,
    }
    optional = obj({"a": {"type": "string"}}, [])
    assert enforceable(optional, all_required=True) is None
    assert enforceable(optional, all_required=False) is not None
    open_object = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert enforceable(open_object, all_required=False) is None
    assert root_object({"type": "array"}) is None
    assert root_object({"$ref": "#/$defs/A", "$defs": {"A": {"type": "integer"}}}) is None
    assert root_object({"$ref": "#/$defs/A"}) is None


def test_a_form_that_can_only_be_described_is_described() -> None:
    request = ModelRequest(
        [Message("user", "x")],
        output_schema={"type": "object", "properties": {"a": {"type": "string"}}},
    )
    settings = CallSettings(model="m")
    form = OpenAIChat().body(request, settings)["response_format"]["json_schema"]
    assert form["strict"] is False
    number = ModelRequest([Message("user", "x")], output_schema={"type": "integer"})
    assert "response_format" not in OpenAIChat().body(number, settings)
    assert "extra_body" not in AnthropicMessages().body(number, settings)


# Sizes --------------------------------------------------------------------------------------------


def test_tokens_are_guessed_by_bytes() -> None:
    assert text_tokens("word") == 1
    assert text_tokens("") == 0
    assert text_tokens("日本語") == 3
    assert text_tokens("\ud800") == 1
    long = ModelRequest([Message("user", "word" * 100)])
    assert request_tokens(long) == 104
    assert json.dumps(OpenAIChat().body(long, CallSettings(model="m")))


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (401, "Incorrect API key provided", ModelAccessError),
        (403, "Country, region, or territory not supported", ModelAccessError),
        (404, "The model `m` does not exist", ModelRequestError),
        (400, "Invalid value for 'n'", ModelRequestError),
        (413, "Request exceeds the maximum allowed number of bytes", ModelRequestError),
        (500, "The server had an error", ModelStatusError),
        # OpenAI, Azure, DeepSeek and vLLM; Anthropic; Google; Mistral; llama.cpp; Groq; Ollama.
        (400, "This model's maximum context length is 8192 tokens.", ContextWindowError),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", ContextWindowError),
        (400, "input length and `max_tokens` exceed context limit: 9 + 8 > 16", ContextWindowError),
        (
            400,
            "The input token count (9) exceeds the maximum number of tokens allowed (8).",
            ContextWindowError,
        ),
        (
            400,
            "Prompt contains 9 tokens, too large for model with 8 maximum context length",
            ContextWindowError,
        ),
        (
            500,
            "the request exceeds the available context size. try increasing it",
            ContextWindowError,
        ),
        (400, "Please reduce the length of the messages or completion.", ContextWindowError),
        (400, "the input length exceeds the context length", ContextWindowError),
        (
            400,
            "The response was filtered due to Azure OpenAI's content management policy.",
            ContentFilterError,
        ),
    ],
)
def test_each_reason_of_a_refusal_has_a_type_of_its_own(
    status: int, message: str, kind: type[ModelStatusError]
) -> None:
    assert status_error_kind(status, {"error": {"message": message}}) is kind


def test_what_a_model_thought_goes_back_to_openais_responses_with_its_call() -> None:
    """Nothing is stored there, so without its encrypted thoughts the model thinks all over."""
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "What time is it?"}],
        "encrypted_content": "aGlkZGVu",
    }
    call = {"type": "function_call", "call_id": "a", "name": "clock", "arguments": "{}"}
    said = {"type": "message", "content": [{"type": "output_text", "text": "I look."}]}
    reply = {
        "status": "completed",
        "output": [
            {**thought, "status": None},
            said,
            call,
            {**thought, "id": "rs_2"},
            {**call, "call_id": "b"},
        ],
    }
    dialect = OpenAIResponses()
    whole = dialect.read(reply)
    assert whole.reasoning == "What time is it?\n\nWhat time is it?"
    results = [Message("tool", "12:00", tool_call_id=id_) for id_ in "ab"]
    history = [Message("user", "hi"), Message("assistant", whole.content, whole.tool_calls)]
    body = dialect.body(ModelRequest([*history, *results]), SETTINGS)
    assert body["input"][1:6] == [
        thought,
        {"role": "assistant", "content": "I look."},
        call,
        {**thought, "id": "rs_2"},
        {**call, "call_id": "b"},
    ]
    reader = dialect.reader()
    reader.take({"type": "response.completed", "response": reply})
    assert reader.whole() == whole
    answer = dialect.read({"status": "completed", "output": [thought, said]})
    assert answer == ModelResponse("I look.", reasoning="What time is it?"), "nothing to send back"


@pytest.mark.parametrize(
    ("name", "thinks"),
    [
        ("gpt-5-mini", True),
        ("o4-mini", True),
        ("openai/o3", True),
        ("gpt-5-chat-latest", False),
        ("gpt-4o", False),
        ("gpt-4.1", False),
    ],
)
def test_only_models_that_think_are_asked_for_their_thoughts(name: str, thinks: bool) -> None:
    """The others refuse such a request."""
    body = OpenAIResponses().body(ModelRequest([Message("user", "hi")]), CallSettings(model=name))
    assert (body.get("include") == ["reasoning.encrypted_content"]) is thinks
    sent = with_options(body, {"include": ["message.output_text.logprobs"]}, name)
    assert len(sent["include"]) == 1 + thinks


def test_deepseek_gets_back_what_it_thought_only_with_calls() -> None:
    """It refuses the results of a call without the thoughts, and pays for those of an answer."""
    settings = CallSettings(model="deepseek-reasoner", server="api.deepseek.com")
    said = {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."}
    whole = OpenAIChat().read({"choices": [{"message": said, "finish_reason": "stop"}]}, settings)
    assert whole.reasoning == "A greeting."
    history = [Message("user", "hi"), Message("assistant", whole.content), Message("user", "so?")]
    assert "reasoning_content" not in str(OpenAIChat().body(ModelRequest(history), settings))
