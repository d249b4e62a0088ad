"""What a library keeps for the user's code is the user's, and named where it hangs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import jinja2
import pydantic
import pytest
import tenacity
import trio

from harness.errors import ScheduleError
from harness.testing import assert_isolated

pytestmark = pytest.mark.slow

TEMPLATES = jinja2.Environment(autoescape=True)
CLIENT = httpx.AsyncClient(
    transport=httpx.MockTransport(
        lambda request: httpx.Response(200, json=request.headers.get("x-run"))
    ),
    base_url="http://x",
)


class Settings(pydantic.BaseModel):
    user: str = ""


SETTINGS = Settings()


def _class_made_by_a_call(name: str) -> type[Any]:
    cls = type(f"Wrapped-{name}", (), {"__module__": "jinja2.runtime"})
    cls.held = threading.local()  # type: ignore[attr-defined]
    return cls


class Bound:
    def __init__(self) -> None:
        self.context = _class_made_by_a_call("1")


BOUND = Bound()


@tenacity.retry(wait=tenacity.wait_fixed(0.1), sleep=trio.sleep)
async def flaky(left: list[int]) -> None:
    await trio.sleep(0.01)
    if left.pop():
        raise ValueError


async def in_templates(text: str) -> str:
    TEMPLATES.globals["user"] = text
    await trio.sleep(0.01)
    return TEMPLATES.from_string("{{ user }}").render()


async def in_headers(text: str) -> Any:
    CLIENT.headers["x-run"] = text
    await trio.sleep(0.01)
    return (await CLIENT.get("/")).json()


async def in_settings(text: str) -> str:
    SETTINGS.user = text
    await trio.sleep(0.01)
    return SETTINGS.user


async def in_a_wrapper(text: str) -> int:
    await flaky([0] if text == "a" else [0, 1])
    await trio.sleep(0.05)
    return int(flaky.statistics["attempt_number"])


async def in_a_class_that_a_library_made(text: str) -> str:
    BOUND.context.held.user = text
    await trio.sleep(0.01)
    return str(BOUND.context.held.user)


@pytest.mark.parametrize(
    ("agent", "path"),
    [
        (in_templates, "TEMPLATES.globals['user']"),
        (in_headers, "CLIENT"),
        (in_settings, "SETTINGS.user"),
        (in_a_wrapper, "flaky.statistics"),
        (in_a_class_that_a_library_made, "BOUND.context.held.user"),
    ],
)
async def test_what_a_library_keeps_for_the_user_is_named(
    agent: Callable[[str], Awaitable[Any]], path: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(agent, ["a", "b"], schedules=100)
    error = caught.value
    assert error.objects == (f"{__name__}.{path}",)
    assert "proof:" in str(error)
