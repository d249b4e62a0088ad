"""An option of the user's never silently replaces what the agent or the model's arguments say."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from trio.testing import MockClock

from harness.agents import Agent
from harness.models import AnthropicModel, ModelRequest, OpenAIModel, ToolDescription
from harness.models._options import with_options
from harness.testing.provider import ProviderRequest
from tests.models.providers import WAYS, ask, make_model, open_model

SEARCH = {
    "chat": {"type": "function", "function": {"name": "search"}},
    "responses": {"type": "web_search"},
    "messages": {"type": "web_search_20250305", "name": "web_search"},
}


@pytest.fixture
def autojump_clock() -> MockClock:
    """A virtual clock that leaves sockets the time to answer."""
    return MockClock(autojump_threshold=0.02)


@pytest.mark.parametrize("way", WAYS)
async def test_tools_of_the_options_join_those_of_the_agent(
    way: str, autojump_clock: MockClock
) -> None:
    """They replaced them, so the model was never told of the agent's own."""
    bodies: list[Any] = []

    def keep(request: ProviderRequest) -> str:
        bodies.append(request.body["tools"])
        return "yes"

    async def look_up(name: str) -> str:
        return name

    options = {"options": {"tools": [SEARCH[way]]}}
    async with open_model(way, answer=keep, options=options) as (model, _):
        await Agent("a", model=model, tools=[look_up]).run("go")
    mine, theirs = bodies[0]
    assert (mine.get("name") or mine["function"]["name"]) == "look_up"
    assert theirs == SEARCH[way]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"model": "other"}, "the model's name says it"),
        ({"messages": []}, "the prompt"),
        ({"input": []}, "the prompt"),
        ({"max_tokens": 9}, "max_output_tokens="),
        ({"max_output_tokens": 9}, "max_output_tokens="),
        ({"temperature": 1.0}, "temperature="),
        ({"extra_body": {"temperature": 1.0}}, "temperature="),
        ({"stream": False}, "whoever asks"),
    ],
)
def test_an_option_that_would_replace_anything_is_refused_when_the_model_is_made(
    way: str, options: dict[str, Any], advice: str
) -> None:
    def make(**more: Any) -> OpenAIModel | AnthropicModel:
        arguments = {"max_output_tokens": 50, "temperature": 0.5, **more}
        return make_model(way, "http://127.0.0.1:1", **arguments)

    sent = {**make()._arguments(ask("x")), **make()._arguments(ask("x"), streamed=True)}
    inside = sent.get("extra_body", {})
    if not all(name in sent for name in options) or (
        "extra_body" in options and "temperature" not in inside
    ):
        assert make(options=options)._arguments(ask("x"))["model"] == "m", "nothing of that name"
        return
    with pytest.raises(ValueError, match=advice):
        make(options=options)


def test_mappings_are_merged_at_any_depth() -> None:
    sent = {"text": {"format": {"type": "json_schema"}}, "store": False}
    merged = with_options(sent, {"text": {"verbosity": "low"}, "store": True, "seed": 1}, "m")
    assert merged == {
        "text": {"format": {"type": "json_schema"}, "verbosity": "low"},
        "store": True,
        "seed": 1,
    }
    with pytest.raises(ValueError, match=r"option 'text.format.type' = 'text'"):
        with_options(sent, {"text": {"format": {"type": "text"}}}, "m")
    assert sent["text"] == {"format": {"type": "json_schema"}}, "unchanged"


def test_two_tools_of_one_name_are_refused() -> None:
    model = OpenAIModel("m", api_key="any", options={"tools": [SEARCH["chat"]]})
    request = ModelRequest(ask("x").messages, [ToolDescription("search", "Search.", {})])
    with pytest.raises(ValueError, match="a second tool named 'search'"):
        model._arguments(request)


async def test_the_form_of_an_answer_is_not_replaced(autojump_clock: MockClock) -> None:
    @attrs.frozen
    class Ticket:
        topic: str

    options = {"options": {"response_format": {"type": "json_object"}}}
    async with open_model("chat", answer=lambda _: '{"topic": "x"}', options=options) as (model, _):
        assert (await Agent("a", model=model).run("go")).output == '{"topic": "x"}'
        with pytest.raises(ValueError, match="the agent's output_type= says it"):
            await Agent("a", model=model, output_type=Ticket).run("go")
