"""To be looked at costs a program next to nothing."""

from __future__ import annotations

import http.client
import os
import statistics
import threading
import time
from contextlib import AsyncExitStack

import pytest
import trio

import harness
from harness.observe import open_dashboard, open_socket
from harness.observe._socket import Connection

ITEMS = 10_000
ROUNDS = 5
ROUNDS_AT_MOST = 25
"""More are run as long as it seems too much: a busy machine blurs the first few."""
AT_MOST = 1.03


async def seconds_of_processor() -> float:
    """Run a fan-out, and return how much of a processor trio's thread has used."""

    async def work(item: int) -> None:
        await trio.sleep(0.01)

    began = time.thread_time()
    await harness.fan_out(work, range(ITEMS), limit=100)
    return time.thread_time() - began


def look_as_top(over: threading.Event, looks: list[int]) -> None:
    with Connection(os.getpid()) as connection:
        while not over.wait(1.0):
            looks.append(connection.picture()["number"])


def look_as_page(address: str, looks: list[int], begun: threading.Event) -> None:
    host, _, token = address.removeprefix("http://").partition("/#")
    connection = http.client.HTTPConnection(host)
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {token}"})
    with connection.getresponse() as answer:
        try:
            while line := answer.readline():
                looks.append(len(line))
                begun.set()
        except http.client.IncompleteRead:
            pass  # The server has ended.
    connection.close()


def ratio(alone: list[float], looked_at: list[float]) -> float:
    """Compare the least of all, and each round: what else the machine does only ever adds."""
    ratios = [one / other for one, other in zip(looked_at, alone, strict=True)]
    return min(min(looked_at) / min(alone), statistics.median(ratios))


@pytest.mark.speed
async def test_top_and_the_page_slow_a_program_by_less_than_3_percent() -> None:
    alone: list[float] = []
    looked_at: list[float] = []
    looks: list[int] = []
    await seconds_of_processor()
    while len(alone) < ROUNDS or (
        ratio(alone, looked_at) >= AT_MOST and len(alone) < ROUNDS_AT_MOST
    ):
        looks.clear()
        alone.append(await seconds_of_processor())
        begun, over = threading.Event(), threading.Event()
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            await stack.enter_async_context(open_socket())
            address = await stack.enter_async_context(open_dashboard())
            nursery.start_soon(trio.to_thread.run_sync, look_as_top, over, looks)
            nursery.start_soon(trio.to_thread.run_sync, look_as_page, address, looks, begun)
            # What it takes to begin doesn't depend on the program's length.
            await trio.to_thread.run_sync(begun.wait)
            looked_at.append(await seconds_of_processor())
            over.set()
        assert len(looks) > 1
    assert ratio(alone, looked_at) < AT_MOST, (alone, looked_at)
