"""Files in messages: what they are, what they count, and what each provider is sent of them."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness.errors import ModelFileError
from harness.limits import Limiter
from harness.models import (
    FallbackModel,
    File,
    FunctionModel,
    Message,
    ModelRequest,
    RecordedModel,
    ScriptedModel,
    ToolCall,
)
from harness.models import _file as file_module
from harness.models._canonical import request_json
from harness.models._file_sizes import file_tokens, image_size
from harness.models._sizes import request_tokens
from harness.testing.provider import ProviderRequest, open_provider
from harness.testing.provider._anthropic import AnthropicMessages
from harness.testing.provider._dialect import Dialect
from harness.testing.provider._openai_chat import OpenAIChat
from harness.testing.provider._openai_responses import OpenAIResponses
from tests.models.files import (
    NOTE,
    PAPER,
    PAPER_ELSEWHERE,
    PICTURE,
    PICTURE_ELSEWHERE,
    SOUND,
    gif,
    jpeg,
    pdf,
    png,
    wav,
    webp,
)
from tests.models.providers import WAYS, make_model, open_model

TAKEN: dict[str, tuple[File, ...]] = {
    "chat": (PICTURE, PAPER, SOUND, PICTURE_ELSEWHERE),
    "responses": (PICTURE, PAPER, PICTURE_ELSEWHERE, PAPER_ELSEWHERE),
    "messages": (PICTURE, PAPER, PICTURE_ELSEWHERE, PAPER_ELSEWHERE),
}
DIALECTS: dict[str, Dialect] = {
    "chat": OpenAIChat(),
    "responses": OpenAIResponses(),
    "messages": AnthropicMessages(),
}
REFUSED: dict[str, tuple[File, ...]] = {
    "chat": (PAPER_ELSEWHERE, File(data=b"x", media_type="video/mp4")),
    "responses": (SOUND, File(data=b"BM", media_type="image/bmp")),
    "messages": (SOUND, File(data=b"II*\0", media_type="image/tiff")),
}


def asking(*parts: str | File) -> ModelRequest:
    """Return a request with one message of the user."""
    return ModelRequest([Message("user", parts)])


def same(sent: File, got: File) -> bool:
    """Return whether a provider has got what was sent; of one elsewhere it knows the address."""
    if sent.url is not None:
        return sent.url == got.url
    return (sent.data, sent.media_type) == (got.data, got.media_type)


# What a file is -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_as", "media_type"),
    [
        ({"data": png()}, "image/png"),
        ({"data": jpeg(1, 1)}, "image/jpeg"),
        ({"data": gif(1, 1)}, "image/gif"),
        ({"data": webp(1, 1)}, "image/webp"),
        ({"data": pdf()}, "application/pdf"),
        ({"data": wav()}, "audio/wav"),
        ({"data": b"ID3abc"}, "audio/mpeg"),
        ({"data": b"a,b", "name": "table.csv"}, "text/csv"),
        ({"data": png(), "name": "wrongly-named.jpg"}, "image/png"),
        ({"data": png(), "media_type": "image/x-own"}, "image/x-own"),
        ({"data": b"x", "media_type": "image/JPG; q=1"}, "image/jpeg"),
        ({"url": "https://example.org/a/b.WEBP?x=y.png"}, "image/webp"),
        ({"path": "anything"}, ""),
    ],
)
def test_the_type_is_as_given_or_as_the_first_bytes_say_or_the_suffix(
    given_as: dict[str, Any], media_type: str
) -> None:
    assert File(**given_as).media_type == media_type


@pytest.mark.parametrize(
    ("given_as", "error", "words"),
    [
        ({}, TypeError, "takes one of data=, url= and path=, not 0"),
        ({"data": b"x", "url": "https://x"}, TypeError, "not 2 of them"),
        ({"data": "text"}, TypeError, "takes bytes, not str"),
        ({"data": b""}, ValueError, "not an empty one"),
        ({"data": b"?"}, ValueError, 'media_type="text/plain"'),
        ({"url": "file:///etc/passwd"}, ValueError, "https://"),
        ({"url": "data:image/png;base64,xx"}, ValueError, "data="),
        ({"url": "https://example.org/"}, ValueError, "media_type="),
        ({"data": png(), "media_type": "png"}, ValueError, "image/png"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_when_made(
    given_as: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words.replace("(", r"\(")):
        File(**given_as)


def test_a_file_never_shows_its_bytes_nor_the_keys_in_its_address() -> None:
    """Histories are printed, dumped and logged; pictures are large, and addresses signed."""
    secret = File(data=png(more=b"SECRET" * 1_000), name="a.png")
    shown = repr(Message("user", ("Hi", secret, PAPER_ELSEWHERE)))
    assert "SECRET" not in shown
    assert "key=secret" not in shown
    assert "'a.png', 6,024 bytes" in shown
    assert len(shown) < 250


def test_too_large_a_file_says_how_large_it_is_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "FILE_BYTES_AT_MOST", 100)
    words = r"has 124 bytes, and 100 are the most; make it smaller, or give its address"
    with pytest.raises(ValueError, match=words):
        File(data=png(more=bytes(100)))
    path = tmp_path / "large.png"
    path.write_bytes(png(more=bytes(100)))
    with pytest.raises(ValueError, match=words):
        File(path=str(path)).read()


def test_a_file_can_be_pickled_and_compared() -> None:
    assert pickle.loads(pickle.dumps(PICTURE)) == PICTURE
    assert len({PICTURE, File(data=png(), name="receipt.png")}) == 1


# What it counts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [png, jpeg, gif, webp])
def test_the_size_of_an_image_is_read_from_its_first_bytes(make: Any) -> None:
    assert image_size(make(640, 480)) == (640, 480)


@given(st.binary(max_size=60), st.sampled_from([png, jpeg, gif, webp]), st.integers(0, 40))
def test_no_image_is_so_broken_that_its_size_fails(noise: bytes, make: Any, cut: int) -> None:
    data = make(3, 4)[:cut] + noise
    size = image_size(data)
    assert size is None or min(size) > 0


@pytest.mark.parametrize(
    ("file", "provider", "tokens"),
    [
        (File(data=png(1_024, 1_024)), "openai", 765),  # Both from OpenAI's own page.
        (File(data=png(2_048, 4_096)), "openai", 1_105),
        (File(data=png(200, 200)), "anthropic", 54),  # And these from Anthropic's.
        (File(data=png(1_000, 1_000)), "anthropic", 1_334),
        (File(data=png(8_000, 8_000)), "anthropic", 1_600),
        (File(data=wav(30)), "openai", 301),
        (File(data=b"x" * 400, media_type="text/plain"), None, 100),
    ],
)
def test_files_count_by_each_providers_public_rule(
    file: File, provider: str | None, tokens: int
) -> None:
    assert file_tokens(file, provider) == tokens


def test_pages_of_a_pdf_count_one_by_one() -> None:
    one, ten = (file_tokens(File(data=pdf(pages)), "anthropic") for pages in (1, 10))
    assert ten == 10 * one
    assert 1_500 <= one <= 3_000  # As Anthropic says, text and image.


def test_a_request_counts_its_files() -> None:
    """A limiter that reserves nothing for a picture lets through many times too many."""
    bare = request_tokens(asking("What is it?"), "openai")
    assert request_tokens(asking("What is it?", PICTURE), "openai") == bare + 255


def seen(_: ProviderRequest) -> str:
    """Answer anything."""
    return "seen"


# What a provider is sent --------------------------------------------------------------------------


async def received(way: str, request: ModelRequest, **options: Any) -> ProviderRequest:
    """Ask by the provider's own library; return what the simulated provider got."""
    got: list[ProviderRequest] = []

    def answer(asked: ProviderRequest) -> str:
        got.append(asked)
        return "seen"

    async with open_model(way, answer=answer, options=options) as (model, _):
        assert (await model.complete(request)).content == "seen"
    return got[0]


