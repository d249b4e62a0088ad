"""Scripts and functions in place of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import ModelReplyError, ScriptEndedError
from harness.limits import Limiter
from harness.models import (
    FunctionModel,
    Message,
    Model,
    ModelRequest,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    Usage,
)
from tests.scale import scaled
from tests.support.checkpoints import cancel_at_every_checkpoint

HELLO = ModelRequest([Message("user", "hello")])


def turns(count: int) -> ModelRequest:
    """Return a request in which the assistant has spoken ``count`` times."""
    messages = [Message("system", "be brief"), Message("user", "hello")]
    for number in range(count):
        messages += [Message("assistant", f"reply {number}"), Message("user", "go on")]
    return ModelRequest(messages)


async def read(model: Model, request: ModelRequest) -> tuple[list[str], ModelResponse]:
    """Read a stream to its end; return the pieces of text and the whole."""
    pieces: list[str] = []
    async with model.stream(request) as stream:
        async for piece in stream:
            if isinstance(piece, ModelResponse):
                return pieces, piece
            pieces.append(piece)
    raise AssertionError("the stream ended without the whole")


async def test_the_reply_follows_from_the_request_and_from_nothing_else() -> None:
    """A cursor in the model would be moved by every run that shares it."""
    model = ScriptedModel(["first", "second", "third"])
    for count, expected in [(1, "second"), (0, "first"), (2, "third"), (0, "first")]:
        assert (await model.complete(turns(count))).content == expected
    before = vars(model).copy()

    async def ask(number: int) -> str:
        return (await model.complete(turns(number % 3))).content

    results = await harness.fan_out(ask, range(scaled(60, full=3_000)), limit=30)
    assert results.values() == [
        ("first", "second", "third")[number % 3] for number in range(len(results))
    ]
    assert vars(model) == before


async def test_a_script_that_ran_out_says_so_by_name() -> None:
    model = ScriptedModel(["only"], name="greeter")
    async with harness.open_run("talk"):
        with pytest.raises(ScriptEndedError, match=r"'greeter' has 1 replies.*'talk'") as caught:
            await model.complete(turns(1))
        with pytest.raises(ScriptEndedError, match=r"'greeter'"):
            async with model.stream(turns(1)):
                pass
    assert caught.value.model == "greeter"


async def test_a_stream_gives_the_text_in_pieces_and_the_whole_last() -> None:
    text = "  It is sunny,\n and dry. "
    whole = ModelResponse(text, tool_calls=[ToolCall("1", "clock")], usage=Usage(3, 4))
    pieces, last = await read(ScriptedModel([whole]), HELLO)
    assert "".join(pieces) == text
    assert len(pieces) == 6
    assert last == whole
    assert await read(ScriptedModel([""]), HELLO) == ([], ModelResponse())


async def test_a_script_may_hold_errors_and_functions() -> None:
    def echo(request: ModelRequest) -> str:
        return request.messages[-1].text.upper()

    async def complete(model: ScriptedModel) -> str:
        return (await model.complete(HELLO)).content

    async def slow_echo(request: ModelRequest) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        return ModelResponse(echo(request))

    assert await complete(ScriptedModel([echo])) == "HELLO"
    assert await complete(ScriptedModel([slow_echo])) == "HELLO"
    error = ValueError("broken")
    model = ScriptedModel([error])
    for _ in range(3):
        with pytest.raises(ValueError, match="broken") as caught:
            async with harness.open_run("asks"):
                await complete(model)
        assert caught.value is not error
        assert len(caught.value.__notes__) == 1
    assert error.__traceback__ is None


async def test_an_error_that_can_not_be_copied_is_raised_all_the_same() -> None:
    """Those of the providers' libraries take more than they tell."""

    class OfALibrary(Exception):
        def __init__(self, message: str, *, response: object) -> None:
            super().__init__(message)

    model = ScriptedModel([OfALibrary("too many", response=object())])
    for _ in range(2):
        with pytest.raises(OfALibrary, match="too many"):
            await model.complete(HELLO)


async def test_delays_pass_on_the_clock_of_trio(autojump_clock: MockClock) -> None:
    model = ScriptedModel(["three little words"], delay=5, piece_delay=0.5)
    await model.complete(HELLO)
    assert trio.current_time() == 5
    moments: list[float] = []
    async with model.stream(HELLO) as stream:
        async for _ in stream:
            moments.append(trio.current_time())
    assert moments == [10, 10.5, 11, 11]


