"""Thirty leaking programs of trio, as people have reported them, each with its correction.

A report names the fault; some are of a library that runs under another event loop as well. Nothing
here is anybody's code: each program is the shortest one that we could think of with that fault.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import threading
import warnings
from collections import deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import ClassVar

import trio

from tests.testing.corpus.leak import leaks_of

LEAKS, leak = leaks_of()


async def pause(times: int = 1) -> None:
    """Wait as for a network."""
    for _ in range(times):
        await trio.lowlevel.checkpoint()


class Agent:
    def __init__(self, tools: list[str] = []) -> None:  # noqa: B006 - that is the fault
        self.tools = tools

    async def learn(self, tool: str) -> list[str]:
        self.tools.append(tool)
        await pause()
        return list(self.tools)


@leak("kyegomez/swarms#1789", "Agent.__init__.__defaults__[0]", seen="Agent.__init__(tools=)")
async def default_list(tool: str) -> list[str]:
    """A default list of tools is every agent's."""
    return await Agent().learn(tool)


async def default_list_right(tool: str) -> list[str]:
    return await Agent([]).learn(tool)


class Prompt:
    def __init__(self) -> None:
        self.name = ""


class Filter:
    def __init__(self, prompt: Prompt = Prompt()) -> None:  # noqa: B008 - that is the fault
        self.prompt = prompt


async def _named(filter: Filter, name: str) -> str:
    filter.prompt.name = name
    await pause()
    return filter.prompt.name


@leak(
    "vibrantlabsai/ragas#926",
    "Filter.__init__.__defaults__[0].name",
    seen="Filter.__init__(prompt=)",
)
async def default_object(name: str) -> str:
    """A default prompt is every filter's."""
    return await _named(Filter(), name)


async def default_object_right(name: str) -> str:
    return await _named(Filter(Prompt()), name)


class Conversation:
    stopped: ClassVar[list[str]] = []

    async def hold(self, name: str) -> str:
        for _ in range(3):
            if self.stopped:
                return f"{name} was cut off"
            await pause()
        self.stopped.append(name)
        return f"{name} was heard"


class OwnConversation(Conversation):
    def __init__(self) -> None:
        self.stopped = []  # type: ignore[misc]


@leak("elevenlabs/elevenlabs-python#418", "Conversation.stopped", seen="Conversation.stopped")
async def flag_of_the_class(name: str) -> str:
    """Whether a conversation has ended is an attribute of the class."""
    return await Conversation().hold(name)


async def flag_of_the_class_right(name: str) -> str:
    return await OwnConversation().hold(name)


class Assistant:
    last_messages: list[str] | None = None

    async def run(self, prompt: str) -> str:
        messages = [prompt]
        self.last_messages = messages
        await pause()
        messages.append(f"re: {prompt}")
        return messages[-1]


ASSISTANT = Assistant()


@leak("pydantic/pydantic-ai#536", "ASSISTANT.last_messages", seen="ASSISTANT.last_messages")
async def last_messages(prompt: str) -> list[str]:
    """The messages of the last run are read from the agent."""
    await ASSISTANT.run(prompt)
    return list(ASSISTANT.last_messages or [])


async def last_messages_right(prompt: str) -> list[str]:
    return [prompt, await Assistant().run(prompt)]


class Tool:
    def __init__(self) -> None:
        self.retries = 0

    async def call(self, argument: str) -> str:
        for _ in range(2):
            self.retries += 1
            if self.retries > 2:
                raise RuntimeError("too many retries")
            await pause()
        self.retries = 0
        return argument


TOOL = Tool()


@leak("pydantic/pydantic-ai#1918", "TOOL.retries", seen="TOOL.retries")
async def retries_on_the_tool(argument: str) -> str:
    """The retries of all runs are counted on the tool."""
    return await TOOL.call(argument)


async def retries_on_the_tool_right(argument: str) -> str:
    return await Tool().call(argument)


