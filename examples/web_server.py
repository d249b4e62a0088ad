"""Serve agents over HTTP: starlette on hypercorn under trio, one run per request.

Shows the middleware that makes each request a run below the server's, so that a client
who goes away cancels it; a limiter that all requests share; server-sent events; and a
graceful stop. The clients are in here as well, and the model is a function, so that this
works offline.

Run:     python examples/web_server.py     (needs starlette, hypercorn[trio] and httpx)
Prints:  6 answers, at most 2 at once at the model; one of them was made in server/POST /ask
         events: TurnStarted, TextDelta, UsageReported, RunEnded
         server/GET /events: cancelled, because the client has gone
         asked to stop: the answer under way was sent (200), new clients are refused
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import harness
from harness.agents import Agent
from harness.limits import Limiter
from harness.models import FunctionModel, ModelRequest

at_the_model: Counter[str] = Counter()


async def think(request: ModelRequest) -> str:
    """Be the model: it takes a while, and never answers one question."""
    at_the_model["now"] += 1
    at_the_model["most"] = max(at_the_model["most"], at_the_model["now"])
    try:
        question = request.messages[-1].content
        await trio.sleep(60 if "life" in question else 0.05)
        return f"{question} Yes, says {harness.current_run().parent}."
    finally:
        at_the_model["now"] -= 1


# One agent and one limiter for all requests: neither holds anything of a request.
agent = Agent("desk", model=FunctionModel(think, limiter=Limiter("model", concurrent=2)))


async def ask(request: Request) -> JSONResponse:
    reply = await agent.run((await request.json())["question"])
    return JSONResponse({"answer": reply.output, "run": harness.current_run().path})


async def events(request: Request) -> ASGIApp:
    """Tell what happens in the agent's run while it happens, as server-sent events.

    The response is a function, not a generator: the stream is a block of tasks, and a block must
    not be held across a `yield`.
    """
    stream = agent.stream(request.query_params["question"])

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with stream:
            async for event in stream:
                text = f"event: {type(event.payload).__name__}\ndata: {event.payload}\n\n"
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return respond


class RunPerRequest:
    """Make each request a run below the server's, and cancel it when the client goes away."""

    def __init__(self, app: ASGIApp, server: harness.Run) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # The start and the end of the server.
            await self._app(scope, receive, send)
            return
        to_client, from_app = trio.open_memory_channel[tuple[Message, trio.Event]](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._in_a_run, scope, receive, to_client)
            # Not in the run: what the server starts when it sends, such as timers, outlives it.
            async for message, is_sent in from_app:
                await send(message)
                is_sent.set()

    async def _in_a_run(
        self,
        scope: Scope,
        receive: Receive,
        to_client: trio.MemorySendChannel[tuple[Message, trio.Event]],
    ) -> None:
        to_app, from_client = trio.open_memory_channel[Message](1)
        is_whole = False

        async def listen(run: harness.Run) -> None:
            while True:
                message = await receive()
                # The server says the same when all was sent, and then there may be work to do.
                if message["type"] == "http.disconnect" and not is_whole:
                    run.cancel("the client has gone")
                await to_app.send(message)

        async def tell(message: Message) -> None:
            nonlocal is_whole
            is_whole = message["type"] == "http.response.body" and not message.get("more_body")
            is_sent = trio.Event()
            await to_client.send((message, is_sent))
            await is_sent.wait()

        name = f"{scope['method']} {scope['path']}"
        async with to_client, harness.open_run(name, parent=self._server) as run:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, run)
                await self._app(scope, from_client.receive, tell)
                nursery.cancel_scope.cancel()
        if run.status == "cancelled":
            print(f"{run.path}: cancelled, because {run.cancel_reason}")


def make_app(server: harness.Run) -> Any:  # The two have types of their own for the same thing.
    routes = [Route("/ask", ask, methods=["POST"]), Route("/events", events)]
    return RunPerRequest(Starlette(routes=routes), server)


async def be_clients(client: httpx.AsyncClient) -> None:
    answers = []

    async def question(number: int) -> None:
        answers.append((await client.post("/ask", json={"question": f"Is {number} odd?"})).json())

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(question, number)
    print(
        f"{len(answers)} answers, at most {at_the_model['most']} at once at the model; "
        f"one of them was made in {answers[0]['run']}"
    )
    seen = []
    async with client.stream("GET", "/events", params={"question": "Is 7 odd?"}) as response:
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                seen.append(line.removeprefix("event: "))
    print("events:", ", ".join(dict.fromkeys(seen)))
    async with client.stream("GET", "/events", params={"question": "What is life?"}):
        pass  # The head is here, the answer won't come: the connection is closed.


async def main() -> None:
    config = Config()
    config.bind = ["127.0.0.1:0"]  # Any port that is free.
    config.graceful_timeout = 5.0
    config.loglevel = "WARNING"
    asked_to_stop = trio.Event()  # In earnest: trio.open_signal_receiver(signal.SIGTERM).
    async with harness.open_run("server") as server, trio.open_nursery() as nursery:
        serving = partial(serve, make_app(server), config, shutdown_trigger=asked_to_stop.wait)
        address = (await nursery.start(serving))[0]
        async with httpx.AsyncClient(base_url=address) as client:
            await be_clients(client)
            await until(lambda: not server.children)  # The one who has gone is noticed.
            async with trio.open_nursery() as last:
                last.start_soon(ask_before_the_end, client)
                await until(lambda: at_the_model["now"] == 1)
                server.stop("the server is going down")  # Agents end after their turn.
                asked_to_stop.set()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 (it plays somebody who watches from outside)
        await trio.sleep(0.01)


async def ask_before_the_end(client: httpx.AsyncClient) -> None:
    response = await client.post("/ask", json={"question": "Is it over?"})
    try:
        await client.post("/ask", json={"question": "Is it too late?"})
    except httpx.ConnectError:
        print(
            f"asked to stop: the answer under way was sent ({response.status_code}), "
            "new clients are refused"
        )


if __name__ == "__main__":
    trio.run(main)
