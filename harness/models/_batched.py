"""Ask a provider's model through its batch API: for half the price, within a day.

Requests gather for a moment and are sent as one batch; their callers wait until the provider has
answered it. That is a wait of hours, so a session must be able to end meanwhile, even by
``kill -9``, and the next one must wait for the same batches and not pay for them again.

So each request is an effect of a `harness.shared.Once`, kept in the journal: it is *intended* under
an id of its own before it is sent, and *done* with the batch it is in. If a session died in
between, the provider is asked for a batch with that id. A request has a name that the next session
gives it, too: made of the key of the item that asks, of the request itself, and of its number among
equal ones of that item.

No task stays behind. The first request of a group sends it, in its own flight; of those who wait
for a batch, one asks for it at a time.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from hashlib import blake2b
from typing import Any

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_count, check_seconds
from harness._error_copies import own_copy
from harness._events import happened
from harness._outside_trio import refuse_outside_trio
from harness.errors import (
    ModelConnectionError,
    ModelNotOpenError,
    ModelRateLimitedError,
    ModelReplyError,
    ModelStatusError,
)
from harness.models._answers import Answer
from harness.models._batch_apis import BatchApi, BatchEntry, BatchState, size_bytes
from harness.models._called import CalledModel
from harness.models._dialect import ReportedError
from harness.models._messages import ModelRequest
from harness.models._price import Price
from harness.models._sdk_model import SdkModel
from harness.models._sending import request_sent
from harness.runs import current_run_or_none
from harness.shared import Done, EffectStore, Once, open_once

SIZE = 10_000
"""How many requests a batch has at most, unless told; providers take 50,000 and more."""

MOST_BYTES = 100 * 1024 * 1024
"""How large a batch may be. OpenAI takes 200 MB, Anthropic 256."""

WITHIN_SECONDS = 10.0
POLL_SECONDS = 60.0
PRICE_SHARE = 0.5

_FAILED_POLLS_AT_MOST = 30
# A batch found in the provider's list may be older than the clock here says it can be.
_CLOCKS_APART_SECONDS = 600.0


@attrs.define(eq=False)
class _Group:
    """Requests on their way into one batch."""

    token: str
    requests: dict[str, dict[str, Any]] = attrs.field(factory=dict[str, dict[str, Any]])
    size_bytes: int = 0
    full: trio.Event = attrs.field(factory=trio.Event)
    sent: trio.Event = attrs.field(factory=trio.Event)
    batch_id: str = ""
    error: Exception | None = None


@attrs.define(eq=False)
class _Sent:
    """A batch that the provider has."""

    polling: trio.Lock = attrs.field(factory=trio.Lock)
    entries: dict[str, BatchEntry] | None = None
    """What became of its requests that nobody has been told yet, once it has ended."""
    error: Exception | None = None
    """Why that can't be known."""