def cached(function: Callable[[str], Awaitable[str]]) -> Callable[[str], Awaitable[str]]:
    answers: dict[str, str] = {}

    @functools.wraps(function)
    async def look_up(user: str) -> str:
        key = function.__name__
        if key not in answers:
            answers[key] = await function(user)
        return answers[key]

    return look_up


async def feed(user: str) -> str:
    await pause()
    return f"the feed of {user}"


cached_feed = cached(feed)


@leak("nensii21/devlink#1170", "answers['feed'] (local of cached)")
async def key_without_the_user(user: str) -> str:
    """A cache leaves the user out of its key."""
    return await cached_feed(user)


async def key_without_the_user_right(user: str) -> str:
    return await feed(user)


@functools.lru_cache(maxsize=1)
def prefix() -> list[str]:
    return ["system"]


@leak("sgl-project/sglang#26173", "prefix", seen="prefix")
async def cached_list(key: str) -> list[str]:
    """The list that a cache keeps is changed by who gets it."""
    keys = prefix()
    keys.append(key)
    await pause()
    return list(keys)


async def cached_list_right(key: str) -> list[str]:
    keys = [*prefix(), key]
    await pause()
    return keys


ctx = SimpleNamespace()


@leak("rorodata/firefly#70", "ctx.user", seen="ctx.user")
async def locals_not_cleared(user: str) -> str:
    """What a request keeps for its helpers is there for the next one, too."""
    if not hasattr(ctx, "user"):
        ctx.user = user
    await pause()
    return str(ctx.user)


async def locals_not_cleared_right(user: str) -> str:
    own = SimpleNamespace(user=user)
    await pause()
    return str(own.user)


class Manager:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    async def get(self, token: str) -> str:
        self.headers["authorization"] = token
        await pause()
        seen = self.headers.get("authorization", "nobody")
        self.headers.pop("authorization", None)
        return seen


MANAGER = Manager()


@leak(
    "marcospereirampj/python-keycloak#724",
    "MANAGER.headers['authorization']",
    seen="MANAGER.headers",
)
async def headers_of_one_call(token: str) -> str:
    """A header is put on the shared connection for one call, and taken off after it."""
    return await MANAGER.get(token)


async def headers_of_one_call_right(token: str) -> str:
    return await Manager().get(token)


LOCAL = threading.local()


@leak("NoneGG/aredis#119", "LOCAL.token", seen="LOCAL")
async def token_of_the_thread(token: str) -> str:
    """The token of a lock is kept per thread, and all tasks are in one."""
    LOCAL.token = token
    await pause()
    return str(LOCAL.token)


async def token_of_the_thread_right(token: str) -> str:
    await pause()
    return token


class Graph:
    stored_memories: ClassVar[list[str]] = []

    async def store(self, memory: str) -> int:
        self.stored_memories.append(memory)
        await pause()
        return len(self.stored_memories)


@leak("datarobot-oss/datarobot-genai#185", "Graph.stored_memories", seen="Graph.stored_memories")
async def memories_of_the_class(memory: str) -> int:
    """All instances store what they remember in one list of the class."""
    return await Graph().store(memory)


async def memories_of_the_class_right(memory: str) -> int:
    memories = [memory]
    await pause()
    return len(memories)


EXAMPLES = ["be polite"]


async def converse(message: str, history: list[str]) -> list[str]:
    messages = history or []
    messages.append(message)
    await pause()
    return list(messages)


@leak("NousResearch/hermes-agent#228", "EXAMPLES")
async def callers_history(message: str) -> list[str]:
    """A conversation appends to the list that its caller passed."""
    return await converse(message, EXAMPLES)


async def callers_history_right(message: str) -> list[str]:
    return await converse(message, list(EXAMPLES))


CONFIG = {"model": "small"}


async def create(config: dict[str, str], **options: str) -> str:
    config.update(options)
    await pause()
    return config["api_key"]


@leak("mem0ai/mem0#6428", "CONFIG['api_key']")
async def callers_config(key: str) -> str:
    """A factory merges one call's options into the configuration of all."""
    return await create(CONFIG, api_key=key)


