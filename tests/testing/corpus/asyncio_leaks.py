"""Thirty leaking programs of asyncio, as people have reported them, each with its correction.

A report names the fault. Nothing here is anybody's code: each program is the shortest one that we
could think of with that fault.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import ClassVar

from tests.testing.corpus.leak import leaks_of

LEAKS, leak = leaks_of()


async def pause(times: int = 1) -> None:
    """Wait as for a network."""
    for _ in range(times):
        await asyncio.sleep(0)


class Redis:
    def __init__(self) -> None:
        self.replies: deque[str] = deque()
        self.turn = asyncio.Lock()

    async def get(self, key: str, *, drains: bool) -> str:
        async with self.turn:
            self.replies.append(f"value of {key}")
            try:
                await pause()
            except asyncio.CancelledError:
                if drains:
                    self.replies.clear()
                raise
            return self.replies.popleft()


REDIS = Redis()


@leak("redis/redis-py#2624", "REDIS.replies")
async def off_by_one(key: str) -> str:
    """A command is cancelled with its reply unread; from then on each reply is the one before."""
    return await REDIS.get(key, drains=False)


async def off_by_one_right(key: str) -> str:
    return await REDIS.get(key, drains=True)


class Pipeline:
    def __init__(self) -> None:
        self.queued: list[str] = []
        self.turn = asyncio.Lock()

    async def execute(self, key: str, *, resets: bool) -> list[str]:
        async with self.turn:
            self.queued.append(key)
            try:
                await pause()
                return list(self.queued)
            except asyncio.CancelledError:
                if not resets:
                    self.queued.append("QUEUED")
                raise
            finally:
                if resets or "QUEUED" not in self.queued:
                    self.queued.clear()


PIPELINE = Pipeline()


@leak("NoneGG/aredis#171", "PIPELINE.queued")
async def queued_after_a_cancel(key: str) -> list[str]:
    """A transaction that is cancelled leaves its commands for the next one."""
    return await PIPELINE.execute(key, resets=False)


async def queued_after_a_cancel_right(key: str) -> list[str]:
    return await PIPELINE.execute(key, resets=True)


class Server:
    def __init__(self) -> None:
        self.query: dict[str, str] = {}

    async def handle(self, user: str) -> str:
        self.query = {"user": user}
        await pause()
        return f"hello {self.query['user']}"


SERVER = Server()


@leak("patx/micropie#2", "SERVER.query", seen="SERVER.query")
async def query_on_the_server(user: str) -> str:
    """The query of a request is kept on the server, of which there is one."""
    return await SERVER.handle(user)


async def query_on_the_server_right(user: str) -> str:
    return await Server().handle(user)


class Request:
    headers: ClassVar[dict[str, str]] = {}


class OwnRequest(Request):
    def __init__(self) -> None:
        self.headers = {}  # type: ignore[misc]


async def _cookie(request: Request, user: str) -> str:
    if "cookie" not in request.headers:
        request.headers["cookie"] = user
    await pause()
    return request.headers["cookie"]


@leak("hugokernel/micropython-nanoweb#21", "Request.headers['cookie']", seen="Request.headers")
async def headers_of_the_class(user: str) -> str:
    """The headers of a request are those of the class, with the cookie of who came first."""
    return await _cookie(Request(), user)


async def headers_of_the_class_right(user: str) -> str:
    return await _cookie(OwnRequest(), user)


LOCALS = threading.local()


@leak("jie/aiohttp_babel#9", "LOCALS.locale", seen="LOCALS")
async def locale_of_the_thread(locale: str) -> str:
    """The locale is kept per thread, and all coroutines are in one."""
    LOCALS.locale = locale
    await pause()
    return f"in {LOCALS.locale}"


async def locale_of_the_thread_right(locale: str) -> str:
    await pause()
    return f"in {locale}"


class Metadata(threading.local):
    def __init__(self) -> None:
        self.tabs: dict[str, str] = {}


METADATA = Metadata()


@leak("bugsnag/bugsnag-python#199", "METADATA.tabs['user']", seen="Metadata")
async def report_of_another(user: str) -> dict[str, str]:
    """What is reported with an error is kept per thread."""
    METADATA.tabs["user"] = user
    await pause()
    return dict(METADATA.tabs)


async def report_of_another_right(user: str) -> dict[str, str]:
    tabs = {"user": user}
    await pause()
    return tabs


async def _refreshed(lock: asyncio.Lock | None) -> None:
    refreshes = 0
    token = ""

    async def ensure() -> None:
        nonlocal refreshes, token
        if not token:
            refreshes += 1
            await pause()
            token = f"token {refreshes}"

    async def call() -> None:
        if lock is None:
            await ensure()
        else:
            async with lock:
                await ensure()

    await asyncio.gather(call(), call(), call())
    assert refreshes == 1


@leak("authlib/authlib#266", "token (local of _refreshed)")
async def token_refreshed_by_all() -> None:
    """Whoever finds the token expired refreshes it, all at once."""
    await _refreshed(None)


async def token_refreshed_by_all_right() -> None:
    await _refreshed(asyncio.Lock())


async def _updated(lock: asyncio.Lock | None) -> None:
    state = "working"
    told: list[str] = []

    async def update(new: str) -> None:
        nonlocal state
        if state == "working":
            if lock is None:
                await pause()
            state = new
            told.append(new)
            await pause()

    await asyncio.gather(update("completed"), update("failed"))
    assert len(told) == 1


@leak("a2aproject/a2a-python#278", "state (local of _updated)")
async def ended_twice() -> None:
    """A task is completed and failed, for both were allowed when they looked."""
    await _updated(None)


async def ended_twice_right() -> None:
    await _updated(asyncio.Lock())


async def _cached(lock: asyncio.Lock | None) -> None:
    cache: dict[str, int] = {}
    jobs = 0

    async def job() -> int:
        nonlocal jobs
        if "job" not in cache:
            jobs += 1
            result = jobs
            await pause()
            cache["job"] = result
        return cache["job"]

    async def call() -> int:
        if lock is None:
            return await job()
        async with lock:
            return await job()

    assert set(await asyncio.gather(call(), call(), call())) == {1}
    assert jobs == 1


@leak("aio-libs/aiocache#1041", "cache (local of _cached)")
async def stampede() -> None:
    """All that miss the cache at once do the job."""
    await _cached(None)


async def stampede_right() -> None:
    await _cached(asyncio.Lock())


def memoized(function: Callable[[], Awaitable[list[str]]]) -> Callable[[], Awaitable[list[str]]]:
    kept: list[list[str]] = []

    @functools.wraps(function)
    async def call() -> list[str]:
        if not kept:
            kept.append(await function())
        return kept[0]

    return call


async def rows() -> list[str]:
    await pause()
    return ["header"]


memoized_rows = memoized(rows)


@leak("aio-libs/aiocache#842", "kept (local of memoized)")
async def cached_rows(row: str) -> list[str]:
    """Who gets a cached list adds to it."""
    found = await memoized_rows()
    found.append(row)
    await pause()
    return list(found)


async def cached_rows_right(row: str) -> list[str]:
    return [*await memoized_rows(), row]


async def _expiring(*, stale: bool) -> None:
    """Count hits in a window; what is older than the window is dropped."""
    events: list[int] = []
    now = 0
    lock = asyncio.Lock()

    async def hit() -> None:
        nonlocal now
        size = len(events)
        if stale:
            await pause()
        async with lock:
            if not stale:
                size = len(events)
            now += 1
            events[size:] = [now]
            await pause()

    await asyncio.gather(hit(), hit(), hit())
    assert events == [1, 2, 3]


@leak("alisaifee/limits#277", "events (local of _expiring)")
async def cutoff_outside_the_lock() -> None:
    """Where to cut is worked out before the lock is taken, and new entries are cut off."""
    await _expiring(stale=True)


async def cutoff_outside_the_lock_right() -> None:
    await _expiring(stale=False)


async def _limit(*, books_first: bool) -> None:
    calls: list[int] = []
    over = False

    async def call(number: int) -> None:
        nonlocal over
        if len(calls) < 2:
            if books_first:
                calls.append(number)
                await pause()
            else:
                await pause()
                calls.append(number)
        over = over or len(calls) > 2

    await asyncio.gather(*(call(number) for number in range(4)))
    assert not over


@leak("RazerM/ratelimiter#3", "calls (local of _limit)")
async def limit_seen_by_all() -> None:
    """All calls that look at once see that the limit isn't reached."""
    await _limit(books_first=False)