@pytest.mark.parametrize("way", WAYS)
async def test_every_file_that_a_provider_takes_arrives_as_it_was(way: str) -> None:
    got = await received(way, asking("Look:", *TAKEN[way], "Well?"))
    assert len(got.files) == len(TAKEN[way])
    assert all(map(same, TAKEN[way], got.files))
    assert got.prompt == "Look:Well?"


@pytest.mark.parametrize("way", WAYS)
async def test_a_file_of_text_arrives_as_text(way: str) -> None:
    """Not every API takes text as a file, and every model takes text."""
    got = await received(way, asking("Read:", NOTE))
    assert "Hello, é!" in (got.prompt or "") + "".join(
        file.data.decode() for file in got.files if file.data is not None
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("many", [1, 3])
async def test_files_from_tools_arrive_and_the_history_stays_valid(way: str, many: int) -> None:
    """Chat completions take only text from a tool, and nothing between the results of a turn."""
    calls = [ToolCall(f"call_{n}", "look") for n in range(many)]
    history = [
        Message("user", "Look."),
        Message("assistant", tool_calls=tuple(calls)),
        *(Message("tool", ("Here:", PICTURE), tool_call_id=call.id) for call in calls),
        Message("user", "And?"),
    ]
    got = await received(way, ModelRequest(history))
    assert [file.data for file in got.files] == [PICTURE.data] * many
    if way == "chat":
        roles = [message["role"] for message in got["messages"]]
        assert roles == ["user", "assistant", *["tool"] * many, "user", "user"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_prompt_cache_goes_with_files(way: str) -> None:
    options = {"cache_prompts": True} if way == "messages" else {}
    got = await received(way, asking("Look:", PICTURE), **options)
    assert len(got.files) == 1


files_taken = {
    way: st.lists(
        st.one_of(
            st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
            st.sampled_from(TAKEN[way]),
            st.binary(max_size=40).map(lambda more: File(data=png(more=more))),
            st.binary(max_size=40).map(lambda more: File(data=pdf() + more, name="x.pdf")),
        ),
        min_size=1,
        max_size=6,
    )
    for way in WAYS
}


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_any_content_survives_the_way_to_the_provider(way: str, data: st.DataObject) -> None:
    parts = data.draw(files_taken[way])
    body = make_model(way, "http://127.0.0.1:9").body_in_batch(asking(*parts))
    got = DIALECTS[way].read(json.loads(json.dumps(body)))
    sent = [part for part in parts if isinstance(part, File)]
    assert len(got.files) == len(sent)
    assert all(map(same, sent, got.files))
    assert got.prompt == "".join(part for part in parts if isinstance(part, str))


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def of_base64(media_type: str, data: bytes) -> dict[str, Any]:
    """Return an image as Anthropic takes it."""
    text = base64.b64encode(data).decode()
    source = {"type": "base64", "media_type": media_type, "data": text}
    return {"type": "image", "source": source}


@pytest.mark.parametrize(
    ("way", "part"),
    [
        ("chat", {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}),
        ("chat", {"type": "image_url"}),
        ("chat", {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
        ("chat", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "ogg"}}),
        ("chat", {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}),
        ("responses", {"type": "input_image", "image_url": "ftp://x/a.png"}),
        ("responses", {"type": "input_image", "image_url": "data:image/bmp;base64,AAAA"}),
        ("messages", of_base64("image/bmp", b"BM")),
        ("messages", of_base64("image/jpeg", png())),
        ("messages", {"type": "document", "source": {"type": "path"}}),
    ],
)
async def test_the_simulated_provider_refuses_what_the_real_one_would(
    way: str, part: dict[str, Any]
) -> None:
    """A request that only the simulation accepts would fail in production."""
    name = "input" if way == "responses" else "messages"
    body = {name: [{"role": "user", "content": [part]}], "max_tokens": 5}
    async with open_provider(answer=seen) as provider:
        reply = await provider.request(PATHS[way], body)
    assert reply.status == 400, reply


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "file"), [(way, file) for way in WAYS for file in REFUSED[way]], ids=str
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_file_is_refused_before_the_limiter_and_the_budget(
    way: str, file: File, streamed: bool
) -> None:
    limiter = Limiter("api", requests_per_minute=1)
    async with open_model(way, answer=seen, options={"limiter": limiter}) as (model, provider):
        async with harness.open_run("paid", budget=harness.Budget(tokens=1)):
            with pytest.raises(ModelFileError, match="can't take File") as caught:
                if streamed:
                    async with model.stream(asking("Look:", file)):
                        raise AssertionError("it was opened")
                await model.complete(asking("Look:", file))
        assert "convert it, or ask a model that does" in str(caught.value)
        assert "key=secret" not in str(caught.value)
        assert provider.statistics().requests == 0
        assert limiter.statistics().granted == 0


async def test_a_model_that_sees_nothing_says_so() -> None:
    """Which models of a provider have eyes is known to the user alone."""
    async with open_model("chat", answer=seen, options={"files": ["audio/*"]}) as (model, provider):
        with pytest.raises(ModelFileError, match=r"it takes only audio/\*, as its files= says"):
            await model.complete(asking(PICTURE))
        await model.complete(asking(SOUND))
        assert provider.statistics().requests == 1
    with pytest.raises(TypeError, match="takes media types"):
        make_model("chat", "http://127.0.0.1:9", files="image/png")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("assistant", (PICTURE,)), "in a message of role 'assistant'"),
        (Message("user", (File(path="a.png"),)), "read it first"),
        (Message("user", (File(data=b"\xff", media_type="text/plain"),)), "text in UTF-8"),
    ],
)
async def test_what_no_provider_takes_is_refused(message: Message, words: str) -> None:
    async with open_model("messages", answer=seen) as (model, _):
        with pytest.raises(ModelFileError, match=words):
            await model.complete(ModelRequest([message]))


