"""Take requests in batches, as both providers do: files in and out, or a list and its results.

A batch is answered when it arrives, each request by the test's answer function, and says so after
the time that batches take. Nothing of it counts against the limits.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from harness.testing.provider._body import read_body
from harness.testing.provider._dialect import JSONObject, UnreadableRequest, compact_json

_ROUTE = re.compile(
    r"(?:/v1){0,2}/(?P<kind>files|batches|messages/batches)(?:/(?P<name>[\w-]+))?"
    r"(?:/(?P<part>content|results))?(?:\?(?P<query>.*))?"
)

AnswerOne = Callable[[str, JSONObject], Awaitable[tuple[int, JSONObject]]]
"""Answers one request of a batch, sent to a path: the status and the body."""


@attrs.define(eq=False, kw_only=True)
class _Batch:
    """One batch, with what it will say when it has ended."""

    id: str
    created_at: float
    ends_at: float
    asked: JSONObject
    results: list[tuple[str, int, JSONObject]]


@attrs.define(eq=False, kw_only=True)
class Batches:
    """All batches and files of one provider."""

    seconds: float
    """How long a batch takes."""
    sent: int = 0
    """Batches that came in."""
    requests: int = 0
    """Requests in them."""
    _files: dict[str, bytes] = attrs.field(factory=dict[str, bytes], init=False)
    _batches: dict[str, _Batch] = attrs.field(factory=dict[str, _Batch], init=False)

    @staticmethod
    def takes(path: str) -> bool:
        """Return whether a path is one of a batch API."""
        return _ROUTE.fullmatch(path) is not None

    async def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes,
        *,
        now: float,
        answer: AnswerOne,
    ) -> bytes:
        """Return the body of the reply.

        Raises:
          UnreadableRequest: if the request makes no sense.
        """
        found = _ROUTE.fullmatch(path)
        assert found is not None
        kind, name, part = found["kind"], found["name"], found["part"]
        if kind == "files":
            if method == "POST":
                return compact_json(self._take_file(headers, content, now))
            if part == "content" and name in self._files:
                return self._files[name]
        elif method == "POST" and name is None:
            return compact_json(await self._take_batch(kind, content, now, headers, answer))
        elif method == "GET" and name is None:
            newest_first = reversed(self._batches.values())
            shown = [self._shown(batch, now, headers) for batch in newest_first]
            return compact_json({"object": "list", "data": shown, "has_more": False})
        elif method == "GET" and name in self._batches:
            batch = self._batches[name]
            if part == "results":
                return b"".join(_anthropic_line(*result) for result in batch.results)
            return compact_json(self._shown(batch, now, headers))
        raise UnreadableRequest(f"there is no {path[:80]!r} here", status=404)

    def _take_file(self, headers: Mapping[str, str], content: bytes, now: float) -> JSONObject:
        boundary = re.search(r'boundary="?([^";]+)', headers.get("content-type", ""))
        parts = content.split(b"--" + boundary[1].encode()) if boundary else []
        for part in parts:
            head, _, body = part.partition(b"\r\n\r\n")
            if b'name="file"' in head:
                file_id = f"file-{len(self._files) + 1:024d}"
                self._files[file_id] = body.removesuffix(b"\r\n")
                return {
                    "id": file_id,
                    "object": "file",
                    "bytes": len(body) - 2,
                    "created_at": int(now),
                    "filename": "batch.jsonl",
                    "purpose": "batch",
                    "status": "processed",
                }
        raise UnreadableRequest("the form has no file", parameter="file")

    async def _take_batch(
        self, kind: str, content: bytes, now: float, headers: Mapping[str, str], answer: AnswerOne
    ) -> JSONObject:
        asked = read_body(content)
        if kind == "batches":
            file = self._files.get(str(asked.get("input_file_id")))
            if file is None:
                raise UnreadableRequest("there is no such file", parameter="input_file_id")
            lines = [read_body(line) for line in file.splitlines() if line.strip()]
            requests = [(line["custom_id"], line["url"], line["body"]) for line in lines]
        else:
            requests = [
                (one["custom_id"], "/v1/messages", one["params"]) for one in asked["requests"]
            ]
        if len({name for name, _, _ in requests}) < len(requests) or not requests:
            raise UnreadableRequest("each request needs a custom_id of its own")
        self.sent += 1
        self.requests += len(requests)
        prefix = "batch" if kind == "batches" else "msgbatch"
        batch = _Batch(
            id=f"{prefix}_{self.sent:024d}",
            created_at=now,
            ends_at=now + self.seconds,
            asked=asked,
            results=[(name, *await answer(path, body)) for name, path, body in requests],
        )
        self._batches[batch.id] = batch
        return self._shown(batch, now, headers)

    def _shown(self, batch: _Batch, now: float, headers: Mapping[str, str]) -> JSONObject:
        has_ended = now >= batch.ends_at
        good = sum(status == 200 for _, status, _ in batch.results)
        bad = len(batch.results) - good
        if batch.id.startswith("msgbatch"):
            host = headers.get("host", "localhost")
            return {
                "id": batch.id,
                "type": "message_batch",
                "processing_status": "ended" if has_ended else "in_progress",
                "request_counts": {
                    "processing": 0 if has_ended else good + bad,
                    "succeeded": good if has_ended else 0,
                    "errored": bad if has_ended else 0,
                    "canceled": 0,
                    "expired": 0,
                },
                "created_at": _iso(batch.created_at),
                "expires_at": _iso(batch.created_at + 86_400),
                "ended_at": _iso(batch.ends_at) if has_ended else None,
                "archived_at": None,
                "cancel_initiated_at": None,
                "results_url": f"http://{host}/v1/messages/batches/{batch.id}/results"
                if has_ended
                else None,
            }
        files: dict[str, str | None] = {"output_file_id": None, "error_file_id": None}
        if has_ended:
            for name, is_good in (("output_file_id", True), ("error_file_id", False)):
                lines = [
                    _openai_line(*result)
                    for result in batch.results
                    if (result[1] == 200) is is_good
                ]
                if lines:
                    file_id = f"{batch.id}-{name.partition('_')[0]}"
                    self._files[file_id] = b"".join(lines)
                    files[name] = file_id
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.asked.get("endpoint"),
            "errors": None,
            "input_file_id": batch.asked.get("input_file_id"),
            "completion_window": "24h",
            "status": "completed" if has_ended else "in_progress",
            **files,
            "created_at": int(batch.created_at),
            "completed_at": int(batch.ends_at) if has_ended else None,
            "request_counts": {
                "total": good + bad,
                "completed": good if has_ended else 0,
                "failed": bad if has_ended else 0,
            },
            "metadata": batch.asked.get("metadata"),
        }


def _iso(epoch_seconds: float) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat()


def _openai_line(name: str, status: int, body: JSONObject) -> bytes:
    answer = {"status_code": status, "request_id": f"req_{name}", "body": body}
    line = {"id": f"batch_req_{name}", "custom_id": name, "response": answer, "error": None}
    return compact_json(line) + b"\n"


def _anthropic_line(name: str, status: int, body: JSONObject) -> bytes:
    result: dict[str, Any] = {"type": "succeeded", "message": body}
    if status != 200:
        result = {"type": "errored", "error": body}
    return compact_json({"custom_id": name, "result": result}) + b"\n"