async def callers_config_right(key: str) -> str:
    return await create(dict(CONFIG), api_key=key)


UPLOADS: dict[str, str] = {}


async def _convert(path: str, text: str) -> str:
    UPLOADS[path] = text
    await pause()
    text = UPLOADS.get(path, "not found")
    UPLOADS.pop(path, None)
    return text


@leak("datalab-to/marker#1018", "UPLOADS['report.pdf']", seen="UPLOADS")
async def one_name_for_uploads(text: str) -> str:
    """Two uploads of one file name overwrite and delete each other's file."""
    return await _convert("report.pdf", text)


async def one_name_for_uploads_right(text: str) -> str:
    return await _convert(f"report-{text}.pdf", text)


class Database:
    def __init__(self) -> None:
        self.busy = False

    async def fetch(self, query: str) -> str:
        if self.busy:
            raise RuntimeError("another operation is in progress")
        self.busy = True
        try:
            await pause()
        finally:
            self.busy = False
        return f"rows of {query}"


DATABASE, ONE_AT_A_TIME = Database(), trio.Lock()


@leak("encode/databases#81", "DATABASE.busy", seen="DATABASE.busy")
async def one_connection(query: str) -> str:
    """Two tasks query one connection at once."""
    return await DATABASE.fetch(query)


async def one_connection_right(query: str) -> str:
    async with ONE_AT_A_TIME:
        return await DATABASE.fetch(query)


@leak("python/cpython#130148", "sys.stdout", seen="contextlib.redirect_stdout")
async def redirected_prints(text: str) -> str:
    """What a tool prints is caught by redirecting the prints of the process."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        await pause()
        print(text)
    return out.getvalue()


async def redirected_prints_right(text: str) -> str:
    out = io.StringIO()
    await pause()
    print(text, file=out)
    return out.getvalue()


FOLDERS = {"ada": "/", "bob": "/usr", "cyd": "/etc"}


@leak("nteract/papermill#473", "os.getcwd()", seen="os.chdir")
async def current_folder(name: str) -> str:
    """A notebook is run in its folder by changing the folder of the process."""
    before = os.getcwd()
    os.chdir(FOLDERS[name])
    try:
        await pause()
        return os.getcwd()
    finally:
        os.chdir(before)


async def current_folder_right(name: str) -> str:
    folder = FOLDERS[name]
    await pause()
    return folder


api_key = ""


@leak("beyonic/beyonic-python#17", "api_key", seen="api_key")
async def key_of_the_module(key: str) -> str:
    """The key of a client is a global of its module."""
    global api_key
    api_key = key
    await pause()
    return f"sent with {api_key}"


async def key_of_the_module_right(key: str) -> str:
    await pause()
    return f"sent with {key}"


class Converter:
    @staticmethod
    def convert(text: str) -> str:
        return text


async def _with_patch(name: str) -> str:
    before = Converter.convert
    Converter.convert = lambda text: f"{name}({before(text)})"  # type: ignore[method-assign]
    try:
        await pause()
        return Converter.convert("text")
    finally:
        Converter.convert = before  # type: ignore[method-assign]


@leak("TencentCloudADP/youtu-agent#253", "Converter.convert", seen="Converter.convert")
async def patch_of_a_call(name: str) -> str:
    """A function is replaced for the time of one call."""
    return await _with_patch(name)


async def patch_of_a_call_right(name: str) -> str:
    await pause()
    return f"{name}({Converter.convert('text')})"


class ChatApp:
    current_model = ""

    async def answer(self, model: str) -> str:
        self.current_model = model
        await pause()
        return f"answered by {self.current_model}"


CHAT_APP = ChatApp()


@leak("archi-physics/archi#512", "CHAT_APP.current_model", seen="CHAT_APP.current_model")
async def model_of_the_app(model: str) -> str:
    """The model that one user has chosen is everybody's."""
    return await CHAT_APP.answer(model)


async def model_of_the_app_right(model: str) -> str:
    return await ChatApp().answer(model)