async def limit_seen_by_all_right() -> None:
    await _limit(books_first=True)


async def _breaker(*, atomic: bool) -> None:
    failures = 0

    async def fail() -> None:
        nonlocal failures
        if atomic:
            await pause()
            failures += 1
        else:
            seen = failures
            await pause()
            failures = seen + 1

    await asyncio.gather(fail(), fail(), fail())
    assert failures == 3


@leak("viru0909-dev/nyay-setu-working#1292", "failures (local of _breaker)")
async def failures_lost() -> None:
    """A circuit breaker counts failures, and loses some."""
    await _breaker(atomic=False)


async def failures_lost_right() -> None:
    await _breaker(atomic=True)


class Statement:
    def __init__(self) -> None:
        self.arguments: tuple[str, ...] = ()

    async def fetch(self, *arguments: str) -> str:
        self.arguments = arguments
        await pause()
        return f"rows for {self.arguments[0]}"


STATEMENT = Statement()


@leak("MagicStack/asyncpg#56", "STATEMENT.arguments", seen="STATEMENT.arguments")
async def one_prepared_statement(name: str) -> str:
    """One prepared statement is used by all requests."""
    return await STATEMENT.fetch(name)


async def one_prepared_statement_right(name: str) -> str:
    return await Statement().fetch(name)


