"""What servers that are nearly OpenAI's send, one fixture for each way in which they differ.

Each is written after the public reference or report that is named with it, shortened to what
matters. ``whole`` is the body of an answer in one piece; ``stream`` the data of its events, in
order. `tests.models.test_quirks` sends each over HTTP to the real client, and checks that
``docs/reference/models.md`` lists each server.
"""

from __future__ import annotations

from typing import Any

import attrs

from harness.models import ModelResponse, ToolCall, Usage

_OLLAMA = "https://github.com/ollama/ollama/issues/"
_VLLM = "https://github.com/vllm-project/vllm/issues/"


@attrs.frozen(kw_only=True)
class Quirk:
    """One way in which one server differs."""

    server: str
    what: str
    source: str
    expected: ModelResponse
    whole: dict[str, Any] | None = None
    stream: tuple[dict[str, Any] | str, ...] | None = None
    text: str | None = None
    """What a reader of the stream sees, if not the text of the whole."""


def call(
    name: str | None, arguments: Any, call_id: str | None = None, index: int | None = None
) -> dict[str, Any]:
    """Return a call, or a piece of one."""
    made: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    if call_id is not None:
        made["id"] = call_id
    if index is not None:
        made["index"] = index
    return made


def piece(*calls: dict[str, Any], finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return a chunk of a stream."""
    if calls:
        delta["tool_calls"] = list(calls)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def message(*calls: dict[str, Any], finish: str = "tool_calls", **fields: Any) -> dict[str, Any]:
    """Return an answer in one piece."""
    if calls:
        fields["tool_calls"] = list(calls)
    said = {"role": "assistant", "content": None, **fields}
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


def calls(*made: ToolCall, content: str = "", usage: Usage | None = None) -> ModelResponse:
    """Return the answer that is expected."""
    return ModelResponse(content, tool_calls=made, usage=usage or Usage())


OSLO, ROME = {"city": "Oslo"}, {"city": "Rome"}
OSLO_TEXT, ROME_TEXT = '{"city": "Oslo"}', '{"city": "Rome"}'
BOTH = calls(ToolCall("a", "weather", OSLO), ToolCall("b", "weather", ROME))
BOTH_UNNAMED = calls(ToolCall("call_0", "weather", OSLO), ToolCall("call_1", "weather", ROME))
ONE = calls(ToolCall("a", "weather", OSLO))
NOW = calls(ToolCall("a", "now"))


def thought(call_id: str, server_fields: dict[str, Any]) -> ModelResponse:
    """Return a call with what the model thought before it."""
    made = calls(
        ToolCall(
            call_id,
            "weather",
            OSLO,
            provider_state={"openai": {"thoughts": server_fields, "server": "SERVER"}},
        )
    )
    return attrs.evolve(made, reasoning="Which city?")


QUIRKS = (
    Quirk(
        server="Ollama",
        what="all calls of a stream have the number 0",
        source=f"{_OLLAMA}15457",
        stream=(
            piece(call("weather", OSLO_TEXT, "a", 0)),
            piece(call("weather", ROME_TEXT, "b", 0)),
            piece(finish="tool_calls"),
            "[DONE]",
        ),
        whole=message(call("weather", OSLO_TEXT, "a", 0), call("weather", ROME_TEXT, "b", 0)),
        expected=BOTH,
    ),
    Quirk(
        server="Ollama",
        what="calls without numbers",
        source=f"{_OLLAMA}7881",
        stream=(
            piece(call("weather", OSLO_TEXT, "a"), call("weather", ROME_TEXT, "b")),
            piece(finish="stop"),
        ),
        expected=BOTH,
    ),
    Quirk(
        server="Ollama",
        what="a call of a Qwen model as bare JSON",
        source="https://github.com/nugget/thane-ai-agent/pull/21",
        whole=message(content=f'{{"name": "weather", "arguments": {OSLO_TEXT}}}', finish="stop"),
        stream=(
            piece(content='{"na'),
            piece(content='me": "weather", "arguments": '),
            piece(content=f"{OSLO_TEXT}}}"),
            piece(finish="stop"),
        ),
        text="",
        expected=calls(ToolCall("call_0", "weather", OSLO)),
    ),
    Quirk(
        server="vLLM",
        what="the number 0 for each call, an empty id with all pieces but its first",
        source="https://github.com/InternLM/lmdeploy/issues/3412",
        stream=(
            piece(call("weather", "", "a", 0)),
            piece(call(None, '{"city": ', "", 0)),
            piece(call(None, '"Oslo"}', "", 0)),
            piece(call("weather", "", "b", 0)),
            piece(call(None, ROME_TEXT, "", 0)),
            piece(finish="tool_calls"),
        ),
        expected=BOTH,
    ),
    Quirk(
        server="vLLM",
        what="no ids in a stream",
        source=f"{_VLLM}18412",
        stream=(
            piece(call("weather", None, None, 0)),
            piece(call(None, OSLO_TEXT, None, 0)),
            piece(call("weather", None, None, 1)),
            piece(call(None, ROME_TEXT, None, 1)),
            piece(finish="tool_calls"),
        ),
        whole=message(call("weather", OSLO_TEXT), call("weather", ROME_TEXT)),
        expected=BOTH_UNNAMED,
    ),
    Quirk(
        server="vLLM",
        what="a call of a Qwen model left in the text, by one mark for each argument",
        source=f"{_VLLM}21571",
        whole=message(
            content="I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>"
            "\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            finish="stop",
        ),
        stream=(
            piece(content="I look.\n<tool"),
            piece(content="_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>"),
            piece(content="\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"),
            piece(finish="stop"),
        ),
        text="I look.\n",
        expected=calls(ToolCall("call_0", "weather", {**OSLO, "days": 3}), content="I look."),
    ),
    Quirk(
        server="SGLang",
        what="the id and an empty name with every piece",
        source="https://github.com/sgl-project/sglang/issues/4700",
        stream=(
            piece(call("weather", "", "0", 0)),
            piece(call("", OSLO_TEXT, "0", 0)),
            piece(call("weather", "", "1", 0)),
            piece(call("", ROME_TEXT, "1", 0)),
            piece(finish="tool_calls"),
        ),
        expected=calls(ToolCall("0", "weather", OSLO), ToolCall("1", "weather", ROME)),
    ),
    Quirk(
        server="llama.cpp",
        what="thoughts as reasoning_content, and the usage only as timings",
        source="https://github.com/openai-php/client/issues/780",
        stream=(
            piece(role="assistant", content=None),
            piece(reasoning_content="The user"),
            piece(reasoning_content=" asks.", content=None),
            piece(content="Yes."),
            {
                **piece(finish="stop"),
                "timings": {"cache_n": 7, "prompt_n": 10, "predicted_n": 29, "prompt_ms": 251.5},
            },
        ),
        whole={
            **message(content="Yes.", reasoning_content="The user asks.", finish="stop"),
            "timings": {"cache_n": 7, "prompt_n": 10, "predicted_n": 29, "prompt_ms": 251.5},
        },
        expected=ModelResponse(
            "Yes.", usage=Usage(17, 29, cached_input_tokens=7), reasoning="The user asks."
        ),
    ),
    Quirk(
        server="llama.cpp",
        what="a call of a Hermes model left in the text",
        source="https://github.com/abetlen/llama-cpp-python/issues/1784",
        whole=message(
            content=f'<tool_call>\n{{"name": "weather", "arguments": {OSLO_TEXT}}}\n</tool_call>\n'
            f'<tool_call>\n{{"name": "weather", "arguments": {ROME_TEXT}}}\n</tool_call>',
            finish="stop",
        ),
        expected=BOTH_UNNAMED,
    ),
    Quirk(
        server="llama.cpp",
        what="the old function_call, without tool_calls",
        source="https://github.com/abetlen/llama-cpp-python/issues/1784",
        whole=message(
            function_call={"name": "weather", "arguments": OSLO_TEXT}, finish="function_call"
        ),
        stream=(
            piece(function_call={"name": "weather", "arguments": ""}),
            piece(function_call={"name": None, "arguments": OSLO_TEXT}),
            piece(finish="function_call"),
        ),
        expected=calls(ToolCall("call_0", "weather", OSLO)),
    ),
    Quirk(
        server="Groq",
        what="the usage of a stream inside x_groq",
        source="https://console.groq.com/docs/api-reference#chat-create",
        stream=(
            {**piece(role="assistant", content=""), "x_groq": {"id": "req_1"}},
            piece(content="Yes."),
            {
                **piece(finish="stop"),
                "x_groq": {"id": "req_1", "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
            },
            "[DONE]",
        ),
        expected=ModelResponse("Yes.", usage=Usage(5, 3)),
    ),
    Quirk(
        server="Groq",
        what="a whole call in one piece, null for no arguments",
        source="https://github.com/langchain-ai/langchainjs/pull/6203",
        stream=(piece(call("now", "null", "a", 0)), piece(finish="tool_calls"), "[DONE]"),
        whole=message(call("now", "null", "a")),
        expected=NOW,
    ),
    Quirk(
        server="Mistral",
        what='the word "null" for the id of all pieces but the first, and an empty name',
        source="https://github.com/zed-industries/zed/pull/53605",
        stream=(
            piece(role="assistant", content=""),
            piece(call("weather", "", "a", 0)),
            piece(call("", '{"city": ', "null", 0)),
            piece(call("", '"Oslo"}', "null", 0)),
            piece(finish="tool_calls"),
        ),
        expected=ONE,
    ),
    Quirk(
        server="Mistral",
        what="text in parts, with thoughts between; arguments as an object",
        source="https://docs.mistral.ai/capabilities/reasoning/",
        whole=message(
            call("weather", OSLO, "a"),
            content=[
                {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
                {"type": "text", "text": "I look."},
            ],
        ),
        stream=(
            piece(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]),
            piece(content=[{"type": "text", "text": "I look."}]),
            piece(call("weather", OSLO, "a", 0), finish="tool_calls"),
        ),
        expected=attrs.evolve(
            calls(ToolCall("a", "weather", OSLO), content="I look."), reasoning="Hm."
        ),
    ),
    Quirk(
        server="Mistral",
        what="a call left in the text by a server without its template",
        source=f"{_VLLM}17585",
        whole=message(
            content=f'[TOOL_CALLS][{{"name": "weather", "arguments": {OSLO_TEXT}}}]', finish="stop"
        ),
        expected=calls(ToolCall("call_0", "weather", OSLO)),
    ),
    Quirk(
        server="DeepSeek",
        what="thoughts that must come back with a call; cache hits beside the usage",
        source="https://api-docs.deepseek.com/guides/thinking_mode",
        whole={
            **message(call("weather", OSLO_TEXT, "a", 0), reasoning_content="Which city?"),
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "prompt_cache_hit_tokens": 64,
                "prompt_cache_miss_tokens": 36,
            },
        },
        expected=attrs.evolve(
            thought("a", {"reasoning_content": "Which city?"}),
            usage=Usage(100, 20, cached_input_tokens=64),
        ),
    ),
    Quirk(
        server="DeepSeek",
        what="thoughts in pieces; an empty list for no arguments",
        source="https://api-docs.deepseek.com/guides/thinking_mode",
        stream=(
            piece(role="assistant", content=None, reasoning_content=""),
            piece(reasoning_content="Which ", content=None),
            piece(reasoning_content="city?", content=None),
            piece(call("weather", OSLO_TEXT, "a", 0), call("now", "[]", "b", 1)),
            piece(finish="tool_calls"),
        ),
        expected=attrs.evolve(
            thought("a", {"reasoning_content": "Which city?"}),
            tool_calls=[
                *thought("a", {"reasoning_content": "Which city?"}).tool_calls,
                ToolCall("b", "now"),
            ],
        ),
    ),
    Quirk(
        server="OpenRouter",
        what="comments that keep the stream open; the usage in a last piece, with cache writes",
        source="https://openrouter.ai/docs/api-reference/streaming",
        stream=(
            ": OPENROUTER PROCESSING",
            piece(content="Yes."),
            ": OPENROUTER PROCESSING",
            piece(finish="stop"),
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 50,
                    "completion_tokens": 4,
                    "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 20},
                },
            },
            "[DONE]",
        ),
        expected=ModelResponse(
            "Yes.", usage=Usage(50, 4, cached_input_tokens=10, cache_write_input_tokens=20)
        ),
    ),
    Quirk(
        server="OpenRouter",
        what="thoughts as a list that comes in pieces and must go back as it was",
        source="https://openrouter.ai/docs/use-cases/reasoning-tokens",
        stream=(
            piece(
                reasoning="Which ",
                reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "Which "}],
            ),
            piece(
                reasoning="city?",
                reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "city?"}],
            ),
            piece(
                reasoning_details=[
                    {"type": "reasoning.text", "index": 0, "text": "", "signature": "c2ln"}
                ],
            ),
            piece(call("weather", OSLO_TEXT, "a", 0), finish="tool_calls"),
        ),
        expected=thought(
            "a",
            {
                "reasoning_details": [
                    {
                        "type": "reasoning.text",
                        "index": 0,
                        "text": "Which city?",
                        "signature": "c2ln",
                    }
                ]
            },
        ),
    ),
    Quirk(
        server="Gemini",
        what="parallel calls each with number 0 and an empty id; stop as the reason",
        source="https://github.com/NousResearch/hermes-agent/issues/62937",
        stream=(
            piece(call("weather", OSLO_TEXT, "", 0), role="assistant"),
            piece(call("weather", ROME_TEXT, "", 0), role="assistant", finish="stop"),
            "[DONE]",
        ),
        whole=message(
            call("weather", OSLO_TEXT, ""), call("weather", ROME_TEXT, ""), finish="stop"
        ),
        expected=BOTH_UNNAMED,
    ),
    Quirk(
        server="Gemini",
        what="one id for several calls: the tool's name",
        source="https://github.com/brainlid/langchain/pull/620",
        stream=(
            piece(call("weather", OSLO_TEXT, "call-weather", 0)),
            piece(call("weather", ROME_TEXT, "call-weather", 0), finish="stop"),
        ),
        whole=message(
            call("weather", OSLO_TEXT, "call-weather"), call("weather", ROME_TEXT, "call-weather")
        ),
        expected=calls(
            ToolCall("call-weather", "weather", OSLO), ToolCall("call-weather_2", "weather", ROME)
        ),
    ),
    Quirk(
        server="Azure",
        what="a first piece without choices, a last one without a delta: the content filter's",
        source="https://github.com/openai/openai-python/issues/1677",
        stream=(
            {"choices": [], "prompt_filter_results": [{"prompt_index": 0}], "usage": None},
            piece(role="assistant"),
            piece(content="Yes."),
            piece(finish="stop"),
            {
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": None,
                        "content_filter_offsets": {"check_offset": 44, "end_offset": 198},
                    }
                ],
                "usage": None,
            },
            "[DONE]",
        ),
        expected=ModelResponse("Yes."),
    ),
    Quirk(
        server="Moonshot",
        what="the usage of a stream inside its last choice",
        source="https://platform.moonshot.ai/docs/api/chat",
        stream=(
            piece(content="Yes."),
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {},
                        "finish_reason": "stop",
                        "usage": {"prompt_tokens": 8, "completion_tokens": 2, "cached_tokens": 0},
                    }
                ]
            },
            "[DONE]",
        ),
        expected=ModelResponse("Yes.", usage=Usage(8, 2)),
    ),
    Quirk(
        server="LiteLLM",
        what="calls numbered from 1, a new id with every piece, no reason for the end",
        source="https://github.com/BerriAI/litellm/pull/40040",
        stream=(
            piece(call("weather", "", "a", 1)),
            piece(call("", '{"city": ', "c", 1)),
            piece(call("", '"Oslo"}', "d", 1)),
            "[DONE]",
        ),
        expected=ONE,
    ),
    Quirk(
        server="LiteLLM",
        what="the name of a tool in pieces, or whole with every piece",
        source="https://github.com/pipecat-ai/pipecat/issues/4987",
        stream=(
            piece(call("wea", "", "a", 0)),
            piece(call("ther", "", None, 0)),
            piece(call(None, OSLO_TEXT, None, 0)),
            piece(call("weather", "", "b", 1)),
            piece(call("weather", '{"city": ', "b", 1)),
            piece(call("weather", '"Rome"}', "b", 1)),
            piece(call("weather", "", "b", 1), finish="tool_calls"),
        ),
        expected=BOTH,
    ),
    Quirk(
        server="LM Studio",
        what="a call left in the text, by one mark for each argument",
        source="https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/2115",
        whole=message(
            content="<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n"
            "</function>\n</tool_call>",
            finish="stop",
        ),
        expected=calls(ToolCall("call_0", "weather", {"city": "12"})),
    ),
    Quirk(
        server="Llama",
        what="calls after Llama's own mark, with parameters",
        source="https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/",
        whole=message(
            content=f'<|python_tag|>{{"name": "weather", "parameters": {OSLO_TEXT}}}; '
            f'{{"name": "weather", "parameters": {ROME_TEXT}}}<|eom_id|>',
            finish="stop",
        ),
        expected=BOTH_UNNAMED,
    ),
)