class BatchedModel(CalledModel):
    """A model asked through its provider's batch API; made by `open_batched`."""

    def __init__(
        self,
        model: SdkModel,
        *,
        price: Price | None,
        within: float,
        size: int,
        poll_seconds: float,
    ) -> None:
        super().__init__(
            model.name,
            provider=model.provider,
            price=price,
            max_output_tokens=model.max_output_tokens,
        )
        self.no_price_because: str = model.no_price_because
        self.context_tokens: int | None = model.context_tokens
        self._model = model
        self._once: Once | None = None
        self._api: BatchApi = model._batch_api()
        self._within = within
        self._size = size
        self._poll_seconds = poll_seconds
        self._groups: dict[str, _Group] = {}
        self._token = _new_token()
        self._made = 0
        self._sent: defaultdict[str, _Sent] = defaultdict(_Sent)
        self._ids_known: dict[str, set[str]] = {}
        self._taken: defaultdict[bytes, set[int]] = defaultdict(set)
        """For each request, the numbers of those that are under way or were answered here."""

    def refuse_unless_ready(self) -> None:
        """Raise if it isn't open, or the model isn't."""
        if self._once is None:
            raise ModelNotOpenError(
                f"the batches of model {self.name!r} aren't open; use them inside `async with "
                "open_batched(model) as batched:`"
            )
        self._model.refuse_unless_ready()

    def refuse_files(self, request: ModelRequest) -> None:
        """Raise if the model can't take a file of the request."""
        self._model.refuse_files(request)

    async def _ask(self, request: ModelRequest) -> Answer:
        body = self._model.body_in_batch(request)
        name = _name(body)
        taken = self._taken[name]
        tried: set[int] = set()
        try:
            while True:  # Ends: each round is about one more error of earlier sessions.
                number = next(n for n in range(len(taken) + 1) if n not in taken)
                taken.add(number)
                tried.add(number)
                entry, is_new = await self._entry(body, name, number)
                # What an earlier session was refused costs nothing, and is asked for again.
                if entry.error is None or is_new:
                    break
        except BaseException:
            taken.difference_update(tried)  # Nobody was told, so it isn't asked for again.
            raise
        return self._answer(entry)

    def _answer(self, entry: BatchEntry) -> Answer:
        failures = self._model._failures
        assert failures is not None
        with failures.translated():
            if entry.error is not None:
                raise ReportedError(entry.error, entry.status)
            response = self._model._dialect.read(entry.body, self._model._settings)
        return Answer(response)

    async def _entry(
        self, body: dict[str, Any], name: bytes, number: int
    ) -> tuple[BatchEntry, bool]:
        """Return what became of a request, and whether this session sent it."""
        is_new = False

        async def send(custom_id: str) -> list[str]:
            nonlocal is_new
            is_new = True
            return [await self._send(custom_id, body), custom_id]

        assert self._once is not None
        self._made += 1
        batch_id, custom_id = await self._once(
            ("harness.models.batched", name.hex(), number),
            send,
            idempotency_key=f"{self._token}-{self._made}",
        )
        request_sent()
        sent = self._sent[batch_id]
        _waiting_for = f"batch {batch_id} of model {self.name!r}"
        async with sent.polling:  # One asks, the others wait.
            await self._wait_for_end(batch_id, sent)
        if sent.error is not None:
            raise own_copy(sent.error)
        assert sent.entries is not None
        entry = sent.entries.pop(custom_id, None)
        if entry is None:
            raise self._error(
                ModelReplyError, f"answered batch {batch_id} without request {custom_id}"
            )
        return entry, is_new

    # Sending -----------------------------------------------------------------------------------

    async def _send(self, custom_id: str, body: dict[str, Any]) -> str:
        """Send a request together with others; return the id of the batch it is in."""
        token = custom_id.rpartition("-")[0]
        group = self._groups.get(token)
        is_first = group is None
        if group is None:
            group = self._groups[token] = _Group(token)
        group.requests[custom_id] = body
        group.size_bytes += size_bytes([body])
        if len(group.requests) >= self._size or group.size_bytes >= MOST_BYTES:
            self._close(group)
        if is_first:
            await self._send_group(group)
        else:
            await happened(group.sent)
        if group.error is not None:
            raise own_copy(group.error)
        return group.batch_id

    def _close(self, group: _Group) -> None:
        """Let further requests be part of another group."""
        if self._groups.get(group.token) is group:
            del self._groups[group.token]
        if group.token == self._token:
            self._token = _new_token()
        group.full.set()

    async def _send_group(self, group: _Group) -> None:
        try:
            with trio.move_on_after(self._within):
                await happened(group.full)
            self._close(group)
            async with self._client() as client:
                group.batch_id = await self._api.send(client, group.token, group.requests)
        except Exception as error:
            group.error = error
        finally:
            self._close(group)
            group.sent.set()

    async def find(self, key: Any, custom_id: str) -> Done | None:
        """Find out whether a request was sent, of which the journal knows only the intention."""
        token = custom_id.rpartition("-")[0]
        earliest = int(token.partition("-")[0], 16) - _CLOCKS_APART_SECONDS
        async with self._client() as client, aclosing(self._api.listed(client, token)) as listed:
            async for state in listed:
                if state.created_at < earliest:
                    break
                if custom_id in await self._ids(client, state):
                    return Done([state.id, custom_id])
        return None

    async def _ids(self, client: Any, state: BatchState) -> set[str]:
        """Return the ids of a batch's requests, waiting for its end if they can't be known."""
        known = self._ids_known.get(state.id)
        while known is None:
            known = await self._api.ids(client, state)
            if known is None:
                await trio.sleep(self._poll_seconds)
                state = await self._api.state(client, state.id)
        self._ids_known[state.id] = known
        return known

    # Waiting -----------------------------------------------------------------------------------

    async def _wait_for_end(self, batch_id: str, sent: _Sent) -> None:
        failed = 0
        while sent.entries is None and sent.error is None:
            try:
                async with self._client() as client:
                    state = await self._api.state(client, batch_id)
                    if state.has_ended:
                        sent.entries = await self._api.entries(client, state)
                        return
                failed = 0
            except (ModelConnectionError, ModelRateLimitedError, ModelStatusError) as error:
                failed += 1
                status = error.status_code or 500
                if failed >= _FAILED_POLLS_AT_MOST or (status < 500 and status not in (408, 429)):
                    sent.error = error
                    return
            await trio.sleep(self._poll_seconds)

    @asynccontextmanager
    @enable_ki_protection
    async def _client(self) -> AsyncGenerator[Any]:
        failures = self._model._failures
        clients = self._model._open_clients()
        assert failures is not None
        with failures.translated():
            async with clients.lease() as client:
                yield client


