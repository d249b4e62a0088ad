"""Agents with files: in prompts, from tools, in conversations, and in journals."""

from __future__ import annotations

import base64
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

import harness
from harness.agents import Agent, Conversation, Reply, ToolReturned, tool
from harness.agents._mcp import _part
from harness.agents._reply_json import reply_from_json, reply_to_json
from harness.errors import ModelFileError
from harness.journal import edit_journal, open_journal, read_journal
from harness.journal._schema import APPLICATION_ID
from harness.models import (
    File,
    FunctionModel,
    LocalModel,
    Message,
    ModelRequest,
    ScriptedModel,
    Usage,
)
from harness.models import _file as file_module
from harness.shared import open_once
from tests.agents.fakes import Fake, Script, calls
from tests.models.files import NOTE, PAPER, PICTURE, PICTURE_ELSEWHERE, SOUND, pdf, png

TESTS = Path(__file__).parents[1]
LARGE = File(data=png(more=bytes(range(256)) * 400), name="large.png")


def seen(request: ModelRequest) -> str:
    """Answer with what came as files, last message first."""
    return ", ".join(file.media_type for file in request.messages[-1].files)


# Prompts ------------------------------------------------------------------------------------------


async def test_a_prompt_is_text_files_and_paths_in_order(tmp_path: Path) -> None:
    path = tmp_path / "receipt.dat"
    path.write_bytes(png())
    model = Fake(seen)
    agent = Agent("a", model=model)
    reply = await agent.run(["What is on", path, "and on", PAPER, PICTURE_ELSEWHERE])
    assert reply.output == "image/png, application/pdf, image/png"
    assert reply.messages[0].content == (
        "What is on",
        File(data=png(), name="receipt.dat"),
        "and on",
        PAPER,
        PICTURE_ELSEWHERE,
    )
    assert reply.messages[0].text == "What is on\nand on"
    assert (await agent.run(PICTURE)).output == "image/png"
    assert (await agent.run(path)).output == "image/png"


async def test_a_path_is_read_once_however_many_turns_the_run_takes(tmp_path: Path) -> None:
    """What changes on the disk meanwhile would give the model two versions of its question."""
    path = tmp_path / "a.png"
    path.write_bytes(png(1, 1))

    @tool
    async def replace() -> str:
        """Replace the picture."""
        path.write_bytes(png(9, 9))
        return "done"

    model = Script(calls(("replace", {})), "ok")
    await Agent("a", model=model, tools=[replace]).run(["Look:", path])
    assert [request.messages[0].files[0].data for request in model.requests] == [png(1, 1)] * 2


async def test_a_stream_takes_files_too(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    agent = Agent("a", model=Fake(seen))
    async with agent.stream(["Look:", path]) as stream:
        async for _ in stream:
            pass
    assert stream.reply.output == "image/png"
    with pytest.raises(FileNotFoundError):
        async with agent.stream(tmp_path / "missing.png") as stream:
            raise AssertionError("it began")


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ([], ValueError, "text or files, and got none"),
        ([""], ValueError, "text or files, and got none"),
        (["text", b"bytes"], TypeError, r"File\(data=...\)"),
        (b"bytes", TypeError, "a list of texts and files"),
        (File(path="nowhere/at/all.png"), FileNotFoundError, "nowhere"),
    ],
)
async def test_a_prompt_that_makes_no_sense_is_refused_before_the_model_is_asked(
    prompt: Any, error: type[Exception], words: str
) -> None:
    model = Fake(seen)
    with pytest.raises(error, match=words):
        await Agent("a", model=model).run(prompt)
    assert model.requests == []


async def test_too_much_in_one_message_says_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "MESSAGE_BYTES_AT_MOST", 60)
    path = tmp_path / "a.png"
    path.write_bytes(png(more=bytes(20)))
    words = r"agent 'a' has files of 88 bytes in one message, and 60 are the most"
    for prompt in ([path, path], [path.read_bytes()] * 2):
        parts = [File(data=one) if isinstance(one, bytes) else one for one in prompt]
        with pytest.raises(ValueError, match=words):
            await Agent("a", model=Fake(seen)).run(parts)


