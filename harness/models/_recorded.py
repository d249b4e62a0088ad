"""Repeat what another model said: recorded once, replayed offline.

A cassette is a function from request to reply. What was recorded for a request is given for every
equal one, even while recording: a session that records sees exactly what a replay will see,
whatever the order of its runs. (Several replies for one request would need a position shared by all
runs; otherwise runs that ask the same would steal each other's.)

The request is compared whole: its messages, its tools and the form of the answer. Which model
answered, and with what settings, is not part of it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import says_near_options
from harness._outside_trio import refuse_outside_trio
from harness.errors import UnrecordedRequestError
from harness.limits import JointLimiter, Limiter
from harness.models._answers import Answer, AnswerStream, ReadyStream
from harness.models._called import CalledModel
from harness.models._canonical import difference, nearest, request_json, request_key, response_json
from harness.models._cassette import Cassette, RecordedAnswer
from harness.models._grant import NO_LIMIT, Grant
from harness.models._messages import ModelRequest, ModelResponse, Usage
from harness.models._price import Price
from harness.models._protocol import Model, ModelStream
from harness.models._sending import request_sent
from harness.models._sizes import usage_of


@attrs.define(eq=False)
class _Flight:
    """A request being recorded; equal ones wait for it."""

    lock: trio.Lock = attrs.field(factory=trio.Lock)
    users: int = 0


_recording: ContextVar[tuple[tuple[object, str], ...]] = ContextVar(
    "harness.models.recording", default=()
)
"""What is being recorded around the current code: models, and the keys of requests."""


@says_near_options
class RecordedModel(CalledModel):
    """A model that replays a cassette and, given a model to ask, records what isn't there.

    Args:
      path: The cassette: a file of JSON lines. It is read at once.
      model: Answers what isn't recorded yet; None to replay only. It has to be open.
      name: Its name, in messages; by default the file's.
      limiter: The limits that calls keep to, replayed ones too.
      price: What replayed calls cost; while recording, calls cost what ``model`` says.

    Raises:
      CassetteError: if the file can't be read, or a line in it isn't a recording.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: Model | None = None,
        *,
        name: str | None = None,
        limiter: Limiter | JointLimiter | None = None,
        price: Price | None = None,
    ) -> None:
        path = Path(path)
        super().__init__(name or path.name, limiter=limiter, price=price)
        self._model = model
        self._cassette = Cassette(path)
        self._flights: dict[str, _Flight] = {}

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer: as recorded, or recorded now.

        Args:
          request: What the model is asked.

        Raises:
          UnrecordedRequestError: if it isn't recorded and there is no model to ask; the message
            shows where the nearest recorded one differs.
          ModelError: as the model that is asked. Errors aren't recorded.

        Checkpoint: always.

        Cancellation: an incomplete answer isn't recorded.
        """
        refuse_outside_trio("RecordedModel.complete() was called")
        if self._model is not None and self.limiter is None:
            return await self.ask_counted(request, NO_LIMIT)
        return await super().complete(request)

    # Recording ---------------------------------------------------------------------------------
    #
    # The model that is asked bills its own use; a replay is billed here.

    @enable_ki_protection
    async def ask_counted(self, request: ModelRequest, grant: Grant) -> ModelResponse:
        """Record under ``grant``, or replay."""
        if self._model is not None:
            values = request_json(request)
            key = request_key(values)
            async with self._alone(key):
                if key not in self._cassette.recordings:
                    response = await self._model.complete(request)
                    grant.settle(usage_of(request, response))
                    recorded = await self._cassette.append(key, values, response_json(response))
                    return recorded.response
        return await super().ask_counted(request, grant)

    @asynccontextmanager
    @enable_ki_protection
    async def open_counted(
        self, request: ModelRequest, grant: Grant
    ) -> AsyncGenerator[ModelStream]:
        """Record under ``grant``, or replay in the same pieces.

        Cancellation: an incomplete answer isn't recorded, nor one whose stream was left before its
        end.
        """
        if self._model is not None:
            values = request_json(request)
            key = request_key(values)
            async with self._alone(key):
                if key not in self._cassette.recordings:
                    async with self._model.stream(request) as stream:
                        recording = _Recording(stream, self._cassette, key, values)
                        yield recording
                        if recording.whole is not None:
                            grant.settle(usage_of(request, recording.whole))
                        return
        async with super().open_counted(request, grant) as replayed:
            yield replayed

    @asynccontextmanager
    @enable_ki_protection
    async def _alone(self, key: str) -> AsyncGenerator[None]:
        """Be the only one asking this until it is recorded; if it already is, don't wait."""
        inside = _recording.get()
        if key in self._cassette.recordings or (self, key) in inside:
            # Asking the same while reading a stream of it would be waiting for oneself.
            yield
            return
        flight = self._flights.setdefault(key, _Flight())
        flight.users += 1
        try:
            async with flight.lock:
                token = _recording.set((*inside, (self, key)))
                try:
                    yield
                finally:
                    _recording.reset(token)
        finally:
            flight.users -= 1
            if not flight.users:
                # harness: shared (the users are counted, so the last one to leave takes it away)
                del self._flights[key]

    # Replaying ---------------------------------------------------------------------------------

    async def _ask(self, request: ModelRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        request_sent()
        return Answer(self._find(request).response)

    @asynccontextmanager
    @enable_ki_protection
    async def _open(self, request: ModelRequest) -> AsyncGenerator[AnswerStream]:
        await trio.lowlevel.checkpoint()
        request_sent()
        recorded = self._find(request)
        yield ReadyStream(recorded.response, pieces=recorded.pieces)

    def _foresee(self, request: ModelRequest) -> Usage | None:
        recorded = self._cassette.recordings.get(request_key(request_json(request)))
        return None if recorded is None else usage_of(request, recorded.response)

    def _find(self, request: ModelRequest) -> RecordedAnswer:
        values = request_json(request)
        recorded = self._cassette.recordings.get(request_key(values))
        if recorded is not None:
            return recorded
        path = str(self._cassette.path)
        by_request = {
            id(recorded.request): recorded for recorded in self._cassette.recordings.values()
        }
        near = nearest(values, (recorded.request for recorded in by_request.values()))
        if near is None:
            found = "which is empty or not there"
        else:
            line = by_request[id(near)].line
            found = f"where the nearest, in line {line}, differs: {difference(values, near)}"
        raise self._error(
            UnrecordedRequestError,
            f"was asked something that is not recorded in {path!r}, {found}; give "
            "RecordedModel(path, model) a model to record it",
        )


@attrs.define(eq=False, repr=False)
class _Recording(AnswerStream):
    """A stream that is kept as it passes through, and recorded once it is whole."""

    _stream: ModelStream
    _cassette: Cassette
    _key: str
    _request: dict[str, object]
    _pieces: list[str] = attrs.field(factory=list[str], init=False)
    whole: ModelResponse | None = attrs.field(default=None, init=False)

    async def __anext__(self) -> str | ModelResponse:
        piece = await anext(self._stream)
        if isinstance(piece, str):
            self._pieces.append(piece)
            return piece
        self.whole = piece
        recorded = await self._cassette.append(
            self._key, self._request, response_json(piece), pieces=self._pieces
        )
        return recorded.response
