"""Show a running program in a browser on the same machine, and nowhere else.

Any page that the user has open can send requests to a port of this machine, and by DNS rebinding
even read the answers. So nothing is answered unless `Guard` lets it through:

- the Host is this server's own address, so a name that was made to point here is refused;
- the Origin, where a browser sends one, is this server's own, and is there if something changes;
- whatever shows or changes something has the token in its Authorization header. Browsers never
  send that of their own accord. The token is in the fragment of the address that the user opens,
  which no browser sends, and no answer contains it.

The page itself says nothing about the program; it is the same for everybody. It gets pictures as
server-sent events, which it reads with fetch, since EventSource can't send a token. Text is only
ever inserted as text, and the content policy allows nothing but this server's own files.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    MutableMapping,
)
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from harness._events import happened
from harness._outside_trio import refuse_outside_trio
from harness.limits import Limiter
from harness.observe._assets import asset
from harness.observe._beside import beside
from harness.observe._live import Live, pictured

logger = logging.getLogger("harness.observe")

_HOST = "127.0.0.1"
_TOKEN_BYTES = 32
_CLIENTS_AT_MOST = 8

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_FILES = {
    "/": ("dashboard.html", "text/html"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
    "/rows.js": ("rows.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
"""What is the same for everybody, so that it needs no token."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def open_dashboard(
    *, port: int = 0, allow_cancel: bool = False, limiters: Collection[Limiter] = ()
) -> AbstractAsyncContextManager[str]:
    """Show this program inside the block, on a page for browsers of this machine::

        async with harness.observe.open_dashboard(limiters=[limiter]) as address:
            print(address)
            await harness.fan_out(classify, tickets)

    It shows every run of the program, and the fan-outs that begin in the block. Only who has the
    address can look, as it ends with a secret. The body's error comes out unchanged, not in a
    group.

    Args:
      port: Where it is served on 127.0.0.1; 0 for any port that is free.
      allow_cancel: Whether runs can be cancelled and stopped from the page.
      limiters: Whose limits are shown.

    Returns:
      An async context manager, which gives the address to open.

    Raises:
      TypeError: on entry, if one of ``limiters`` isn't a limiter.
      OSError: on entry, if the port is taken.

    Checkpoint: on entry and exit.

    Cancellation: closes the server.
    """
    return _open(port, allow_cancel, limiters)


@asynccontextmanager
async def _open(
    port: int, allow_cancel: bool, limiters: Collection[Limiter]
) -> AsyncGenerator[str, None]:
    refuse_outside_trio("the block of open_dashboard() was entered")
    with pictured("open_dashboard()", limiters) as live:
        async with serving_page(live, port=port, allow_cancel=allow_cancel) as address:
            yield address


@asynccontextmanager
async def serving_page(
    live: Live, *, port: int = 0, allow_cancel: bool = False
) -> AsyncGenerator[str, None]:
    """Do what `open_dashboard` says, with ``live``."""
    listening = socket.create_server((_HOST, port))
    address = f"{_HOST}:{listening.getsockname()[1]}"
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    app = Guard(_app(live, allow_cancel=allow_cancel), address=address, token=token)
    config = Config()
    fd = listening.detach()  # hypercorn's from now on.
    config.bind = [f"fd://{fd}"]
    config.errorlog = logging.getLogger("harness.observe.hypercorn")
    config.errorlog.setLevel(logging.WARNING)
    config.graceful_timeout = 0
    config.include_server_header = False
    config.h11_max_incomplete_size = 16 * 1024
    started = trio.Event()

    async def run() -> None:
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve, app, config)
                os.set_inheritable(fd, False)  # The programs that agents start don't get it.
                started.set()
        except Exception:  # To be looked at must not hurt the program.
            logger.exception("the dashboard has ended")
        finally:
            started.set()

    async with beside(run, "harness dashboard"):
        await happened(started)
        yield f"http://{address}/#{token}"


class Guard:
    """Lets only those requests through that the user's own page makes; see the module."""

    def __init__(self, app: App, *, address: str, token: str) -> None:
        """Guard ``app``, which is served at ``address`` as host and port."""
        port = address.rpartition(":")[2]
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in (_HOST, "localhost")}
        self._bearer = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        if scope["type"] != "http":  # A websocket: closed before it is accepted.
            await send({"type": "websocket.close", "code": 1008})
        elif (refusal := self._refusal(scope)) is not None:
            await Response(refusal[1], refusal[0], media_type="text/plain")(
                scope, receive, send_guarded
            )
        else:
            await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name.lower(), []).append(value)
        # Of several, a proxy may have looked at another one.
        if any(len(given.get(one, ())) > 1 for one in (b"host", b"origin", b"authorization")):
            return 400, "a header is there twice\n"
        host, origin, token = (
            given.get(name, [None])[0] for name in (b"host", b"origin", b"authorization")
        )
        if host not in self._hosts:
            return 421, "open the address as it was printed\n"
        if origin not in (None, b"http://" + (host or b"")):
            return 403, "this origin may not ask\n"
        if origin is None and scope["method"] not in ("GET", "HEAD"):
            return 403, "a change needs the page's origin\n"
        if given.get(b"sec-fetch-site", [b"none"])[0] not in (b"none", b"same-origin"):
            return 403, "paste the address into the browser; a link of another site can't open it\n"
        if token is None and scope["path"] in _FILES and scope["method"] in ("GET", "HEAD"):
            return None
        if not secrets.compare_digest(token or b"", self._bearer):
            return 401, "open the address as it was printed, with what follows the #\n"
        return None


def _app(live: Live, *, allow_cancel: bool) -> Starlette:
    routes = [Route(path, _file(*named), methods=["GET"]) for path, named in _FILES.items()]
    routes.append(Route("/events", _Events(live, allow_cancel=allow_cancel), methods=["GET"]))
    if allow_cancel:
        routes.append(Route("/runs/{run_id}/{action}", _act(live), methods=["POST"]))
    return Starlette(routes=routes)


def _file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(asset(name), media_type=media_type)

    return answer


class _Events:
    """Sends pictures for as long as somebody looks."""

    def __init__(self, live: Live, *, allow_cancel: bool) -> None:
        self._live = live
        self._allow_cancel = allow_cancel
        self._clients = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._clients >= _CLIENTS_AT_MOST:
            busy = Response("too many pages are open\n", 503, media_type="text/plain")
            await busy(scope, receive, send)
            return
        self._clients += 1  # Before anything waits: a thousand may come at once.
        try:
            async with aclosing(self._pictures()) as pictures:
                events = StreamingResponse(pictures, media_type="text/event-stream")
                await events(scope, receive, send)
        finally:
            self._clients -= 1

    async def _pictures(self) -> AsyncGenerator[str, None]:
        while True:
            picture = {**self._live.picture(), "may_cancel": self._allow_cancel}
            # JSON has no line breaks in it, so this is one event.
            yield f"data: {json.dumps(picture, ensure_ascii=True)}\n\n"
            await trio.sleep(self._live.seconds_to_next())


def _act(live: Live) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        action = request.path_params["action"]
        if action not in ("cancel", "stop"):
            return JSONResponse({"error": "a run can be cancelled or stopped"}, 404)
        run = live.find(request.path_params["run_id"])
        if run is None:
            return JSONResponse({"error": "there is no such run any more"}, 404)
        (run.cancel if action == "cancel" else run.stop)("asked for on the dashboard")
        return JSONResponse({"done": action})

    return answer
