"""Serve a chat: a page, a web socket per visitor, and a conversation for each of them.

A visitor's socket is a run below the server's, for as long as it is open. The
conversation lives in that run, so nothing has to be looked up by a visitor's name, and
nothing of one visitor can reach another. Who closes the page cancels that run alone,
even in the middle of an answer. The model is a function, so that this works offline.

Run:     python examples/chat_server.py            (needs starlette, hypercorn[trio], httpx)
Or:      python examples/chat_server.py 8000       and open http://127.0.0.1:8000
Prints:  the page: <form><input autofocus placeholder="Say something"></form><ol></ol>
         3 from you: I am Ada., I have a question., Who is Ada?
         3 from you: I am Bob., I have a question., Who is Bob?
         3 from you: I am Eve., I have a question., Who is Eve?
         1 of the visitors: 0 answers, cancelled: the page was closed
         3 of the visitors: 3 answers, cancelled: the page was closed
"""

import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, TextMessage
from wsproto.events import Request as Upgrade

import harness
from harness.agents import Agent, Conversation
from harness.limits import Limiter
from harness.models import FunctionModel, ModelRequest

PAGE = """<!doctype html><meta charset="utf-8"><title>Chat</title>
<form><input autofocus placeholder="Say something"></form><ol></ol>
<script>
  const socket = new WebSocket(`ws://${location.host}/chat`)
  const input = document.querySelector("input")
  const show = (who, text) => {
    const line = document.createElement("li")
    line.textContent = `${who}: ${text}`
    document.querySelector("ol").append(line)
  }
  socket.onmessage = (event) => show("desk", event.data)
  document.querySelector("form").onsubmit = (event) => {
    event.preventDefault()
    socket.send(input.value)
    show("you", input.value)
    input.value = ""
  }
</script>
"""


async def think(request: ModelRequest) -> str:
    """Be the model: repeat what this visitor has said so far; one question takes for ever."""
    said = [str(message.content) for message in request.messages if message.role == "user"]
    await trio.sleep(3600 if said[-1] == "What is life?" else 0.05)
    return f"{len(said)} from you: {', '.join(said)}"


async def page(request: Request) -> HTMLResponse:
    return HTMLResponse(PAGE)


class Chat:
    """Talks with whoever opens a socket, each in a run below ``server``."""

    def __init__(self, server: harness.Run) -> None:
        self._server = server
        self._visitors = 0
        # One agent and one limiter for all visitors: neither holds anything of a conversation.
        self._agent = Agent("desk", model=FunctionModel(think, limiter=Limiter("m", concurrent=8)))
        self.gone: Counter[str] = Counter()
        """How those who have gone ended."""

    async def talk(self, socket: WebSocket) -> None:
        self._visitors += 1
        await socket.accept()
        async with harness.open_run(f"visitor-{self._visitors}", parent=self._server) as run:
            async with trio.open_nursery() as nursery:
                to_agent, said = trio.open_memory_channel[str](100)
                nursery.start_soon(listen, socket, to_agent, run)
                conversation = Conversation()
                async for text in said:
                    reply = await self._agent.run(text, conversation=conversation)
                    await socket.send_text(reply.output)
        self.gone[f"{len(conversation) // 2} answers, {run.status}: {run.cancel_reason}"] += 1


async def listen(
    socket: WebSocket, to_agent: trio.MemorySendChannel[str], run: harness.Run
) -> None:
    """Pass on what a visitor says, also while an answer to something else is on its way."""
    try:
        while True:
            await to_agent.send(await socket.receive_text())
    except WebSocketDisconnect:
        run.cancel("the page was closed")


# The visitors -----------------------------------------------------------------------------------


class Visitor:
    """A browser, as far as the server can tell."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._socket = WSConnection(ConnectionType.CLIENT)

    @classmethod
    @asynccontextmanager
    async def at(cls, address: str) -> AsyncIterator["Visitor"]:
        """Have the page open for as long as the block lasts."""
        host, port = address.removeprefix("http://").split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            visitor = cls(stream)
            await visitor._send(Upgrade(host=host, target="/chat"))
            assert isinstance(await visitor._event(), AcceptConnection)
            yield visitor
            await visitor._send(CloseConnection(code=1000))

    async def say(self, text: str) -> None:
        await self._send(TextMessage(data=text))

    async def hear(self) -> str:
        answer = await self._event()
        assert isinstance(answer, TextMessage)
        return answer.data

    async def _send(self, event: Event) -> None:
        await self._stream.send_all(self._socket.send(event))

    async def _event(self) -> Event:
        while (event := next(self._socket.events(), None)) is None:
            self._socket.receive_data(await self._stream.receive_some())
        return event


async def chat_a_little(address: str, name: str) -> str:
    """Say three things, and return the last answer."""
    async with Visitor.at(address) as visitor:
        for thing in (f"I am {name}.", "I have a question.", f"Who is {name}?"):
            await visitor.say(thing)
            answer = await visitor.hear()
    return answer


async def leave_early(address: str) -> None:
    """Ask what takes for ever, and close the page."""
    async with Visitor.at(address) as visitor:
        await visitor.say("What is life?")


async def be_visitors(address: str) -> None:
    async with httpx.AsyncClient(base_url=address) as client:
        print("the page:", (await client.get("/")).text.splitlines()[1])
    chats = await harness.fan_out(partial(chat_a_little, address), ["Ada", "Bob", "Eve"])
    print(*chats.values(), sep="\n")
    await leave_early(address)


async def main(port: int | None = None) -> None:
    """Serve at a port until Ctrl-C, or be the visitors as well."""
    config = Config()
    config.bind = [f"127.0.0.1:{port or 0}"]  # 0: any that is free.
    config.loglevel = "WARNING"
    asked_to_stop = trio.Event()
    async with harness.open_run("server") as server, trio.open_nursery() as nursery:
        chat = Chat(server)
        # Any: hypercorn and starlette have types of their own for the same thing.
        app: Any = Starlette(routes=[Route("/", page), WebSocketRoute("/chat", chat.talk)])
        start = partial(serve, app, config, shutdown_trigger=asked_to_stop.wait)
        address = (await nursery.start(start))[0]
        if port is not None:
            print(f"open {address}; stop with Ctrl-C")
            await trio.sleep_forever()
        await be_visitors(address)
        while server.children:  # noqa: ASYNC110 (the visitors have closed their pages)
            await trio.sleep(0.01)
        asked_to_stop.set()
    for ending, visitors in sorted(chat.gone.items()):
        print(f"{visitors} of the visitors: {ending}")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if sys.argv[1:] else None)
