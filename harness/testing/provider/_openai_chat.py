"""Speak OpenAI's chat completions."""

from __future__ import annotations

from typing import Any

from harness.models import File
from harness.testing.provider._dialect import (
    Completion,
    JSONObject,
    event_bytes,
    split_arguments,
    split_text,
    unreadable,
)
from harness.testing.provider._files import chat_file, files_in, image_url, input_audio
from harness.testing.provider._openai import OpenAI


class OpenAIChat(OpenAI):
    """The dialect of ``/v1/chat/completions``."""

    name = "openai-chat"
    maxima = ("max_tokens", "max_completion_tokens")

    def read_prompt(self, body: JSONObject) -> str:
        """Return the text of the last message that isn't the assistant's."""
        prompt = super().read_prompt(body)
        if body.get("n") not in (None, 1):
            unreadable("n", body["n"], "1: the simulated provider gives one choice")
        options = body.get("stream_options")
        if options is not None and not isinstance(options, dict):
            unreadable("stream_options", options, "an object")
        return prompt

    def read_files(self, body: JSONObject) -> list[File]:
        """Return the files in ``body``, or raise `UnreadableRequest`."""
        readers = {"image_url": image_url, "input_audio": input_audio, "file": chat_file}
        return files_in(body["messages"], readers)

    def whole(self, completion: Completion) -> JSONObject:
        """Return the answer as one JSON object."""
        message: JSONObject = {
            "role": "assistant",
            "content": completion.text or (None if completion.tool_calls else ""),
            "refusal": None,
        }
        if completion.finish == "refusal":
            message.update(content=None, refusal=completion.text)
        if completion.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments_json},
                }
                for call in completion.tool_calls
            ]
        return {
            **_frame(completion, "chat.completion"),
            "choices": [_choice(message=message, finish_reason=_finish_reason(completion))],
            "usage": _usage(completion),
        }

    def events(self, completion: Completion) -> list[bytes]:
        """Return the answer as framed server-sent events."""
        frame = _frame(completion, "chat.completion.chunk")
        options = completion.ask.body.get("stream_options")
        with_usage = bool(options and options.get("include_usage"))
        if with_usage:
            frame["usage"] = None  # Every chunk names it then; the last one fills it in.

        def chunk(delta: JSONObject, finish_reason: str | None = None) -> bytes:
            choice = _choice(delta=delta, finish_reason=finish_reason)
            return event_bytes({**frame, "choices": [choice]})

        def tool_chunk(index: int, **fields: Any) -> bytes:
            return chunk({"tool_calls": [{"index": index, **fields}]})

        events = [chunk({"role": "assistant", "content": "", "refusal": None})]
        said = "refusal" if completion.finish == "refusal" else "content"
        events += [chunk({said: piece}) for piece in split_text(completion.text)]
        for index, call in enumerate(completion.tool_calls):
            opening = {"name": call.name, "arguments": ""}
            events.append(tool_chunk(index, id=call.id, type="function", function=opening))
            events += [
                tool_chunk(index, function={"arguments": piece})
                for piece in split_arguments(call.arguments_json)
            ]
        events.append(chunk({}, _finish_reason(completion)))
        if with_usage:
            events.append(event_bytes({**frame, "choices": [], "usage": _usage(completion)}))
        events.append(b"data: [DONE]\n\n")
        return events


def _frame(completion: Completion, kind: str) -> JSONObject:
    return {
        "id": f"chatcmpl-{completion.number:024d}",
        "object": kind,
        "created": completion.created,
        "model": completion.ask.model,
        "service_tier": "default",
        "system_fingerprint": "fp_simulated",
    }


def _choice(*, finish_reason: str | None, **said: JSONObject) -> JSONObject:
    return {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}


def _finish_reason(completion: Completion) -> str:
    # Its refusals end by themselves; what tells them is where the text is.
    return "stop" if completion.finish == "refusal" else completion.finish


def _usage(completion: Completion) -> JSONObject:
    return {
        "prompt_tokens": completion.input_tokens,
        "completion_tokens": completion.output_tokens,
        "total_tokens": completion.input_tokens + completion.output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