class Transactions:
    """A connection: what is committed is what anybody has written to it."""

    def __init__(self) -> None:
        self.pending: list[str] = []

    async def insert(self, row: str) -> list[str]:
        self.pending.append(row)
        await pause()
        committed, self.pending = self.pending, []
        return committed


SQLITE, WRITING = Transactions(), asyncio.Lock()


@leak("omnilib/aiosqlite#19", "SQLITE.pending", seen="SQLITE.pending")
async def shared_transaction(row: str) -> list[str]:
    """Two tasks write on one connection, and each commits the other's half."""
    return await SQLITE.insert(row)


async def shared_transaction_right(row: str) -> list[str]:
    return await Transactions().insert(row)


async def _tokens(*, reserves: bool) -> None:
    """Hand a freed token to who waits, or to who asks in between."""
    free, holders, most = 0, 1, 1
    line: deque[asyncio.Event] = deque()

    def enter() -> None:
        nonlocal holders, most
        holders += 1
        most = max(most, holders)

    def leave() -> None:
        nonlocal free, holders
        holders -= 1
        free += not (reserves and line)
        if line:
            line.popleft().set()

    async def waiter() -> None:
        nonlocal free
        if free > 0:
            free -= 1
        else:
            line.append(turn := asyncio.Event())
            await turn.wait()
            free -= not reserves
        enter()
        leave()

    async def releaser() -> None:
        await pause()
        leave()

    async def hasty() -> None:
        nonlocal free
        await pause(2)
        if free > 0:
            free -= 1
            enter()
            await pause()
            leave()

    await asyncio.gather(waiter(), releaser(), hasty())
    assert most == 1


@leak("agronholm/anyio#1170", "free (local of _tokens)", "holders (local of _tokens)")
async def token_granted_twice() -> None:
    """A token that is on its way to a waiter is taken by who doesn't wait."""
    await _tokens(reserves=False)


