"""A disk for effects that survives its sessions, and can die at any moment."""

from __future__ import annotations

import json
from typing import Any

import trio

from harness.shared import RecordedEffect


class Crash(BaseException):
    """The process is gone: no clean-up of ours sees it as an error."""


class Disk:
    """An `EffectStore` for tests: durable, asynchronous, and with a plan for its faults.

    Each of its steps (before and after each write) is numbered; at number ``dies_at`` it raises
    `Crash`. Values take the way over JSON, as a journal's do.
    """

    def __init__(self) -> None:
        self.effects: dict[str, dict[str, Any]] = {}
        self.steps = 0
        self.dies_at: int | None = None
        self.full = False
        self.log: list[str] = []

    async def step(self) -> None:
        self.steps += 1
        if self.steps == self.dies_at:
            raise Crash
        await trio.lowlevel.checkpoint()

    async def intend(self, key: Any, idempotency_key: str) -> RecordedEffect:
        await self.step()
        name = json.dumps(key)
        effect = self.effects.get(name)
        if effect is None:
            known = RecordedEffect(state="new", idempotency_key=idempotency_key)
        else:
            known = RecordedEffect(
                state=effect["state"],
                idempotency_key=effect["idempotency_key"],
                value=json.loads(effect["value"]),
            )
        if known.state in ("new", "failed"):
            self.write(name, "unknown", known.idempotency_key)
        await self.step()
        return known

    async def complete(self, key: Any, value: Any) -> Any:
        await self.step()
        name = json.dumps(key)
        self.write(name, "done", self.effects[name]["idempotency_key"], json.dumps(value))
        await self.step()
        return json.loads(json.dumps(value))

    async def fail(self, key: Any, error: Exception) -> None:
        await self.step()
        name = json.dumps(key)
        self.write(name, "failed", self.effects[name]["idempotency_key"])
        await self.step()

    def write(self, name: str, state: str, idempotency_key: str, value: str = "null") -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.effects[name] = {"state": state, "idempotency_key": idempotency_key, "value": value}
        self.log.append(state)
