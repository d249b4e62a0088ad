"""Turn a request into a reply: what the provider does, with sockets and without.

The order of the questions: can it be read at all, does a fault hit it, is it within the limits,
what does the test answer. Only the last two cost anything: an injected error isn't charged, just as
an overloaded provider turns requests away before it counts them, and neither is a refused request.

Tokens are charged in two steps. The question counts when it arrives, with the requested maximum if
the dialect counts that; the rest of the answer is added as soon as the answer is known, even if
that leaves less than nothing.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Awaitable, Mapping
from email.utils import formatdate
from typing import Protocol, TypeVar

import attrs
import trio

from harness.testing.provider._answers import (
    Answer,
    AnswerFunction,
    ErrorAnswer,
    ProviderRequest,
    as_answer,
)
from harness.testing.provider._anthropic import AnthropicMessages
from harness.testing.provider._batches import Batches
from harness.testing.provider._body import read_body
from harness.testing.provider._counters import Counters
from harness.testing.provider._dialect import (
    Ask,
    Completion,
    Dialect,
    Failure,
    Headers,
    JSONObject,
    UnreadableRequest,
    compact_json,
)
from harness.testing.provider._fates import RequestFates
from harness.testing.provider._http_reply import HttpReply, json_reply, spoil, stream_reply
from harness.testing.provider._limits import Limits
from harness.testing.provider._openai_chat import OpenAIChat
from harness.testing.provider._openai_responses import OpenAIResponses
from harness.testing.provider._tokens import count_tokens

T = TypeVar("T")

_DIALECTS: Mapping[str, Dialect] = {
    "chat/completions": OpenAIChat(),
    "responses": OpenAIResponses(),
    "messages": AnthropicMessages(),
}

# Clients differ in whether their base URL includes the version, so it may be in the path not at
# all, once or twice; Azure's clients have a prefix of their own.
_ROUTE = re.compile(
    r"(?:(?:/v1){0,2}|/openai/v1|/openai/deployments/[^/?]+)"
    r"/(chat/completions|responses|messages)(?:\?.*)?",
)


class Patience(Protocol):
    """How the shell waits: with sockets, only while the client is there."""

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""

    async def wait_for(self, answer: Awaitable[T]) -> T:
        """Wait for the test's answer."""
        ...


