"""Read subscriptions in tests."""

from __future__ import annotations

from typing import Any

import harness
import harness.runs


def payloads(events: list[harness.Event]) -> list[Any]:
    return [event.payload for event in events]


async def read_all(subscription: harness.runs.Subscription, into: list[harness.Event]) -> None:
    async for event in subscription:
        into.append(event)
