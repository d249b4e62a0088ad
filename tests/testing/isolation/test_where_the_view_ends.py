"""What runs touch is followed wherever it is, put back, and named; what was not looked at is said.

Each of these was once reported as "a file, a server, a process", and left changed.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import locale
import logging
import os
import socket
import sys
import threading
import types
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import pytest
import trio
import trio.lowlevel

from harness.errors import ScheduleError
from harness.testing import assert_isolated, explore_schedules, run_schedule
from harness.testing.objects import Place, Reached, SharedState, _reach, place_of_definition

pytestmark = pytest.mark.slow

HERE = __name__


async def leak(
    agent: Callable[[Any], Any], inputs: list[Any] | None = None, **options: Any
) -> ScheduleError:
    """Return what is reported."""
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(agent, inputs or ["a", "b"], **{"schedules": 100, **options})
    return caught.value


class Session:
    def __init__(self) -> None:
        self.turns: list[str] = []


# Large things ------------------------------------------------------------------------------------

POOL = [Session() for _ in range(1_200)]
ROOMS = [[Session() for _ in range(900)] for _ in range(13)]
STORE: dict[int, dict[str, Any]] = {number: {"who": None} for number in range(1_001)}
SET = frozenset(Session() for _ in range(1_100))
LAST_OF_SET = list(SET)[-1].turns.append


async def last_of_a_long_list(text: str) -> int:
    POOL[-1].turns.append(text)
    await trio.sleep(0.01)
    return len(POOL[-1].turns)


async def far_away(text: str) -> int:
    ROOMS[12][800].turns.append(text)
    await trio.sleep(0.01)
    return len(ROOMS[12][800].turns)


async def last_of_a_large_dict(text: str) -> str:
    STORE[1_000]["who"] = text
    await trio.sleep(1)
    return str(STORE[1_000]["who"])


async def far_away_for_a_while(text: str) -> str:
    """Nothing of it is left when the run ends, so only a look after each step can see it."""
    POOL[1_150].turns.append(text)
    await trio.sleep(0.01)
    seen = POOL[1_150].turns[-1]
    POOL[1_150].turns.remove(text)
    return seen


@pytest.mark.parametrize(
    ("agent", "path"),
    [
        (last_of_a_long_list, "POOL[1199].turns"),
        (far_away, "ROOMS[12][800].turns"),
        (last_of_a_large_dict, "STORE[1000]['who']"),
        (far_away_for_a_while, "POOL[1150].turns"),
    ],
)
async def test_beyond_the_first_thousand_elements_and_twenty_thousand_objects(
    agent: Callable[[str], Awaitable[Any]], path: str
) -> None:
    error = await leak(agent)
    assert error.objects == (f"{HERE}.{path}",)
    assert "proof:" in str(error)
    assert POOL[-1].turns == POOL[1_150].turns == ROOMS[12][800].turns == []
    assert STORE[1_000] == {"who": None}


def test_what_is_far_is_followed_once_it_has_changed() -> None:
    reached = Reached()
    reached.add(Place("ROOMS"), ROOMS)
    state = SharedState(reached)
    near = len(state.parts)
    state.follow_the_rest()
    assert len(state.parts) == near <= 20_000
    ROOMS[12][899].turns.append("x")
    assert state.look_closer()
    assert [suspect.path for suspect in state.left_behind()] == ["ROOMS[12][899].turns"]
    state.put_back()
    assert ROOMS[12][899].turns == []
    assert not state.look_closer()


# The process -------------------------------------------------------------------------------------

LOG = logging.getLogger(f"{HERE}.known")


async def patches_a_library(text: str) -> Any:
    old: Any = httpx.get
    httpx.get = lambda *_: text  # type: ignore[assignment]
    try:
        await trio.sleep(0.01)
        return httpx.get("u")  # noqa: ASYNC210 (it is patched)
    finally:
        httpx.get = old


async def adds_to_a_library(text: str) -> Any:
    httpx.user = text  # type: ignore[attr-defined]
    await trio.sleep(0.01)
    return httpx.user  # type: ignore[attr-defined]


async def patches_by_string(text: str) -> Any:
    library = importlib.import_module("httpx")
    old = library.post
    setattr(library, "".join(("po", "st")), text)
    await trio.sleep(0.01)
    seen = library.post
    setattr(library, "".join(("po", "st")), old)
    return seen


async def sets_on_a_librarys_class(text: str) -> Any:
    httpx.Client.user = text  # type: ignore[attr-defined]
    await trio.sleep(0.01)
    return httpx.Client.user  # type: ignore[attr-defined]


async def registers_a_module(text: str) -> Any:
    sys.modules["harness_plug"] = types.SimpleNamespace(value=text)  # type: ignore[assignment]
    await trio.sleep(0.01)
    return importlib.import_module("harness_plug").value


async def level_by_name(text: str) -> int:
    logger = logging.getLogger("harness_by_name")
    old = logger.level
    logger.setLevel(10 if text == "a" else 40)
    await trio.sleep(0.01)
    seen = logger.level
    logger.setLevel(old)
    return seen


async def level_by_global(text: str) -> int:
    old = LOG.level
    LOG.setLevel(10 if text == "a" else 40)
    await trio.sleep(0.01)
    seen = LOG.level
    LOG.setLevel(old)
    return seen


async def level_of_the_root(text: str) -> int:
    logger = logging.getLogger()
    old = logger.level
    logger.setLevel(10 if text == "a" else 40)
    await trio.sleep(0.01)
    seen = logger.level
    logger.setLevel(old)
    return seen


async def handler_by_name(text: str) -> list[str]:
    got: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            got.append(record.getMessage())

    logger, handler = logging.getLogger("harness_handlers"), Keeps()
    logger.addHandler(handler)
    logger.warning(text)
    await trio.sleep(0.01)
    logger.removeHandler(handler)
    return got


async def disables_logging(text: str) -> int:
    logging.disable(10 if text == "a" else 40)
    await trio.sleep(0.01)
    return logging.root.manager.disable


async def umask(text: str) -> int:
    os.umask(0o22 if text == "a" else 0o77)
    await trio.sleep(0.01)
    return os.umask(0o22)


async def collector(text: str) -> bool:
    (gc.disable if text == "a" else gc.enable)()
    await trio.sleep(0.01)
    return gc.isenabled()


async def threshold(text: str) -> int:
    gc.set_threshold(700 if text == "a" else 900)
    await trio.sleep(0.01)
    return gc.get_threshold()[0]


async def socket_timeout(text: str) -> float | None:
    socket.setdefaulttimeout(1.0 if text == "a" else 2.0)
    await trio.sleep(0.01)
    return socket.getdefaulttimeout()


async def numbers(text: str) -> str:
    locale.setlocale(locale.LC_NUMERIC, "C" if text == "a" else "C.UTF-8")
    await trio.sleep(0.01)
    return locale.setlocale(locale.LC_NUMERIC)


async def recursion(text: str) -> int:
    sys.setrecursionlimit(5_000 if text == "a" else 6_000)
    await trio.sleep(0.01)
    return sys.getrecursionlimit()


def _process() -> dict[str, object]:
    mask = os.umask(0o22)
    os.umask(mask)
    return {
        "library": {name: value for name, value in vars(httpx).items() if name[:1] != "_"},
        "class": hasattr(httpx.Client, "user"),
        "modules": "harness_plug" in sys.modules,
        "levels": [logging.getLogger(name).level for name in ("", LOG.name, "harness_by_name")],
        "handlers": logging.getLogger("harness_handlers").handlers[:],
        "disabled": logging.root.manager.disable,
        "umask": mask,
        "collector": (gc.isenabled(), gc.get_threshold()),
        "timeout": socket.getdefaulttimeout(),
        "locale": locale.setlocale(locale.LC_ALL),
        "recursion": sys.getrecursionlimit(),
    }


@pytest.mark.parametrize(
    ("agent", "path"),
    [
        (patches_a_library, "httpx.get"),
        (adds_to_a_library, "httpx.user"),
        (patches_by_string, "httpx.post"),
        (sets_on_a_librarys_class, "httpx.Client.user"),
        (registers_a_module, "sys.modules['harness_plug']"),
        (level_by_name, "logging.getLogger('harness_by_name')"),
        (level_by_global, f"{HERE}.LOG"),
        (level_of_the_root, "logging.getLogger()"),
        (handler_by_name, "logging.getLogger('harness_handlers')"),
        (disables_logging, "logging.root.manager.disable"),
        (umask, "os.umask()"),
        (collector, "gc.isenabled()"),
        (threshold, "gc.get_threshold()"),
        (socket_timeout, "socket.getdefaulttimeout()"),
        (numbers, "locale.setlocale(LC_ALL)"),
        (recursion, "sys.getrecursionlimit()"),
    ],
)
async def test_a_state_of_the_process_is_named_proven_and_put_back(
    agent: Callable[[str], Awaitable[Any]], path: str
) -> None:
    before = _process()
    error = await leak(agent)
    assert error.objects == (path,)
    assert "proof:" in str(error)
    assert "a file, a server" not in str(error)
    assert _process() == before


async def test_what_a_passing_check_changes_is_put_back() -> None:
    """Not only a failure: what one run leaves may make no difference to any other."""

    async def quiet(text: str) -> str:
        socket.setdefaulttimeout(3)
        logging.getLogger("harness_by_name").setLevel(10)
        importlib.import_module("httpx").user = "somebody"  # type: ignore[attr-defined]
        await trio.sleep(0.01)
        return text

    before = _process()
    seen = await assert_isolated(quiet, ["a", "b"], schedules=5)
    assert set(seen.outliving) == {
        "socket.getdefaulttimeout()",
        "logging.getLogger('harness_by_name')",
        "httpx.user",
    }
    assert _process() == before


async def test_an_import_in_a_run_is_nobodys_change() -> None:
    async def imports(text: str) -> str:
        importlib.import_module("wave")
        await trio.sleep(0.01)
        return text

    sys.modules.pop("wave", None)
    seen = await assert_isolated(imports, ["a", "b"], schedules=5)
    assert seen.outliving == ()
    assert "wave" in sys.modules


@explore_schedules(schedules=3)
async def _explored() -> None:
    importlib.import_module("socket").setdefaulttimeout(7)
    POOL[-1].turns.append("x")
    await trio.lowlevel.checkpoint()


async def test_an_explored_test_leaves_the_process_as_it_was() -> None:
    before = _process()
    await _explored()
    assert _process() == before
    assert POOL[-1].turns == []


# Threads -----------------------------------------------------------------------------------------

KEPT = threading.local()


def _tool(user: str) -> str:
    if not hasattr(KEPT, "user"):
        KEPT.user = user
    return str(KEPT.user)


async def works_in_threads(user: str) -> str:
    await trio.lowlevel.checkpoint()
    return await trio.to_thread.run_sync(_tool, user)


async def works_in_threads_of_asyncio(user: str) -> str:
    await asyncio.sleep(0)
    return await asyncio.to_thread(_tool, user)


async def works_in_an_executor(user: str) -> str:
    return await asyncio.get_running_loop().run_in_executor(EXECUTOR, _tool, user)


def works_in_a_pool(user: str) -> str:
    return EXECUTOR.submit(_tool, user).result()


def works_in_a_pool_of_its_own(user: str) -> str:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_tool, user).result()


EXECUTOR = ThreadPoolExecutor(2)


@pytest.mark.parametrize(
    "agent",
    [works_in_threads, works_in_threads_of_asyncio, works_in_an_executor, works_in_a_pool],
    ids=lambda agent: agent.__name__,
)
async def test_the_thread_locals_of_worker_threads_are_each_trials_own(
    agent: Callable[[str], Any],
) -> None:
    """A thread kept what a trial before had left, so runs were judged by the wrong alone.

    And it is found though it is only there if a thread works for a second run: when each call had a
    thread of its own, no schedule showed it.
    """
    error = await leak(agent, ["ann", "bob"], schedules=200)
    assert f"{HERE}.KEPT" in error.objects
    assert {path.removesuffix(".user") for path in error.objects} == {f"{HERE}.KEPT"}
    assert "thread-local in worker threads" in str(error)
    said = str(error).splitlines()
    for given, line in pairwise(said):
        if line.startswith("    alone:"):
            assert given.partition("(")[2].rstrip(")") == line.partition("alone:")[2].strip()


def keeps_in_its_thread(user: str) -> str:
    return _tool(user)


def resets_its_thread(user: str) -> str:
    KEPT.user = user
    return _tool(user)


@pytest.mark.parametrize(
    "agent",
    [works_in_threads, works_in_threads_of_asyncio, works_in_a_pool, keeps_in_its_thread],
    ids=lambda agent: agent.__name__,
)
async def test_what_a_thread_keeps_is_found_with_one_run_after_the_other(
    agent: Callable[[str], Any],
) -> None:
    """Each run had threads of its own then, though outside a thread works for many."""
    error = await leak(agent, ["ann", "bob", "cyd"], schedules=1)
    assert "run 2 after run 1 gives something else than alone; no concurrency" in str(error)
    assert {path.removesuffix(".user") for path in error.objects} == {f"{HERE}.KEPT"}
    assert "proof: in 1 replay" in str(error)
    assert error.schedule == "o1:1,2"
    with pytest.raises(ScheduleError, match="run 2 after run 1"):
        await assert_isolated(agent, ["ann", "bob", "cyd"], schedule=error.schedule)


async def test_what_each_run_sets_anew_in_its_thread_raises_no_alarm() -> None:
    seen = await assert_isolated(resets_its_thread, ["ann", "bob", "cyd"], schedules=20)
    assert seen.outliving == ()


async def test_what_a_thread_keeps_ends_with_its_pool() -> None:
    seen = await assert_isolated(works_in_a_pool_of_its_own, ["ann", "bob"], schedules=50)
    assert seen.schedules_run == 50


def test_threads_of_a_pool_that_end_with_a_schedule_say_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each logged an "exception in worker" with a traceback, hundreds of them in a search."""
    assert run_schedule(lambda: works_in_a_pool("ann")).outcome.unwrap() == "ann"
    assert caplog.records == []


