"""Speak OpenAI's responses."""

from __future__ import annotations

from typing import Any

from harness.models import File
from harness.testing.provider._dialect import (
    Completion,
    JSONObject,
    event_bytes,
    split_arguments,
    split_text,
)
from harness.testing.provider._files import files_in, input_file, input_image
from harness.testing.provider._openai import OpenAI


class OpenAIResponses(OpenAI):
    """The dialect of ``/v1/responses``."""

    name = "openai-responses"
    messages = "input"
    maxima = ("max_output_tokens",)
    instructions = "instructions"

    def read_prompt(self, body: JSONObject) -> str:
        """Return the text of the last message that isn't the assistant's; one text is it all."""
        asked = body.get("input")
        return asked if isinstance(asked, str) else super().read_prompt(body)

    def read_files(self, body: JSONObject) -> list[File]:
        """Return the files in ``body``, or raise `UnreadableRequest`."""
        readers = {"input_image": input_image, "input_file": input_file}
        return files_in(body["input"], readers)

    def whole(self, completion: Completion) -> JSONObject:
        """Return the answer as one JSON object."""
        return _response(completion, output=_items(completion), ended=True)

    def events(self, completion: Completion) -> list[bytes]:
        """Return the answer as framed server-sent events."""
        events: list[bytes] = []

        def add(kind: str, **fields: Any) -> None:
            payload = {"type": kind, "sequence_number": len(events), **fields}
            events.append(event_bytes(payload, name=kind))

        begun = _response(completion, output=[], ended=False)
        add("response.created", response=begun)
        add("response.in_progress", response=begun)
        items = _items(completion)
        for index, item in enumerate(items):
            place = {"item_id": item["id"], "output_index": index}
            is_message = item["type"] == "message"
            empty_item: JSONObject = {"content": []} if is_message else {"arguments": ""}
            begun_item = {**item, "status": "in_progress", **empty_item}
            add("response.output_item.added", output_index=index, item=begun_item)
            if is_message:
                part = item["content"][0]
                kind = part["type"]  # Text, or a refusal in place of it.
                field = "refusal" if kind == "refusal" else "text"
                more: JSONObject = {} if kind == "refusal" else {"logprobs": []}
                place["content_index"] = 0
                add("response.content_part.added", **place, part={**part, field: ""})
                for piece in split_text(completion.text):
                    add(f"response.{kind}.delta", **place, delta=piece, **more)
                add(f"response.{kind}.done", **place, **{field: completion.text}, **more)
                add("response.content_part.done", **place, part=part)
            else:
                for piece in split_arguments(item["arguments"]):
                    add("response.function_call_arguments.delta", **place, delta=piece)
                add(
                    "response.function_call_arguments.done",
                    **place,
                    name=item["name"],
                    arguments=item["arguments"],
                )
            add("response.output_item.done", output_index=index, item=item)
        ending = "response.incomplete" if _cut_short(completion) else "response.completed"
        add(ending, response=_response(completion, output=items, ended=True))
        return events


def _items(completion: Completion) -> list[JSONObject]:
    """Return the answer's output items: a message if there is text, then the tool calls."""
    status = "incomplete" if _cut_short(completion) else "completed"
    items: list[JSONObject] = []
    if completion.text or not completion.tool_calls:
        text: JSONObject = {"type": "refusal", "refusal": completion.text}
        if completion.finish != "refusal":
            text = {"type": "output_text", "text": completion.text}
            text.update(annotations=[], logprobs=[])
        message = {
            "type": "message",
            "id": f"msg_{completion.number:024d}",
            "status": status,
            "role": "assistant",
            "content": [text],
        }
        items.append(message)
    items.extend(
        {
            "type": "function_call",
            "id": f"fc_{completion.number:020d}_{index:03d}",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments_json,
            "status": "completed",
        }
        for index, call in enumerate(completion.tool_calls)
    )
    return items


def _cut_short(completion: Completion) -> str | None:
    """Return why the answer isn't whole; ``None`` if it is."""
    if completion.finish in ("stop", "tool_calls", "refusal"):
        return None
    return "max_output_tokens" if completion.finish == "length" else completion.finish


def _response(completion: Completion, *, output: list[JSONObject], ended: bool) -> JSONObject:
    body = completion.ask.body
    cut_short = _cut_short(completion) if ended else None
    status = "incomplete" if cut_short else "completed" if ended else "in_progress"
    return {
        "id": f"resp_{completion.number:024d}",
        "object": "response",
        "created_at": completion.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": cut_short} if cut_short else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": completion.ask.maximum_output_tokens,
        "metadata": {},
        "model": completion.ask.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": _usage(completion) if ended else None,
        "user": None,
    }


def _usage(completion: Completion) -> JSONObject:
    return {
        "input_tokens": completion.input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": completion.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": completion.input_tokens + completion.output_tokens,
    }