async def token_granted_twice_right() -> None:
    await _tokens(reserves=True)


class Query:
    def __init__(self, text: str) -> None:
        self.text = text


async def _process(queries: list[Query]) -> None:
    seen: list[str] = []

    async def process(query: Query) -> None:
        await pause()
        seen.append(query.text)

    tasks = []
    for query, text in zip(queries, ("a", "b", "c"), strict=True):
        query.text = text
        tasks.append(asyncio.create_task(process(query)))
    await asyncio.gather(*tasks)
    assert sorted(seen) == ["a", "b", "c"]


@leak("aio-libs/aiohttp#3316", "queries[0].text (local of _process)")
async def last_request_for_all() -> None:
    """One request is changed for each query, before the tasks look at it."""
    await _process([Query("")] * 3)


async def last_request_for_all_right() -> None:
    await _process([Query("") for _ in range(3)])


async def _branches(*, copies: bool) -> None:
    task = ["task"]

    async def branch(name: str) -> list[str]:
        own = list(task) if copies else task
        await pause()
        own.append(name)
        await pause()
        return list(own)

    first, second = await asyncio.gather(branch("a"), branch("b"))
    assert (first, second) == (["task", "a"], ["task", "b"])


@leak("nMaroulis/protolink#2", "task (local of _branches)")
async def one_task_for_all_branches() -> None:
    """All branches get the same mutable task."""
    await _branches(copies=False)


async def one_task_for_all_branches_right() -> None:
    await _branches(copies=True)


class Tado:
    """Each refresh token is good for once, and the next comes with the answer."""

    def __init__(self) -> None:
        self.refresh_token = self.valid = 0

    async def refresh(self) -> str:
        sent = self.refresh_token
        await pause()
        if sent != self.valid:
            raise RuntimeError("invalid_grant")
        self.valid += 1
        await pause()
        self.refresh_token = self.valid
        return "refreshed"


TADO, REFRESHING = Tado(), asyncio.Lock()


@leak("exabird/ha-tado-x#36", "TADO.refresh_token", "TADO.valid", seen="TADO.refresh_token")
async def rotating_token(name: str) -> str:
    """A refresh token that is replaced at each use is sent twice."""
    return f"{name}: {await TADO.refresh()}"


async def rotating_token_right(name: str) -> str:
    async def in_turn() -> str:
        async with REFRESHING:
            return await TADO.refresh()

    return f"{name}: {await asyncio.shield(in_turn())}"


class ReActAgent:
    def __init__(self) -> None:
        self.memory: list[str] = []

    async def reply(self, message: str) -> list[str]:
        self.memory.append(message)
        await pause()
        seen = list(self.memory)
        self.memory.remove(message)
        return seen


REACT_AGENT = ReActAgent()


@leak("agentscope-ai/agentscope#745", "REACT_AGENT.memory", seen="REACT_AGENT.memory")
async def memory_of_the_agent(message: str) -> list[str]:
    """One agent is awaited for many messages at once, with one memory."""
    return await REACT_AGENT.reply(message)


async def memory_of_the_agent_right(message: str) -> list[str]:
    return await ReActAgent().reply(message)


class Session:
    def __init__(self) -> None:
        self.state = "active"

    async def execute(self, query: str) -> str:
        if self.state != "active":
            raise RuntimeError(f"{self.state} is already in progress")
        self.state = "connecting"
        await pause()
        self.state = "active"
        return f"rows of {query}"


SESSION = Session()


@leak("sqlalchemy/sqlalchemy#10092", "SESSION.state", seen="SESSION.state")
async def session_of_all(query: str) -> str:
    """One session is used by several tasks at once."""
    return await SESSION.execute(query)


async def session_of_all_right(query: str) -> str:
    return await Session().execute(query)


class Retry:
    @staticmethod
    def delay(attempt: int) -> str:
        return f"wait {attempt}"