def test_what_a_thread_keeps_is_seen_from_another_and_cleared() -> None:
    reached = Reached()
    reached.add(Place("KEPT"), KEPT)
    state = SharedState(reached)
    tell, end, said = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        said.append(_tool("ann"))
        tell.set()
        end.wait(10)
        said.append(_tool("bob"))

    thread = threading.Thread(target=work)
    thread.start()
    tell.wait(10)
    assert [suspect.path for suspect in state.left_behind()] == ["KEPT"]
    state.put_back()
    end.set()
    thread.join(10)
    assert said == ["ann", "bob"]


async def test_threads_that_were_there_before_keep_what_they_hold() -> None:
    held: list[str] = []
    ask, end = threading.Event(), threading.Event()

    def work() -> None:
        KEPT.user = "mine"
        ask.set()
        end.wait(10)
        held.append(KEPT.user)

    thread = threading.Thread(target=work)
    thread.start()
    ask.wait(10)
    await leak(works_in_threads, ["ann", "bob"], schedules=20)
    end.set()
    thread.join(10)
    assert held == ["mine"]


# What is not looked at ---------------------------------------------------------------------------


BEYOND = [Session() for _ in range(1_200)]


async def test_a_verdict_says_what_was_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def agent(text: str) -> str:
        BEYOND[-1].turns[:] = [text]
        await trio.sleep(0.01)
        return BEYOND[-1].turns[0]

    monkeypatch.setattr(_reach, "OBJECTS_AT_MOST", 800)
    error = await leak(agent)
    said = str(error)
    assert error.objects == ()
    assert "not looked at:\n" in said
    assert f"  {HERE}.BEYOND" in said
    assert "a file, a server" not in said


