"""Add a user's own options to what a model is sent, without replacing any of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ELSEWHERE = {
    "format": "the agent's output_type= says it",
    "input": "the prompt and the conversation say it",
    "max_completion_tokens": "the model's max_output_tokens= says it",
    "max_output_tokens": "the model's max_output_tokens= says it",
    "max_tokens": "the model's max_output_tokens= says it",
    "messages": "the prompt and the conversation say it",
    "model": "the model's name says it",
    "response_format": "the agent's output_type= says it",
    "stream": "whoever asks decides it",
    "system": "the agent's instructions= say it",
    "temperature": "the model's temperature= says it",
}
_OURS_TO_LOSE = frozenset({"store", "stream_options"})
"""Harness's own choices, which no agent made."""


def with_options(sent: dict[str, Any], options: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return what is sent, plus the options: mappings are merged, and lists of tools
    and of what to include joined.

    Args:
      sent: What the agent and the model's own arguments say.
      options: What the user adds.
      model: The model's name, for the error.

    Raises:
      ValueError: if an option would replace something that is sent, or adds a tool of the same name
        as another.
    """
    return {
        **sent,
        **{
            name: _added(name, sent[name], value, model)
            if name in sent and name not in _OURS_TO_LOSE
            else value
            for name, value in options.items()
        },
    }


def _added(path: str, sent: Any, option: Any, model: str) -> Any:
    """Return the two as one, if neither is lost."""
    if sent == option:
        return sent
    if isinstance(sent, Mapping) and isinstance(option, Mapping):
        shared = {
            name: _added(f"{path}.{name}", sent[name], option[name], model)
            for name in option
            if name in sent
        }
        return {**sent, **option, **shared}
    if path == "include" and isinstance(option, list):
        return [*sent, *(one for one in option if one not in sent)]
    if path == "tools" and isinstance(option, list):
        names = [_name_of(tool) for tool in (*sent, *option)]
        twice = {name for name in names if name is not None and names.count(name) > 1}
        if not twice:
            return [*sent, *option]
        what = f"adds a second tool named {', '.join(sorted(map(repr, twice)))}; rename one of them"
    else:
        known = [_ELSEWHERE[part] for part in path.split(".") if part in _ELSEWHERE]
        where = known[0] if known else "the agent or the model's arguments say it"
        what = f"would replace {sent!r}; leave it out, because {where}"
    raise ValueError(f"model {model!r} has the option {path!r} = {option!r}, which {what}")


def _name_of(tool: Any) -> str | None:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None