@attrs.frozen(kw_only=True)
class Incoming:
    """A request as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    content: bytes


@attrs.define(eq=False, kw_only=True)
class Core:
    """One provider's limits, faults, answers and counters."""

    answer: AnswerFunction
    limits: Limits
    fates: RequestFates
    opened_at: float
    """On trio's clock."""
    epoch_seconds: float
    """The calendar time at that moment."""
    batches: Batches
    tally: Counters = attrs.field(factory=Counters)
    _date: tuple[int, str] = attrs.field(default=(-1, ""), init=False)

    async def exchange(self, incoming: Incoming, patience: Patience) -> HttpReply:
        """Return the reply to one request.

        Raises:
          TypeError: if the answer function returned something other than an answer.

        What the answer function raises passes through.

        Checkpoint: only if it waits for a latency or an async answer.

        Cancellation: an accepted request stays counted and charged.
        """
        tally = self.tally
        tally.requests += 1
        number = tally.requests
        now = trio.current_time() - self.opened_at
        if self.batches.takes(incoming.path):
            return await self._exchange_batch(incoming, patience, number, now)
        found = _ROUTE.fullmatch(incoming.path)
        dialect = _DIALECTS[found[1]] if found else _likely_dialect(incoming.path)
        try:
            if found is None:
                raise UnreadableRequest(
                    f"there is no {incoming.path[:80]!r} here; post to /v1/chat/completions, "
                    "/v1/responses or /v1/messages",
                    status=404,
                )
            if incoming.method != "POST":
                message = f"the method is {incoming.method[:20]!r}; it must be POST"
                raise UnreadableRequest(message, status=405)
            ask = dialect.read(read_body(incoming.content))
        except UnreadableRequest as error:
            return self._invalid(dialect, error, number, now)

        fate = self.fates.fate_of(lambda: _identity(dialect, ask.body), now)
        if fate.kind == "error":
            tally.errors[fate.status] += 1
            await self._sleep(patience, fate.latency_seconds)
            failure = Failure(
                status=fate.status,
                message=f"injected fault: status {fate.status}",
                number=number,
                retry_after_seconds=fate.retry_after_seconds,
            )
            return self._failed(dialect, failure, now)

        amounts = _amounts(dialect, ask)
        refused = self.limits.admit(amounts, now)
        if refused is not None:
            tally.violations_by_limit[refused.name] += 1
            wait = refused.wait_seconds
            failure = Failure(
                status=429,
                message=f"rate limit reached for {ask.model}",
                number=number,
                refused=refused,
                retry_after_seconds=wait if math.isfinite(wait) else None,
            )
            return self._failed(dialect, failure, now)

        tally.accepted += 1
        request = ProviderRequest(
            body=ask.body,
            path=incoming.path,
            headers=incoming.headers,
            dialect=dialect.name,
            number=number,
            prompt=ask.prompt,
            files=ask.files,
        )
        result = self.answer(request)
        if inspect.isawaitable(result):
            result = await patience.wait_for(result)
        answer = as_answer(result)
        if isinstance(answer, ErrorAnswer):
            await self._sleep(patience, fate.latency_seconds)
            failure = Failure(
                status=answer.status,
                message=answer.message,
                number=number,
                retry_after_seconds=answer.retry_after_seconds,
            )
            return attrs.evolve(self._failed(dialect, failure, now), accepted=True)

        completion = self._complete(dialect, ask, answer, number, now)
        self._charge_answer(amounts, completion)
        headers = self._headers(dialect, number, now)
        if ask.streaming:
            reply = stream_reply(headers, dialect.events(completion))
        else:
            content = compact_json(dialect.whole(completion))
            reply = json_reply(200, headers, content, accepted=True)
        tally.cut += fate.kind == "cut"
        tally.malformed += fate.kind == "malformed"
        tally.hung += fate.kind == "hang"
        await self._sleep(patience, fate.latency_seconds)
        return spoil(reply, fate)

    async def _exchange_batch(
        self, incoming: Incoming, patience: Patience, number: int, now: float
    ) -> HttpReply:
        """Return the reply to a request of a batch API. Faults hit it after it had its effect."""
        tally = self.tally
        dialect = _likely_dialect(incoming.path)
        identity = f"{incoming.method} {incoming.path} {number}".encode()
        fate = self.fates.fate_of(lambda: identity, now)
        if fate.kind == "error":
            tally.errors[fate.status] += 1
            message = f"injected fault: status {fate.status}"
            failure = Failure(status=fate.status, message=message, number=number)
            return self._failed(dialect, failure, now)

        async def answer(path: str, body: JSONObject) -> tuple[int, JSONObject]:
            return await self._answer_in_batch(incoming, patience, path, body, now)

        try:
            content = await self.batches.exchange(
                incoming.method,
                incoming.path,
                incoming.headers,
                incoming.content,
                now=self.epoch_seconds + now,
                answer=answer,
            )
        except UnreadableRequest as error:
            return self._invalid(dialect, error, number, now)
        tally.accepted += 1
        tally.batches, tally.batched_requests = self.batches.sent, self.batches.requests
        tally.cut += fate.kind == "cut"
        tally.malformed += fate.kind == "malformed"
        tally.hung += fate.kind == "hang"
        headers = self._headers(dialect, number, now)
        return spoil(json_reply(200, headers, content, accepted=True), fate)

    async def _answer_in_batch(
        self, incoming: Incoming, patience: Patience, path: str, body: JSONObject, now: float
    ) -> tuple[int, JSONObject]:
        """Answer one request of a batch: the status, and the body."""
        number = self.batches.requests
        found = _ROUTE.fullmatch(path)
        dialect = _DIALECTS[found[1]] if found else _likely_dialect(path)
        try:
            ask = dialect.read(body)
        except UnreadableRequest as error:
            failure = Failure(
                status=error.status, message=error.message, number=number, parameter=error.parameter
            )
            return error.status, dialect.failure(failure)
        request = ProviderRequest(
            body=body,
            path=path,
            headers=incoming.headers,
            dialect=dialect.name,
            number=number,
            prompt=ask.prompt,
            files=ask.files,
        )
        result = self.answer(request)
        if inspect.isawaitable(result):
            result = await patience.wait_for(result)
        given = as_answer(result)
        if isinstance(given, ErrorAnswer):
            failure = Failure(status=given.status, message=given.message, number=number)
            return given.status, dialect.failure(failure)
        return 200, dialect.whole(self._complete(dialect, ask, given, number, now))

    def refuse(self, path: str, refused: UnreadableRequest) -> HttpReply:
        """Return the reply to what isn't even a request: too large, or not HTTP."""
        self.tally.requests += 1
        now = trio.current_time() - self.opened_at
        return self._invalid(_likely_dialect(path), refused, self.tally.requests, now)

    def _complete(
        self, dialect: Dialect, ask: Ask, answer: Answer, number: int, now: float
    ) -> Completion:
        calls = [
            call
            if call.id is not None
            else attrs.evolve(call, id=f"{dialect.tool_call_prefix}_{number:020d}_{index:03d}")
            for index, call in enumerate(answer.tool_calls)
        ]
        output_tokens = answer.output_tokens
        if output_tokens is None:
            characters = len(answer.text)
            characters += sum(len(call.name) + len(call.arguments_json) for call in calls)
            output_tokens = max(1, count_tokens(characters))
        input_tokens = ask.input_tokens if answer.input_tokens is None else answer.input_tokens
        self.tally.input_tokens += input_tokens
        self.tally.output_tokens += output_tokens
        return Completion(
            number=number,
            created=int(self.epoch_seconds + now),
            ask=ask,
            text=answer.text,
            tool_calls=calls,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            finish=answer.finish or ("tool_calls" if calls else "stop"),
        )

    def _charge_answer(self, admitted: Mapping[str, float], completion: Completion) -> None:
        """Charge what the answer takes beyond what was charged when the request arrived."""
        actual = {
            "tokens": completion.input_tokens + completion.output_tokens,
            "input_tokens": completion.input_tokens,
            "output_tokens": completion.output_tokens,
        }
        now = trio.current_time() - self.opened_at  # An async answer may have taken some time.
        self.limits.charge(
            {name: max(0.0, amount - admitted[name]) for name, amount in actual.items()}, now
        )

    def _invalid(
        self, dialect: Dialect, error: UnreadableRequest, number: int, now: float
    ) -> HttpReply:
        self.tally.invalid += 1
        failure = Failure(
            status=error.status, message=error.message, number=number, parameter=error.parameter
        )
        return self._failed(dialect, failure, now)

    def _failed(self, dialect: Dialect, failure: Failure, now: float) -> HttpReply:
        headers = self._headers(dialect, failure.number, now)
        if failure.retry_after_seconds is not None:
            headers += dialect.retry_headers(failure.retry_after_seconds)
        return json_reply(failure.status, headers, compact_json(dialect.failure(failure)))

    def _headers(self, dialect: Dialect, number: int, now: float) -> Headers:
        epoch = self.epoch_seconds + now
        second = int(epoch)
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True))
        states = self.limits.states(now)
        headers = dialect.headers(states, number=number, epoch_seconds=epoch)
        return [("date", self._date[1]), *headers]

    async def _sleep(self, patience: Patience, seconds: float) -> None:
        if seconds > 0:
            await patience.sleep(seconds)


def _likely_dialect(path: str) -> Dialect:
    """Return the dialect in which to report a path that doesn't exist."""
    return _DIALECTS["messages" if "messages" in path else "chat/completions"]


def _amounts(dialect: Dialect, ask: Ask) -> dict[str, float]:
    """Return what must be available for a request when it arrives, and is charged then."""
    tokens = ask.input_tokens
    if dialect.counts_maximum and ask.maximum_output_tokens is not None:
        tokens += ask.maximum_output_tokens
    return {
        "requests": 1,
        "tokens": tokens,
        "input_tokens": ask.input_tokens,
        "output_tokens": 1,  # Every answer has at least one; how many more isn't known yet.
        "requests_day": 1,
    }


def _identity(dialect: Dialect, body: JSONObject) -> bytes:
    """Return what a request says, without how it was spelled."""
    return f"{dialect.name} {json.dumps(body, sort_keys=True)}".encode()
