"""Speak the providers' batch APIs: send many requests at once, and fetch the answers later.

Each function makes one step, over a client of the provider's library. What they send and read
besides is a dialect's (`harness.models._dialect`): a request in a batch is what it is alone.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

import attrs

from harness.models._anthropic_messages import STATUS_OF_ERRORS
from harness.models._dialect import inner, text

MOST_PAGES = 100
"""How many pages of batches are looked through for one that may have been sent."""

_OPENAI_ENDED = ("completed", "expired", "cancelled", "failed")
_TOKEN = "harness"  # The name of the note that a batch of OpenAI's has.


@attrs.frozen
class BatchState:
    """What is known about a batch."""

    id: str
    created_at: float
    """In seconds since the epoch."""
    has_ended: bool
    raw: Any


@attrs.frozen
class BatchEntry:
    """What became of one request: the body of an answer, or an error."""

    body: Any = None
    error: Any = None
    status: int | None = None


class BatchApi(Protocol):
    """One provider's batches."""

    async def send(self, client: Any, token: str, requests: Mapping[str, dict[str, Any]]) -> str:
        """Send requests, by the id of each; return the batch's id."""
        ...

    async def state(self, client: Any, batch_id: str) -> BatchState:
        """Return what is known about a batch."""
        ...

    async def entries(self, client: Any, state: BatchState) -> dict[str, BatchEntry]:
        """Return what became of each request of a batch that has ended."""
        ...

    def listed(self, client: Any, token: str) -> AsyncGenerator[BatchState]:
        """Yield the batches that may have been sent under ``token``, newest first."""
        ...

    async def ids(self, client: Any, state: BatchState) -> set[str] | None:
        """Return the ids of a batch's requests; ``None`` if that can't be known before its end."""
        ...


class OpenAIBatches:
    """OpenAI's: a file of requests goes in, a file of answers and one of errors come out.

    Args:
      endpoint: Where each request goes.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    async def send(self, client: Any, token: str, requests: Mapping[str, dict[str, Any]]) -> str:
        lines = (
            {"custom_id": name, "method": "POST", "url": self._endpoint, "body": body}
            for name, body in requests.items()
        )
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        file = await client.files.create(file=(f"{token}.jsonl", content), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint=self._endpoint,
            completion_window="24h",
            metadata={_TOKEN: token},
        )
        return str(batch.id)

    async def state(self, client: Any, batch_id: str) -> BatchState:
        return self._read(await client.batches.retrieve(batch_id))

    def _read(self, batch: Any) -> BatchState:
        return BatchState(batch.id, batch.created_at, batch.status in _OPENAI_ENDED, batch)

    async def entries(self, client: Any, state: BatchState) -> dict[str, BatchEntry]:
        batch = state.raw
        found: dict[str, BatchEntry] = {}
        for file_id in (batch.error_file_id, batch.output_file_id):
            for line in await self._lines(client, file_id):
                found[text(line, "custom_id")] = _openai_entry(line)
        if batch.status == "failed":  # The provider read none of it.
            data = batch.to_dict().get("errors") or {"message": "the batch failed"}
            first = next(iter(data.get("data") or []), data)
            for name in await self.ids(client, state):
                found[name] = BatchEntry(error={"error": first}, status=400)
        return found

    async def _lines(self, client: Any, file_id: str | None) -> list[Any]:
        if not file_id:
            return []
        content = (await client.files.content(file_id)).content
        return [json.loads(line) for line in content.splitlines() if line.strip()]

    async def listed(self, client: Any, token: str) -> AsyncGenerator[BatchState]:
        page = await client.batches.list(limit=100)
        for _ in range(MOST_PAGES):
            for batch in page.data:
                if (batch.metadata or {}).get(_TOKEN) == token:
                    yield self._read(batch)
            if not page.has_next_page():
                return
            page = await page.get_next_page()

    async def ids(self, client: Any, state: BatchState) -> set[str]:
        lines = await self._lines(client, state.raw.input_file_id)
        return {text(line, "custom_id") for line in lines}


def _openai_entry(line: Any) -> BatchEntry:
    answer = inner(line, "response")
    if answer is None:
        return BatchEntry(error={"error": inner(line, "error")})
    status = inner(answer, "status_code")
    body = inner(answer, "body")
    if status == 200:
        return BatchEntry(body)
    return BatchEntry(error=body, status=status if isinstance(status, int) else None)


class AnthropicBatches:
    """Anthropic's: requests go in as they are. A batch has no note, so its answers tell whose."""

    async def send(self, client: Any, token: str, requests: Mapping[str, dict[str, Any]]) -> str:
        batch = await client.messages.batches.create(
            requests=[{"custom_id": name, "params": body} for name, body in requests.items()]
        )
        return str(batch.id)

    async def state(self, client: Any, batch_id: str) -> BatchState:
        return self._read(await client.messages.batches.retrieve(batch_id))

    def _read(self, batch: Any) -> BatchState:
        created: datetime = batch.created_at
        has_ended = batch.processing_status == "ended"
        return BatchState(batch.id, created.timestamp(), has_ended, batch)

    async def entries(self, client: Any, state: BatchState) -> dict[str, BatchEntry]:
        raw = await client.messages.batches.with_raw_response.results(state.id)
        content = await raw.http_response.aread()
        lines = [json.loads(line) for line in content.splitlines() if line.strip()]
        return {text(line, "custom_id"): _anthropic_entry(inner(line, "result")) for line in lines}

    async def listed(self, client: Any, token: str) -> AsyncGenerator[BatchState]:
        page = await client.messages.batches.list(limit=100)
        for _ in range(MOST_PAGES):
            for batch in page.data:
                yield self._read(batch)
            if not page.has_next_page():
                return
            page = await page.get_next_page()

    async def ids(self, client: Any, state: BatchState) -> set[str] | None:
        return set(await self.entries(client, state)) if state.has_ended else None


def _anthropic_entry(result: Any) -> BatchEntry:
    kind = inner(result, "type")
    if kind == "succeeded":
        return BatchEntry(inner(result, "message"))
    error = inner(result, "error")
    if error is None:
        return BatchEntry(error={"error": {"message": f"the request was {kind} in its batch"}})
    return BatchEntry(error=error, status=STATUS_OF_ERRORS.get(text(inner(error, "error"), "type")))


def size_bytes(requests: Iterable[dict[str, Any]]) -> int:
    """Return about how many bytes requests have in a batch."""
    return sum(len(json.dumps(body)) + 200 for body in requests)