@leak("caura-ai/caura#868", "Retry.delay", seen="Retry.delay")
async def patched_for_a_test(name: str) -> str:
    """What one test patches is patched for every task that runs meanwhile."""
    before = Retry.delay
    Retry.delay = lambda attempt: f"{name} waits {attempt}"  # type: ignore[method-assign]
    try:
        await pause()
        return Retry.delay(1)
    finally:
        Retry.delay = before  # type: ignore[method-assign]


async def patched_for_a_test_right(name: str) -> str:
    await pause()
    return f"{name} waits 1"


class Storage:
    def __init__(self) -> None:
        self.session = ""


class SupabaseClient:
    def __init__(self, storage: Storage = Storage()) -> None:  # noqa: B008 - that is the fault
        self.storage = storage

    async def sign_in(self, user: str) -> str:
        self.storage.session = user
        await pause()
        return f"signed in as {self.storage.session}"


@leak(
    "supabase/supabase-py#764",
    "SupabaseClient.__init__.__defaults__[0].session",
    seen="SupabaseClient.__init__(storage=)",
)
async def default_storage(user: str) -> str:
    """All clients keep their session in one default storage."""
    return await SupabaseClient().sign_in(user)


async def default_storage_right(user: str) -> str:
    return await SupabaseClient(Storage()).sign_in(user)


class Providers:
    def __init__(self, configs: dict[str, str] = {}) -> None:  # noqa: B006 - that is the fault
        self.configs = configs

    def configure(self, key: str) -> None:
        self.configs.setdefault("openai", key)


async def _configured(client: Providers, key: str) -> dict[str, str]:
    client.configure(key)
    await pause()
    return dict(client.configs)


@leak(
    "andrewyng/aisuite#312",
    "Providers.__init__.__defaults__[0]['openai']",
    seen="Providers.__init__(configs=)",
)
async def default_configs(key: str) -> dict[str, str]:
    """Configuring one client configures all that were made without a configuration."""
    return await _configured(Providers(), key)


async def default_configs_right(key: str) -> dict[str, str]:
    return await _configured(Providers({}), key)


async def is_enabled(user: str, context: dict[str, str] = {}) -> str:  # noqa: B006 - the fault
    context.setdefault("userId", user)
    await pause()
    return f"enabled for {context['userId']}"


@leak(
    "Unleash/unleash-python-sdk#134",
    "is_enabled.__defaults__[0]['userId']",
    seen="is_enabled(context=)",
)
async def default_context(user: str) -> str:
    """The context that a feature flag is judged by is filled in, and kept."""
    return await is_enabled(user)


async def default_context_right(user: str) -> str:
    return await is_enabled(user, {})


PAGES: dict[str, str] = {}


async def _page(key: str, user: str) -> str:
    if key not in PAGES:
        await pause()
        PAGES[key] = f"the dashboard of {user}"
    return PAGES[key]


@leak("alltuner/vibetuner#1594", "PAGES['/dashboard']")
async def page_by_its_path(user: str) -> str:
    """Pages are cached by their path alone."""
    return await _page("/dashboard", user)


async def page_by_its_path_right(user: str) -> str:
    return await _page(f"/dashboard?user={user}", user)


async def _timers(*, own: bool) -> None:
    """Keep an entry for two seconds, and renew it after one."""
    cache: dict[str, int] = {}

    def expire(value: int) -> None:
        if not own or cache.get("key") == value:
            cache.pop("key", None)

    async def store(value: int, late: float) -> None:
        await asyncio.sleep(late)
        cache["key"] = value
        asyncio.get_running_loop().call_later(2, expire, value)

    await asyncio.gather(store(1, 0), store(2, 1))
    await asyncio.sleep(1.5)
    assert cache == {"key": 2}


@leak("duolicious/duolicious#1616", "cache (local of _timers)")
async def timer_of_an_older_entry() -> None:
    """The timer of an entry that was replaced removes the newer one."""
    await _timers(own=False)


async def timer_of_an_older_entry_right() -> None:
    await _timers(own=True)


FILES: dict[str, str] = {}