@pytest.mark.parametrize("content", [["text"], (b"bytes",), None])
async def test_a_content_that_is_none_is_refused(content: Any) -> None:
    model = FunctionModel(lambda request: "ok")
    with pytest.raises(TypeError, match="text, or a tuple of texts and files"):
        await model.complete(ModelRequest([Message("user", content)]))


async def test_too_much_for_one_request_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_model("messages", answer=seen) as (model, _):
        monkeypatch.setattr(type(model._dialect), "files_bytes_at_most", 50)
        with pytest.raises(ModelFileError, match=r"files of \d+ bytes together; .* 50"):
            await model.complete(asking(PICTURE, PAPER))
        await model.complete(asking(PICTURE))


async def test_a_chain_asks_only_models_that_take_the_file() -> None:
    async with (
        open_model("messages", answer=seen, options={"limiter": Limiter("one", concurrent=2)}) as (
            deaf,
            first,
        ),
        open_model("chat", answer=seen, options={"limiter": Limiter("two", concurrent=2)}) as (
            hearing,
            second,
        ),
    ):
        chain = FallbackModel([deaf, hearing])
        await chain.complete(asking(SOUND))
        assert (first.statistics().requests, second.statistics().requests) == (0, 1)
        with pytest.raises(ModelFileError):
            await chain.complete(asking(File(data=b"x", media_type="video/mp4")))


# Recordings ---------------------------------------------------------------------------------------


async def test_a_recording_knows_a_file_by_its_digest_and_holds_no_byte_of_it(
    tmp_path: Path,
) -> None:
    large = File(data=png(more=b"SECRET" * 100_000), name="a.png")
    path = tmp_path / "seen.jsonl"
    recording = RecordedModel(path, ScriptedModel(["a receipt"]))
    await recording.complete(asking("What?", large))
    assert path.stat().st_size < 1_000
    assert large.digest in path.read_text()
    again = RecordedModel(path)
    assert (await again.complete(asking("What?", large))).content == "a receipt"
    other = File(data=png(more=b"SECRET" * 100_000 + b"!"), name="a.png")
    with pytest.raises(Exception, match="sha256"):
        await again.complete(asking("What?", other))


def test_a_request_without_files_is_recorded_as_it_always_was() -> None:
    """The key of a recording is made of this; another form would make all of them worthless."""
    assert request_json(ModelRequest([Message("user", "Hi")])) == {
        "messages": [{"role": "user", "content": "Hi"}]
    }