class Caller:
    def __init__(self) -> None:
        self.max_tokens = 10

    async def call(self, prompt: str) -> str:
        limit = self.max_tokens
        await pause()
        if limit < 20:
            self.max_tokens = 2 * limit
        return f"{prompt}: {limit}"


CALLER = Caller()


@leak("NVIDIA/NeMo-Agent-Toolkit#1757", "CALLER.max_tokens", seen="CALLER.max_tokens")
async def limit_after_a_retry(prompt: str) -> str:
    """The larger limit that one request needed stays for the next ones."""
    return await CALLER.call(prompt)


async def limit_after_a_retry_right(prompt: str) -> str:
    return await Caller().call(prompt)


@leak("python/cpython#128384", "warnings.filters", seen="warnings.catch_warnings")
async def silenced_warnings(name: str) -> str:
    """Warnings are silenced across a wait, and stay so for others."""
    with warnings.catch_warnings():
        warnings.simplefilter("error" if name == "ada" else "ignore")
        await pause()
        try:
            warnings.warn(name, UserWarning, stacklevel=1)
        except UserWarning:
            return f"{name} was warned"
    return f"{name} was not"


async def silenced_warnings_right(name: str) -> str:
    await pause()
    return f"{name} was warned" if name == "ada" else f"{name} was not"


@leak("numpy/numpy#32059", "random", seen="random.seed")
async def seed_of_the_process(name: str) -> float:
    """A run seeds the random numbers of all."""
    random.seed(name)
    await pause()
    return random.random()


async def seed_of_the_process_right(name: str) -> float:
    own = random.Random(name)
    await pause()
    return own.random()


class Wire:
    """Frames of a head and a body, which must not be torn apart."""

    def __init__(self) -> None:
        self.sent: deque[str] = deque()

    async def send(self, text: str) -> str:
        self.sent.append(f"<{text}>")
        await pause()
        self.sent.append(text)
        return self.sent.popleft() + self.sent.popleft()


WIRE, TORN_WIRE, SENDING = Wire(), Wire(), trio.Lock()


@leak("python-trio/trio#328", "WIRE.sent", seen="WIRE.sent")
async def interleaved_frames(text: str) -> str:
    """Two tasks write to one stream, and their frames are mixed."""
    return await WIRE.send(text)


async def interleaved_frames_right(text: str) -> str:
    async with SENDING:
        with trio.CancelScope(shield=True):
            received = await WIRE.send(text)
    return received


@leak("ethereum/lahja#126", "TORN_WIRE.sent")
async def frame_torn_by_a_cancel(text: str) -> str:
    """A cancel leaves half a frame on the wire, and the next one is garbled."""
    async with SENDING:
        return await TORN_WIRE.send(text)


async def frame_torn_by_a_cancel_right(text: str) -> str:
    async with SENDING:
        with trio.CancelScope(shield=True):
            received = await TORN_WIRE.send(text)
    return received


class HTTPConnection:
    def __init__(self) -> None:
        self.state = "idle"
        self.turn = trio.Lock()

    async def request(self, url: str, *, reset: bool) -> str:
        async with self.turn:
            if self.state != "idle":
                raise RuntimeError(f"the connection is {self.state}")
            self.state = "active"
            try:
                await pause()
            except trio.Cancelled:
                self.state = "idle" if reset else self.state
                raise
            self.state = "idle"
            return f"200 for {url}"


CONNECTION = HTTPConnection()


@leak("encode/httpcore#785", "CONNECTION.state")
async def active_for_ever(url: str) -> str:
    """A cancelled request leaves the connection active, and nobody can use it."""
    return await CONNECTION.request(url, reset=False)


async def active_for_ever_right(url: str) -> str:
    return await CONNECTION.request(url, reset=True)