async def _filled(path: str, text: str) -> str:
    FILES[path] = text
    await pause()
    return FILES[path]


@leak("fireform-core/FireForm#198", "FILES['form_12:00:01.pdf']", seen="FILES")
async def named_by_the_second(text: str) -> str:
    """Forms filled within one second get one file name."""
    return await _filled("form_12:00:01.pdf", text)


async def named_by_the_second_right(text: str) -> str:
    return await _filled(f"form_{text}.pdf", text)


class WebSocket:
    def __init__(self) -> None:
        self.writing = False
        self.turn = asyncio.Lock()

    async def send(self, text: str) -> str:
        if self.writing:
            raise RuntimeError("another task is already writing")
        self.writing = True
        try:
            await pause()
        finally:
            self.writing = False
        return f"sent {text}"

    async def send_in_turn(self, text: str) -> str:
        async with self.turn:
            return await self.send(text)


WEB_SOCKET = WebSocket()


@leak("frankie567/httpx-ws#29", "WEB_SOCKET.writing", seen="WEB_SOCKET.writing")
async def busy_socket(text: str) -> str:
    """Two tasks send on one socket at once."""
    return await WEB_SOCKET.send(text)


async def busy_socket_right(text: str) -> str:
    return await WEB_SOCKET.send_in_turn(text)


class ConnectionPool:
    def __init__(self) -> None:
        self.open = 0

    async def get(self, url: str, *, closes: bool) -> str:
        async with asyncio.timeout(30):
            while self.open:  # noqa: ASYNC110 - as simple as can be
                await asyncio.sleep(1)
        self.open += 1
        try:
            await pause()
        except asyncio.CancelledError:
            self.open -= closes
            raise
        self.open -= 1
        return f"200 for {url}"


CONNECTION_POOL = ConnectionPool()


@leak("encode/httpx#1461", "CONNECTION_POOL.open")
async def pool_full_of_cancels(url: str) -> str:
    """A cancelled request leaves its connection open, and the pool fills up."""
    return await CONNECTION_POOL.get(url, closes=False)


async def pool_full_of_cancels_right(url: str) -> str:
    return await CONNECTION_POOL.get(url, closes=True)


class FakeSocket:
    def __init__(self) -> None:
        self.paused = False
        self.turn = asyncio.Lock()

    async def pop(self, key: str, *, resumes: bool) -> str:
        async with self.turn:
            if self.paused:
                raise TimeoutError("no answer")
            self.paused = True
            try:
                await pause()
            except asyncio.CancelledError:
                self.paused = not resumes
                raise
            self.paused = False
            return f"popped {key}"


FAKE_SOCKET = FakeSocket()


@leak("cunla/fakeredis-py#567", "FAKE_SOCKET.paused")
async def paused_by_a_cancel(key: str) -> str:
    """A blocking command that is cancelled leaves its socket paused for good."""
    return await FAKE_SOCKET.pop(key, resumes=False)


async def paused_by_a_cancel_right(key: str) -> str:
    return await FAKE_SOCKET.pop(key, resumes=True)


async def _popped(*, keeps: bool) -> None:
    """Pop an item, with little patience, and then once more."""
    server: deque[int] = deque()
    got: list[int] = []

    async def pop() -> None:
        while not server:
            await pause()
        item = server.popleft()
        if not keeps:
            await pause()
        got.append(item)

    async def push() -> None:
        await pause(2)
        server.append(1)

    task = asyncio.create_task(pop())
    pushing = asyncio.create_task(push())
    await pause(3)
    task.cancel()
    await asyncio.wait([task, pushing])
    if task.cancelled():
        assert server, "the item is gone"


@leak("aio-libs-abandoned/aioredis-py#59", "server (local of _popped)")
async def popped_for_nobody() -> None:
    """A pop that is cancelled has taken its item, and nobody gets it."""
    await _popped(keeps=False)


async def popped_for_nobody_right() -> None:
    await _popped(keeps=True)