async def test_a_check_that_passes_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def agent(text: str) -> str:
        len(POOL)
        await trio.lowlevel.checkpoint()
        return text

    seen = await assert_isolated(agent, ["a", "b"], schedules=5)
    assert seen.not_looked_at == ()
    monkeypatch.setattr(_reach, "OBJECTS_AT_MOST", 800)
    seen = await assert_isolated(agent, ["a", "b"], schedules=5)
    assert any(words.startswith(f"{HERE}.POOL") for words in seen.not_looked_at)


async def test_what_libraries_keep_for_themselves_is_not_looked_at() -> None:
    async def agent(text: str) -> str:
        await trio.lowlevel.checkpoint()
        return str(httpx.URL(text))

    seen = await assert_isolated(agent, ["a", "b"], schedules=5)
    assert seen.not_looked_at == ("httpx (objects in its own modules)",)


# Keys --------------------------------------------------------------------------------------------

CACHE: dict[str, str] = {}
SESSIONS = {"s": Session()}


async def keyed_by_prompt(given: tuple[str, str]) -> str:
    user, prompt = given
    if prompt not in CACHE:
        await trio.sleep(0.1)
        CACHE[prompt] = f"{user}: {prompt}"
    return CACHE[prompt]


async def keyed_by_prompts(given: tuple[str, str]) -> str:
    user, prompt = given
    for part in (prompt, f"{prompt}, and why"):
        if part not in CACHE:
            await trio.sleep(0.1)
            CACHE[part] = f"{user}: {part}"
    return CACHE[prompt]