async def test_a_model_that_takes_no_such_file_fails_the_run_with_its_partial(
    tmp_path: Path,
) -> None:
    model = LocalModel(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="only text"):
        model.refuse_files(ModelRequest([Message("user", (PICTURE,))]))
    deaf = FunctionModel(seen)
    deaf.why_not = lambda file: "only text"  # type: ignore[method-assign]
    with pytest.raises(ModelFileError, match="it takes only text") as caught:
        await Agent("a", model=deaf).run(["Listen:", SOUND])
    assert caught.value.partial.messages[0].files == (SOUND,)


async def test_an_injected_message_has_files_that_were_read() -> None:
    agent = Agent("a", model=Script(calls(("wait", {})), "ok"), tools=[tool(wait)])
    async with agent.stream("Hi") as stream:
        with pytest.raises(ValueError, match=r"File.read\(\)"):
            stream.inject(Message("user", ("Look:", File(path="a.png"))))
        stream.inject(Message("user", ("Look:", PICTURE)))
        async for _ in stream:
            pass
    assert any(message.files == (PICTURE,) for message in stream.reply.messages)


async def wait() -> str:
    """Wait."""
    return "waited"


# Tools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "content"),
    [
        (PICTURE, (PICTURE,)),
        ([PICTURE, "a receipt"], (PICTURE, "a receipt")),
        (("see", PAPER, {"pages": 1}), ("see", PAPER, '{"pages":1}')),
    ],
)
async def test_a_tool_returns_files(result: Any, content: Any) -> None:
    @tool
    async def look() -> Any:
        """Look."""
        return result

    model = Script(calls(("look", {})), "ok")
    events: list[ToolReturned] = []
    async with Agent("a", model=model, tools=[look]).stream("Go") as stream:
        async for event in stream:
            if isinstance(event.payload, ToolReturned):
                events.append(event.payload)
    assert stream.reply.messages[2].content == content
    assert isinstance(events[0].content, str), "an event has no bytes"
    assert events[0].ok
    assert "bytes]" in events[0].content


async def test_a_tool_names_a_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())

    @tool
    async def look() -> File:
        """Look."""
        return File(path=str(path))

    reply = await Agent("a", model=Script(calls(("look", {})), "ok"), tools=[look]).run("Go")
    assert reply.messages[2].files == (File(data=png(), name="a.png"),)


@attrs.frozen
class Found:
    file: File


@pytest.mark.parametrize("result", [{"file": LARGE}, [[LARGE]], Found(LARGE)])
async def test_a_file_inside_something_else_is_refused_rather_than_sent_as_text(
    result: Any,
) -> None:
    """As text a picture is a million tokens of base64, and no model sees anything in it."""

    @tool
    async def look() -> Any:
        """Look."""
        return result

    reply = await Agent("a", model=Script(calls(("look", {})), "ok"), tools=[look]).run("Go")
    assert "a File is inside it; return the file, or a list" in reply.messages[2].text
    assert len(reply.messages[2].text) < 500


def test_a_result_of_an_mcp_server_keeps_its_pictures_sounds_and_files() -> None:
    def text(file: File) -> str:
        assert file.data is not None
        return base64.b64encode(file.data).decode()

    blob = BlobResourceContents(uri="file:///a/invoice.pdf", blob=text(PAPER))
    assert _part(TextContent(type="text", text="hi")) == "hi"
    assert _part(ImageContent(type="image", data=text(PICTURE), mime_type="image/png")) == File(
        data=PICTURE.data
    )
    assert _part(AudioContent(type="audio", data=text(SOUND), mime_type="audio/x-wav")) == File(
        data=SOUND.data
    )
    assert _part(EmbeddedResource(type="resource", resource=blob)) == PAPER
    broken = ImageContent(type="image", data="?", mime_type="image/png")
    assert "can't be read" in str(_part(broken))


# What is kept -------------------------------------------------------------------------------------


