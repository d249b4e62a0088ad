"""A receiver of effects, for the tests of what happens once."""

from __future__ import annotations

import trio


class Bank:
    """A receiver of payments: what it was asked, and what it did."""

    def __init__(self, *, honours_keys: bool = True, seconds: float = 1.0) -> None:
        self.asked: list[str] = []
        self.paid: list[str] = []
        self.honours_keys = honours_keys
        self.seconds = seconds
        self.fails = False

    async def pay(self, idempotency_key: str) -> str:
        self.asked.append(idempotency_key)
        await trio.sleep(self.seconds)
        if self.fails:
            raise OSError("bank is closed")
        if not (self.honours_keys and idempotency_key in self.paid):
            self.paid.append(idempotency_key)
        await trio.sleep(self.seconds)
        return f"receipt {idempotency_key}"