async def keyed_by_session(given: tuple[str, str]) -> list[str]:
    user, session = given
    SESSIONS[session].turns.append(user)
    await trio.sleep(1)
    return list(SESSIONS[session].turns)


@pytest.mark.parametrize(
    ("agent", "key", "path"),
    [
        (keyed_by_prompt, "q", "CACHE['q']"),
        (keyed_by_prompts, "q", "CACHE['q']"),
        (keyed_by_session, "s", "SESSIONS['s']"),
    ],
)
async def test_a_key_that_is_wrong_is_advised_as_a_key(
    agent: Callable[[Any], Awaitable[Any]], key: str, path: str
) -> None:
    error = await leak(agent, [("ann", key), ("bob", key)])
    fix = str(error).splitlines()[-1]
    assert fix.startswith(f"fix: let the key tell the runs apart: they all use {HERE}.{path}")
    assert "RunLocal" not in fix


async def test_a_key_that_code_spells_out_is_a_name() -> None:
    async def named(text: str) -> str:
        CACHE["who"] = text
        await trio.sleep(0.1)
        return CACHE["who"]

    error = await leak(named)
    assert "harness.RunLocal(" in str(error).splitlines()[-1]


def test_a_walk_that_goes_on_looks_at_every_element() -> None:
    reached = Reached()
    reached.add(Place("SET"), SET)
    assert reached.cut_short
    reached.go_on()
    assert not reached.cut_short
    assert sum(isinstance(thing, Session) for thing in reached.seen.values()) == len(SET)
    assert place_of_definition(Session).text == f"{HERE}.Session"