contents = st.one_of(
    st.text(),
    st.lists(
        st.one_of(
            st.text(),
            st.sampled_from([PICTURE, PAPER, SOUND, NOTE, PICTURE_ELSEWHERE, LARGE]),
            st.binary(min_size=1, max_size=30).map(
                lambda data: File(data=data, media_type="application/x-any")
            ),
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
)


@given(st.lists(contents, max_size=4))
def test_any_content_survives_json(said: list[Any]) -> None:
    messages = tuple(Message("user", content) for content in said)
    conversation = Conversation(messages)
    assert Conversation.from_json(conversation.to_json()).messages == messages
    reply = Reply("out", messages, Usage(), 1, "r1")
    assert reply_from_json(reply_to_json(reply), None).messages == messages


def looking(files: list[File]) -> tuple[Agent[str], list[list[str | File]]]:
    """Return an agent and its prompts, each with one of the files."""
    agent = Agent("a", model=ScriptedModel(["I see"]))
    return agent, [[f"Look at {number}:", file] for number, file in enumerate(files)]


@pytest.mark.slow
@pytest.mark.parametrize("returns", ["reply", "file"])
async def test_a_journal_keeps_one_copy_of_what_many_answers_have(
    tmp_path: Path, returns: str
) -> None:
    """A hundred questions about one large picture take the room of a few."""
    path = tmp_path / "journal"
    agent, prompts = looking([LARGE] * 100)
    asked = 0

    async def itself(prompt: Any) -> Any:
        nonlocal asked
        asked += 1
        return prompt[1]

    function: Callable[[Any], Awaitable[Any]] = agent if returns == "reply" else itself

    async def session() -> list[Any]:
        async with open_journal(path, types=[File]) as journal:
            results = await harness.fan_out(
                function, prompts, journal=journal, key=lambda item: item[0]
            )
            return list(results.values())

    first = await session()
    assert path.stat().st_size < 4 * len(LARGE.data or b"")
    again = await session()
    assert again == first
    if returns == "reply":
        assert again[7].messages[0].content == ("Look at 7:", LARGE)
        assert isinstance(again[7], Reply)
    else:
        assert again[7] == LARGE
        assert asked == 100
    with read_journal(path) as reader:
        (item, *_) = reader.items(reader.batches()[0].name)
        whole = base64.b64encode(LARGE.data or b"").decode()
        assert whole in str(item.value_text), "whoever looks sees it whole"


async def test_a_journal_from_before_takes_files_too(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((TESTS / "journal" / "version_1.sql").read_text())
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("PRAGMA user_version=1")
    agent, prompts = looking([LARGE] * 5)
    async with open_journal(path) as journal:
        results = await harness.fan_out(agent, prompts, journal=journal, key=str)
    assert [reply.messages[0].files for reply in results.values()] == [(LARGE,)] * 5


async def test_an_effect_keeps_its_file_apart_too(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for _ in range(2):
        async with (
            open_journal(path, types=[File]) as journal,
            open_once(journal=journal) as once,
        ):
            for number in range(5):
                assert await once(("draw", number), draw) == LARGE
    assert path.stat().st_size < 3 * len(LARGE.data or b"")


async def draw(key: str) -> File:
    """Draw."""
    return LARGE


async def test_what_no_item_has_any_more_goes_with_the_next_vacuum(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    agent, prompts = looking([LARGE, File(data=pdf() + bytes(200_000), name="b.pdf")])
    async with open_journal(path) as journal:
        await harness.fan_out(agent, prompts, journal=journal, key=lambda item: item[0])
    with edit_journal(path) as editor:
        name = editor.batches()[0].name
        editor.forget(name, ["Look at 0:"])
        editor.vacuum()
        assert 200_000 < path.stat().st_size < 280_000
    async with open_journal(path) as journal:
        results = await harness.fan_out(
            agent, prompts[1:], journal=journal, key=lambda item: item[0]
        )
    assert results.values()[0].messages[0].files == tuple(prompts[1][1:])
