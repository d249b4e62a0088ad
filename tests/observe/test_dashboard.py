"""The live page: what it answers, and above all whom it doesn't."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.limits import Limiter
from harness.observe import open_dashboard
from harness.observe._dashboard import _Events, serving_page
from harness.observe._live import Live
from harness.runs import Run
from tests.support.browser import Browser, open_browser

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
PUBLIC = ["/", "/dashboard.js", "/rows.js", "/page.css"]
ROUTES = [*PUBLIC, "/events", "/runs/{run}/cancel", "/runs/{run}/stop", "/no/such", "//", "/../x"]


class Page(NamedTuple):
    host: str
    token: str

    @property
    def own(self) -> dict[str, str]:
        """What the page's own requests have."""
        return {
            "Host": self.host,
            "Origin": f"http://{self.host}",
            "Authorization": f"Bearer {self.token}",
        }


@asynccontextmanager
async def a_page(*, allow_cancel: bool = True) -> AsyncIterator[Page]:
    live = Live(program="nightly")
    async with serving_page(live, allow_cancel=allow_cancel) as address:
        found = re.fullmatch(r"http://(127\.0\.0\.1:\d+)/#([\w-]{43})", address)
        assert found is not None
        yield Page(found[1], found[2])


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


async def ask(
    page: Page, method: str, path: str, headers: dict[str, str] | list[tuple[str, str]]
) -> Answer:
    """Send one request, byte by byte as told, and read until there is an event or an end."""
    lines = list(headers.items()) if isinstance(headers, dict) else headers
    host, _, port = page.host.partition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        head = "".join(f"{name}: {value}\r\n" for name, value in lines)
        await stream.send_all(
            f"{method} {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode()
        )
        heard = b""
        with trio.fail_after(30):
            async for chunk in stream:
                heard += chunk
                if b"data: " in heard and b"\r\n\r\n0" not in heard and heard.endswith(b"\n\n\r\n"):
                    break  # An event, of a stream without an end.
    top, _, body = heard.decode().partition("\r\n\r\n")
    first, *rest = top.split("\r\n")
    named = dict(line.lower().split(": ", 1) for line in rest)
    return Answer(int(first.split()[1]), named, body)


def wrong(page: Page) -> dict[str, dict[str, str]]:
    """Return requests that the page's own never look like, by what is wrong with them."""
    port = page.host.partition(":")[2]
    without_token = {name: value for name, value in page.own.items() if name != "Authorization"}
    return {
        # A name of the attacker's that was made to point here: DNS rebinding.
        "rebound": page.own | {"Host": f"evil.test:{port}", "Origin": f"http://evil.test:{port}"},
        "rebound, no origin": {
            "Host": f"evil.test:{port}",
            "Authorization": f"Bearer {page.token}",
        },
        "host without port": page.own | {"Host": "127.0.0.1"},
        "host with another port": page.own | {"Host": "127.0.0.1:1"},
        "host with a dot": page.own | {"Host": f"localhost.:{port}"},
        "other origin": page.own | {"Origin": "http://evil.test"},
        "other port's origin": page.own | {"Origin": "http://127.0.0.1:1"},
        "https origin": page.own | {"Origin": f"https://{page.host}"},
        "null origin": page.own | {"Origin": "null"},
        "other site": page.own | {"Sec-Fetch-Site": "cross-site"},
        "same site": page.own | {"Sec-Fetch-Site": "same-site"},
        "wrong token": page.own | {"Authorization": f"Bearer {'A' * 43}"},
        "cut token": page.own | {"Authorization": f"Bearer {page.token[:-1]}"},
        "longer token": page.own | {"Authorization": f"Bearer {page.token}A"},
        "token as basic": page.own | {"Authorization": f"Basic {page.token}"},
        "empty token": page.own | {"Authorization": ""},
        "token in a cookie": without_token | {"Cookie": f"token={page.token}"},
    }


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_refuses_every_method_with_a_wrong_host_origin_or_token(
    route: str,
) -> None:
    async with a_page() as page, harness.open_run("victim") as run:
        path = route.format(run=run.id)
        for method in METHODS:
            for what, headers in wrong(page).items():
                if what == "token in a cookie" and path in PUBLIC and method in ("GET", "HEAD"):
                    continue  # As good as without one: the page itself shows nothing.
                answer = await ask(page, method, path, headers)
                assert answer.status in (400, 401, 403, 421), (method, what)
                assert page.token not in str(answer), (method, what)
                assert "nightly" not in answer.body
        assert not run.stopping
        assert run.cancel_reason is None


@pytest.mark.parametrize("route", [one for one in ROUTES if one not in PUBLIC])
async def test_nothing_about_the_program_is_had_without_the_token(route: str) -> None:
    async with a_page() as page, harness.open_run("victim") as run:
        for method in METHODS:
            for origin in ({}, {"Origin": f"http://{page.host}"}):
                path = f"{route.format(run=run.id)}?token={page.token}"  # Not from there.
                answer = await ask(page, method, path, {"Host": page.host, **origin})
                assert answer.status in (401, 403), method
        assert run.cancel_reason is None


async def test_the_page_is_for_everybody_and_gives_nothing_away() -> None:
    async with a_page() as page:
        for path in PUBLIC:
            for headers in ({"Host": page.host}, page.own):
                answer = await ask(page, "GET", path, headers)
                assert answer.status == 200
                assert page.token not in str(answer)
                assert "nightly" not in answer.body