async def test_a_stream_left_early_is_closed() -> None:
    async with ScriptedModel(["one two three"]).stream(HELLO) as stream:
        assert await anext(stream) == "one "
    with pytest.raises(trio.ClosedResourceError, match="closed with its block"):
        await anext(stream)


async def test_a_stream_is_entered_once() -> None:
    stream = ScriptedModel(["one two three"]).stream(HELLO)
    async with stream:
        pass
    with pytest.raises(RuntimeError, match=r"already entered; call model.stream\(\) for each"):
        await stream.__aenter__()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ScriptedModel("hello"), TypeError, "put it in"),
        (lambda: ScriptedModel([3]), TypeError, "a script holds 3"),  # type: ignore[list-item]
        (lambda: ScriptedModel([ValueError]), TypeError, r"class ValueError.*write ValueError\("),  # type: ignore[list-item]
        (lambda: ScriptedModel(None), TypeError, "several replies, not None"),  # type: ignore[arg-type]
        (lambda: ScriptedModel(["a"], delay=-1), ValueError, "delay"),
        (lambda: ScriptedModel(["a"], name=""), TypeError, "takes a readable name"),
        (lambda: ScriptedModel(["a"], limiter=3), TypeError, "takes a Limiter or a JointLimiter"),  # type: ignore[arg-type]
        (lambda: ScriptedModel(["a"], price=3), TypeError, "takes a harness.models.Price, not 3"),  # type: ignore[arg-type]
        (lambda: FunctionModel("fn"), TypeError, "takes a function"),  # type: ignore[arg-type]
        (lambda: FunctionModel(lambda: "a"), TypeError, "write `lambda request: ...`"),  # type: ignore[misc, arg-type]
    ],
)
def test_bad_arguments_are_refused(
    make: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


async def test_a_function_may_be_plain_or_async_and_return_text_or_a_response() -> None:
    whole = ModelResponse("four", usage=Usage(1, 1))

    async def later(request: ModelRequest) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        assert harness.current_run().name == "asks"
        return whole

    def echo(request: ModelRequest) -> str:
        return request.messages[0].text

    async with harness.open_run("asks"):
        assert (await FunctionModel(echo).complete(HELLO)) == ModelResponse("hello")
        assert (await FunctionModel(later).complete(HELLO)) == whole
        assert await read(FunctionModel(echo), HELLO) == (["hello"], ModelResponse("hello"))
        assert FunctionModel(echo).name == "echo"

        def forgot(request: ModelRequest) -> str:
            return None  # type: ignore[return-value]

        with pytest.raises(ModelReplyError, match=r"'forgot' is a function that returned None"):
            await FunctionModel(forgot).complete(HELLO)


async def test_what_a_function_raises_comes_out_as_it_is() -> None:
    error = ZeroDivisionError("by zero")

    def fails(request: ModelRequest) -> str:
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        await FunctionModel(fails).complete(HELLO)
    assert caught.value is error


async def test_cancelled_anywhere_nothing_is_left(autojump_clock: MockClock) -> None:
    model = ScriptedModel(["one two"], delay=1, piece_delay=1)

    async def use() -> None:
        await model.complete(HELLO)
        await read(model, HELLO)

    assert await cancel_at_every_checkpoint(use, lambda: None) >= 4


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("limiter", [None, Limiter("provider", tokens_per_minute=1_000)])
@pytest.mark.parametrize(
    "wrong",
    [
        ModelResponse("x", usage=Usage(-1, 0)),
        ModelResponse("x", usage=Usage(None, None)),  # type: ignore[arg-type]
        ModelResponse(None),  # type: ignore[arg-type]
    ],
)
async def test_a_response_that_can_not_be_is_the_models_error(
    wrong: ModelResponse, limiter: Limiter | None, streamed: bool, autojump_clock: MockClock
) -> None:
    """It was an error of the limiter, or of whoever added it up, and named no model."""
    if limiter is not None:
        limiter.reset()
    for model in (
        ScriptedModel([wrong], limiter=limiter),
        ScriptedModel([lambda _: wrong], limiter=limiter),
        FunctionModel(lambda _: wrong, name="scripted", limiter=limiter),
    ):
        with pytest.raises(ModelReplyError, match=r"model 'scripted' gave .*, where a ModelRespo"):
            if streamed:
                async with model.stream(HELLO):
                    pass
            else:
                await model.complete(HELLO)
    if limiter is not None:
        assert limiter.statistics().in_flight == 0
