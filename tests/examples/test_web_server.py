"""The example of a server: starlette on hypercorn, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import harness
import web_server
from tests.examples.headers import promised_output

pytestmark = pytest.mark.real_clock


@pytest.mark.slow
async def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    web_server.at_the_model.clear()
    await web_server.main()
    assert capsys.readouterr().out.splitlines() == promised_output(web_server)


@asynccontextmanager
async def served(*routes: Route) -> AsyncIterator[tuple[httpx.AsyncClient, harness.Run]]:
    """Serve an app under the example's middleware, and give a client of it."""
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.loglevel = "CRITICAL"
    asked_to_stop = trio.Event()
    async with harness.open_run("server") as server, trio.open_nursery() as nursery:
        app: Any = web_server.RunPerRequest(Starlette(routes=list(routes)), server)
        address = (
            await nursery.start(partial(serve, app, config, shutdown_trigger=asked_to_stop.wait))
        )[0]
        async with httpx.AsyncClient(base_url=address) as client:
            yield client, server
        asked_to_stop.set()


async def test_a_client_that_goes_away_cancels_the_run_of_a_request_that_reads_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = trio.Event()

    async def slow(request: Request) -> PlainTextResponse:
        begun.set()
        await trio.sleep(60)
        raise AssertionError("it was not cancelled")

    async with served(Route("/slow", slow)) as (client, server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.get, "/slow")
            await begun.wait()
            (run,) = server.children
            nursery.cancel_scope.cancel()
        with trio.fail_after(10):
            await web_server.until(lambda: not server.children)
    assert run.status == "cancelled"
    assert run.cancel_reason == "the client has gone"
    assert capsys.readouterr().out == "server/GET /slow: cancelled, because the client has gone\n"


async def test_a_client_that_has_its_answer_may_go_while_work_goes_on() -> None:
    """The server tells of the end of a response in the same way as of a client that goes away."""
    ended = []

    async def rest() -> None:
        await trio.sleep(0.1)
        ended.append(harness.current_run())

    async def quick(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await request.body(), background=BackgroundTask(rest))

    async with served(Route("/quick", quick, methods=["POST"])) as (client, server):
        assert (
            await client.post("/quick", content="a body of its own")
        ).text == "a body of its own"
        with trio.fail_after(10):
            await web_server.until(lambda: not server.children)
    assert [run.status for run in ended] == ["ok"]


async def test_a_handler_that_raises_fails_its_own_run_alone() -> None:
    runs = []

    async def fails(request: Request) -> PlainTextResponse:
        runs.append(harness.current_run())
        raise LookupError("no such ticket")

    async with served(Route("/fails", fails)) as (client, server):
        assert (await client.get("/fails")).status_code == 500
        assert server.status == "running"
        assert (await client.get("/fails")).status_code == 500
    assert [run.status for run in runs] == ["failed", "failed"]
    assert server.status == "ok"