async def test_every_answer_forbids_framing_other_sources_and_other_origins() -> None:
    async with a_page() as page:
        answers = [await ask(page, "GET", path, page.own) for path in [*PUBLIC, "/events", "/no"]]
        answers.append(await ask(page, "GET", "/", {"Host": "evil.test"}))
        answers.append(await ask(page, "OPTIONS", "/events", page.own))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["x-frame-options"] == "deny"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("name", ["Host", "Origin", "Authorization"])
async def test_a_header_that_is_there_twice_is_refused(name: str) -> None:
    async with a_page() as page:
        twice = [*page.own.items(), (name, page.own[name])]
        assert (await ask(page, "GET", "/events", twice)).status == 400


async def test_each_page_has_a_token_of_its_own() -> None:
    async with a_page() as one, a_page() as other:
        assert one.token != other.token
        answer = await ask(one, "GET", "/events", one._replace(token=other.token).own)
        assert answer.status == 401


async def test_events_show_the_program() -> None:
    async with a_page(allow_cancel=False) as page, harness.open_run("<b>live</b>\u2028"):
        answer = await ask(page, "GET", "/events", page.own)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    picture = json.loads(answer.body.partition("data: ")[2].partition("\n\n")[0])
    assert picture["program"] == "nightly"
    assert picture["may_cancel"] is False
    assert [run["name"] for run in picture["runs"]["shown"]] == ["<b>live</b>\\u2028"]


async def test_only_so_many_pages_are_served_at_once(autojump_clock: MockClock) -> None:
    """A thousand that ask at one moment, too; and whoever leaves makes room."""
    events = _Events(Live(program="nightly"), allow_cancel=False)
    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    statuses: list[int] = []

    async def receive() -> MutableMapping[str, Any]:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async def send(message: MutableMapping[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(events, scope, receive, send)
            await trio.sleep(3)
            nursery.cancel_scope.cancel()
        assert (statuses.count(200), statuses.count(503)) == (8, 992)
        statuses.clear()


@pytest.mark.parametrize("action", ["cancel", "stop"])
async def test_runs_are_cancelled_and_stopped_only_if_that_is_allowed(action: str) -> None:
    async def asked(allow_cancel: bool) -> tuple[Answer, Run]:
        async with a_page(allow_cancel=allow_cancel) as page, harness.open_run("one") as run:
            path = f"/runs/{run.id}/{action}"
            return await ask(page, "POST", path, page.own), run
        raise AssertionError("the run is left early only in its own cancel")

    answer, run = await asked(False)
    assert (answer.status, run.status, run.cancel_reason) == (404, "ok", None)
    async with a_page() as page:
        async with harness.open_run("one") as run:
            with trio.CancelScope(shield=True):
                answer = await ask(page, "POST", f"/runs/{run.id}/{action}", page.own)
            assert answer.status == 200
            if action == "stop":
                assert run.stopping
            else:
                assert run.cancel_reason == "asked for on the dashboard"
        gone = await ask(page, "POST", f"/runs/{run.id}/{action}", page.own)
        assert gone.status == 404
        other = await ask(page, "POST", f"/runs/{run.id}/fork", page.own)
        assert other.status == 404


async def test_the_server_ends_with_the_block_and_leaves_errors_bare() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with harness.open_run("around"), a_page() as page:
            raise ValueError("mine")
    host, _, port = page.host.partition(":")
    with pytest.raises(OSError, match="attempts"):
        await trio.open_tcp_stream(host, int(port))


async def test_a_taken_port_is_an_error_on_entry() -> None:
    async with a_page() as page:
        with pytest.raises(OSError, match="use"):
            async with open_dashboard(port=int(page.host.partition(":")[2])):
                raise AssertionError("it was opened")


# In a browser -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_page_shows_a_program_live_and_cancels_what_is_chosen(tmp_path: Path) -> None:
    hostile = "<img src=x onerror='window.hurt=1'>\x1b[31m"

    def look(browser: Browser) -> list[str]:
        browser.asked_for()
        browser.open(address)
        browser.wait_for(
            "document.getElementById('tree').querySelectorAll('[role=row]').length > 3"
        )
        assert token not in browser.run("return location.href + document.documentElement.outerHTML")
        said = browser.run("return document.body.innerText")
        for words in ("<img src=x", "provider", "3 of 3 live runs", "0 of 2", "Live."):
            assert words in said
        assert browser.run("return window.hurt ?? null") is None
        assert browser.run("return document.images.length") == 0
        browser.run("document.getElementById('tree').focus()")
        browser.press("\ue015", "\ue015")  # Down to the second item.
        browser.wait_for("!document.getElementById('cancel').disabled")
        browser.run("document.getElementById('cancel').click()")
        browser.wait_for("document.getElementById('said').textContent === 'Asked it to cancel.'")
        browser.run("location.reload()")  # The token is kept in this tab.
        browser.wait_for("document.getElementById('state')?.textContent === 'Live.'")
        assert [one for one in browser.log("browser") if one["level"] == "SEVERE"] == []
        return browser.asked_for()

    async def work(item: int) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(harness.current_run().name)

    cancelled: list[str] = []

    limiter = Limiter("provider", requests_per_minute=60)
    with open_browser(tmp_path / "profile") as browser:
        async with (
            open_dashboard(allow_cancel=True, limiters=[limiter]) as address,
            trio.open_nursery() as nursery,
        ):
            token = address.partition("#")[2]
            run_all = partial(harness.fan_out, work, [1, 2], name=hostile)
            nursery.start_soon(run_all)
            asked_for = await trio.to_thread.run_sync(look, browser)
            assert len(cancelled) == 1
            nursery.cancel_scope.cancel()
    assert {one.partition(address.partition("#")[0])[0] for one in asked_for} == {""}