def _new_token() -> str:
    """Return a name for a group of requests, with the moment it was made."""
    return f"{int(time.time()):x}-{secrets.token_hex(8)}"


def _name(body: dict[str, Any]) -> bytes:
    """Return a name for a request that the next session gives it, too."""
    run = current_run_or_none()
    item = None if run is None else run._item_key()
    content = json.dumps([item or "", body], sort_keys=True)
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@asynccontextmanager
async def open_batched(
    model: SdkModel,
    *,
    journal: EffectStore | None = None,
    within: float = WITHIN_SECONDS,
    size: int = SIZE,
    poll_seconds: float = POLL_SECONDS,
    price_share: float = PRICE_SHARE,
) -> AsyncGenerator[BatchedModel]:
    """Open a model that asks ``model`` through its provider's batch API, for agents and fan-outs::

        async with (
            OpenAIModel("gpt-5-mini") as model,
            open_journal("night.db") as journal,
            open_batched(model, journal=journal) as batched,
        ):
            agent = Agent("label", model=batched)
            await fan_out(agent, prompts, limit=5_000, journal=journal, key=str)

    The requests of all runs that wait are sent together, so give the fan-out a ``limit`` as large
    as a batch shall be. Each turn of an agent is a request, and may take a day.

    A request is sent once, whatever happens: the next session with the same journal finds out which
    batch it is in, and waits for that. It is told from others by the item that asks and by what it
    says; a request of a run in no item, only by what it says and by its number among equal ones.

    Args:
      model: An `OpenAIModel` or `AnthropicModel`, open. Its limiter isn't asked: providers limit
        batches apart.
      journal: Where it is kept which request is in which batch. None: nowhere, so that a session
        that ends forgets its batches.
      within: Seconds in which requests gather, from the first one on.
      size: How many requests a batch has at most.
      poll_seconds: Seconds between two looks at a batch.
      price_share: The part of the model's price that the provider takes for a batch.

    Raises:
      TypeError, ValueError: if an argument isn't what it should be.

    Checkpoint: on exit.

    Cancellation: what was sent stays at the provider, for the next session.
    """
    refuse_outside_trio("open_batched() was entered")
    if not isinstance(model, SdkModel):
        raise TypeError(
            f"open_batched() takes an OpenAIModel or AnthropicModel, not {model!r}; others have no "
            "batches"
        )
    check_count("open_batched(size=...)", size, advice=f"the default is {SIZE:,}")
    for name, value in (("within", within), ("poll_seconds", poll_seconds)):
        check_seconds(f"open_batched({name}=...)", value, advice="0 for no wait")
    if not 0 <= price_share <= 1:
        raise ValueError(
            f"open_batched(price_share=...) takes a share from 0 to 1, not {price_share}"
        )
    price = model.price
    if price is not None:
        parts: dict[str, Any] = attrs.asdict(price)
        price = Price(**{name: usd and usd * price_share for name, usd in parts.items()})
    batched = BatchedModel(model, price=price, within=within, size=size, poll_seconds=poll_seconds)
    async with open_once(journal, on_unknown=batched.find, on_error="unknown") as once:
        batched._once = once
        try:
            yield batched
        finally:
            batched._once = None