class HTTPPool:
    def __init__(self) -> None:
        self.free = 1

    async def request(self, url: str, *, gives_back: bool) -> str:
        with trio.fail_after(30):
            while not self.free:  # noqa: ASYNC110 - as simple as can be
                await trio.sleep(1)
        self.free -= 1
        try:
            await pause()
        except trio.Cancelled:
            self.free += gives_back
            raise
        self.free += 1
        return f"200 for {url}"


SMALL_POOL = HTTPPool()


@leak("encode/httpcore#1093", "SMALL_POOL.free")
async def slot_kept_by_a_cancel(url: str) -> str:
    """A request that is cancelled while it connects never gives back its slot."""
    return await SMALL_POOL.request(url, gives_back=False)


async def slot_kept_by_a_cancel_right(url: str) -> str:
    return await SMALL_POOL.request(url, gives_back=True)


async def _stream(*, keeps_item: bool) -> None:
    """Read an item, be told to stop, and read once more."""
    unread: list[int] = []
    received: list[int] = []
    arrived = trio.Event()
    scopes = [trio.CancelScope(), trio.CancelScope()]

    async def reader() -> None:
        for scope in scopes:
            with scope:
                await arrived.wait()
                item = unread.pop()
                if not keeps_item:
                    await pause()
                received.append(item)
                return

    async def writer() -> None:
        await pause()
        unread.append(1)
        arrived.set()

    async def stopper() -> None:
        await pause(2)
        scopes[0].cancel()

    async with trio.open_nursery() as nursery:
        for task in (reader, writer, stopper):
            nursery.start_soon(task)
    assert received == [1]


@leak("agronholm/anyio#146", "unread (local of _stream)")
async def item_lost_by_a_cancel() -> None:
    """An item is handed to a receiver whose time has run out."""
    await _stream(keeps_item=False)


async def item_lost_by_a_cancel_right() -> None:
    await _stream(keeps_item=True)


class Limiter:
    def __init__(self, *, passes_on: bool) -> None:
        self.free = 1
        self.line: deque[trio.Event] = deque()
        self.passes_on = passes_on

    def leave(self) -> None:
        if self.line:
            self.line.popleft().set()
        else:
            self.free += 1

    async def work(self, patience: float) -> None:
        with trio.move_on_after(patience):
            if self.free:
                self.free -= 1
            else:
                self.line.append(turn := trio.Event())
                try:
                    await turn.wait()
                    await pause()
                except trio.Cancelled:
                    if turn in self.line:
                        self.line.remove(turn)
                    elif self.passes_on:
                        self.leave()
                    raise
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            self.leave()


async def _limited(limiter: Limiter) -> None:
    async with trio.open_nursery() as nursery:
        for patience in (5, 1, 50):
            nursery.start_soon(limiter.work, patience)
    assert limiter.free == 1


@leak("agronholm/anyio#947", "Limiter.line (local of _limited)")
async def token_lost_by_a_cancel() -> None:
    """A waiter that is cancelled as it is handed a token loses it for all."""
    await _limited(Limiter(passes_on=False))


async def token_lost_by_a_cancel_right() -> None:
    await _limited(Limiter(passes_on=True))


async def _send_twice(*, counts: bool) -> None:
    """Two senders wait until a writer has sent what is pending."""
    pending: list[str] = []
    sent: list[str] = []
    work, done = trio.Event(), trio.Event()

    async def send(text: str) -> None:
        pending.append(text)
        work.set()
        while True:
            await done.wait()
            if not counts or text in sent:
                break
            await trio.sleep(1)
        assert text in sent

    async def write() -> None:
        nonlocal work
        while len(sent) < 2:
            await work.wait()
            texts = list(pending)
            pending.clear()
            await pause()
            sent.extend(texts)
            if not counts or not pending:
                work = trio.Event()
            done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for text in ("a", "b"):
            nursery.start_soon(send, text)


@leak("python-trio/trio-websocket#12", "pending (local of _send_twice)")
async def reported_as_sent() -> None:
    """A sender goes on when another one's message was sent, and the writer forgets its own."""
    await _send_twice(counts=False)


async def reported_as_sent_right() -> None:
    await _send_twice(counts=True)
