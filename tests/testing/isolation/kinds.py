"""Small agents, each with one kind of state that runs share by accident, and each corrected.

A kind is a pair of functions, ``NAME`` and ``NAME_fixed``. What the leaky one shares hangs at the
path that `KINDS` says, in this module unless the path says otherwise.
"""

import contextlib
import contextvars
import functools
import io
import itertools
import logging
import os
import random
import threading
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import attrs
import trio
import trio.lowlevel

from harness import RunLocal
from tests.testing.isolation import library

Agent = Callable[[Any], Awaitable[Any]]


async def pause(times: int = 1) -> None:
    for _ in range(times):
        await trio.lowlevel.checkpoint()


# A list on the class -----------------------------------------------------------------------------


class Chat:
    messages: ClassVar[list[str]] = []

    async def ask(self, question: str) -> list[str]:
        self.messages.clear()
        self.messages.append(question)
        await pause()
        self.messages.append(f"re:{question}")
        return list(self.messages)


async def class_list(question: str) -> list[str]:
    return await Chat().ask(question)


class FixedChat:
    def __init__(self) -> None:
        self.messages: list[str] = []

    async def ask(self, question: str) -> list[str]:
        self.messages.append(question)
        await pause()
        self.messages.append(f"re:{question}")
        return list(self.messages)


async def class_list_fixed(question: str) -> list[str]:
    return await FixedChat().ask(question)


# A class attribute that is bound anew ------------------------------------------------------------


class Session:
    current: ClassVar[str | None] = None

    @classmethod
    async def work(cls, user: str) -> str:
        cls.current = user
        await pause()
        return f"for {cls.current}"


async def class_binding(user: str) -> str:
    return await Session.work(user)


async def class_binding_fixed(user: str) -> str:
    current = user
    await pause()
    return f"for {current}"


# Default arguments -------------------------------------------------------------------------------


async def keyword_default(name: str, *, seen: dict[str, int] = {}) -> int:  # noqa: B006
    seen[name] = len(seen)
    await pause()
    return len(seen)


async def keyword_default_fixed(name: str, *, seen: dict[str, int] | None = None) -> int:
    seen = {} if seen is None else seen
    seen[name] = len(seen)
    await pause()
    return len(seen)


# Globals -----------------------------------------------------------------------------------------

_spent = 0


async def global_number(amount: str) -> int:
    global _spent
    before = _spent
    await pause()
    _spent = before + len(amount)
    result = _spent - before
    await pause()
    result = _spent - before
    _spent = before
    return result


_spent_by_run = RunLocal(lambda: 0)


async def global_number_fixed(amount: str) -> int:
    _spent_by_run.set(_spent_by_run.get() + len(amount))
    await pause()
    return _spent_by_run.get()


STATE = {"current": ""}


async def global_dict(ticket: str) -> str:
    STATE["current"] = ticket
    await pause()
    return STATE["current"]


async def global_dict_fixed(ticket: str) -> str:
    state = {"current": ticket}
    await pause()
    return state["current"]


class Client:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    async def send(self, text: str) -> str:
        await pause()
        return f"{self.headers['user']}:{text}"


_client: Client | None = None


async def lazy_client(user: str) -> str:
    global _client
    if _client is None:
        _client = Client()
    _client.headers["user"] = user
    return await _client.send("hello")


async def lazy_client_fixed(user: str) -> str:
    client = Client()
    client.headers["user"] = user
    return await client.send("hello")


# Caches ------------------------------------------------------------------------------------------


@functools.lru_cache
def history() -> list[str]:
    return []


async def cached_list(text: str) -> list[str]:
    history().append(text)
    await pause()
    return list(history())


@functools.lru_cache
def upper(text: str) -> str:
    return text.upper()


async def cached_list_fixed(text: str) -> list[str]:
    await pause()
    return [upper(text)]


@functools.lru_cache
def drafts() -> list[str]:
    return []


async def cached_list_at_once(text: str) -> list[str]:
    drafts().clear()
    drafts().append(text)
    await pause()
    return list(drafts())


async def cached_list_at_once_fixed(text: str) -> list[str]:
    await pause()
    return list(upper(text))


def remembered(function: Callable[[str, str], Awaitable[str]]) -> Callable[[str, str], Any]:
    answers: dict[str, str] = {}

    @functools.wraps(function)
    async def remembering(user: str, question: str) -> str:
        if question not in answers:
            answers[question] = await function(user, question)
        return answers[question]

    return remembering


@remembered
async def look_up(user: str, question: str) -> str:
    await pause()
    return f"the {question} of {user}"


async def cached_by_the_wrong_key(user: str) -> str:
    return str(await look_up(user, "balance"))


@remembered
async def look_up_all(user: str, question: str) -> str:
    await pause()
    return f"the {question}"


async def cached_by_the_wrong_key_fixed(user: str) -> str:
    return str(await look_up_all(user, f"balance of {user}"))


# Context variables -------------------------------------------------------------------------------

NOTES: contextvars.ContextVar[list[str]] = contextvars.ContextVar("NOTES", default=[])  # noqa: B039


async def context_default(text: str) -> list[str]:
    NOTES.get().append(text)
    await pause()
    return list(NOTES.get())


async def context_default_fixed(text: str) -> list[str]:
    NOTES.set([text])
    await pause()
    return list(NOTES.get())


THREADS = threading.local()


async def thread_local(user: str) -> str:
    THREADS.user = user
    await pause()
    return str(THREADS.user)


async def thread_local_fixed(user: str) -> str:
    THREADS.user = user
    seen = str(THREADS.user)
    await pause()
    return seen


# The process -------------------------------------------------------------------------------------


async def global_random(seed: str) -> list[int]:
    random.seed(seed)
    first = random.randrange(1_000_000)
    await pause()
    return [first, random.randrange(1_000_000)]


async def global_random_fixed(seed: str) -> list[int]:
    generator = random.Random(seed)
    first = generator.randrange(1_000_000)
    await pause()
    return [first, generator.randrange(1_000_000)]


async def environment(user: str) -> str | None:
    os.environ["HARNESS_TEST_USER"] = user
    await pause()
    return os.environ.get("HARNESS_TEST_USER")


async def environment_fixed(user: str) -> str | None:
    variables = {**os.environ, "HARNESS_TEST_USER": user}
    await pause()
    return variables.get("HARNESS_TEST_USER")


async def library_setting(key: str) -> str:
    library.api_key = key
    await pause()
    return library.call()


async def library_setting_fixed(key: str) -> str:
    await pause()
    return f"called with {key}"


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


LOG = logging.getLogger("tests.testing.isolation.bots")
LOG.setLevel(logging.INFO)
LOG.propagate = False


async def log_handlers(user: str) -> list[str]:
    mine = Lines()
    LOG.addHandler(mine)
    LOG.info("%s asks", user)
    await pause()
    LOG.removeHandler(mine)
    return mine.lines


async def log_handlers_fixed(user: str) -> list[str]:
    LOG.info("%s asks", user)
    await pause()
    return [f"{user} asks"]


async def captured_output(user: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as captured:
        await pause()
        print(user)
    return captured.getvalue()


async def captured_output_fixed(user: str) -> str:
    captured = io.StringIO()
    await pause()
    print(user, file=captured)
    return captured.getvalue()


BUFFER = io.StringIO()


async def shared_file_in_memory(text: str) -> str:
    BUFFER.seek(0)
    BUFFER.truncate()
    BUFFER.write(text)
    await pause()
    BUFFER.write("!")
    return BUFFER.getvalue()


async def shared_file_in_memory_fixed(text: str) -> str:
    buffer = io.StringIO(text)
    buffer.seek(0, io.SEEK_END)
    await pause()
    buffer.write("!")
    return buffer.getvalue()


class Notes(NamedTuple):
    lines: list[str]


SCRATCH = Notes([])


async def named_tuple_with_list(text: str) -> list[str]:
    SCRATCH.lines[:] = [text]
    await pause()
    return list(SCRATCH.lines)


async def named_tuple_with_list_fixed(text: str) -> list[str]:
    notes = Notes([text])
    await pause()
    return list(notes.lines)


# Objects of other people's classes ---------------------------------------------------------------

NAMESPACE = SimpleNamespace(user="")


async def namespace(user: str) -> str:
    NAMESPACE.user = user
    await pause()
    return str(NAMESPACE.user)


async def namespace_fixed(user: str) -> str:
    mine = SimpleNamespace(user=user)
    await pause()
    return str(mine.user)


SETTINGS: "UserDict[str, str]" = UserDict()


async def user_dict(user: str) -> str:
    SETTINGS["user"] = user
    await pause()
    return SETTINGS["user"]


async def user_dict_fixed(user: str) -> str:
    await pause()
    return user


SHARED_CLIENT = library.Client()


async def foreign_client(user: str) -> str:
    return await SHARED_CLIENT.ask(user)


async def foreign_client_fixed(user: str) -> str:
    return await library.Client().ask(user)


# Slots and frozen things -------------------------------------------------------------------------


@dataclass(slots=True)
class Cursor:
    place: str = ""


CURSOR = Cursor()


async def slotted(name: str) -> str:
    CURSOR.place = name
    await pause()
    return CURSOR.place


async def slotted_fixed(name: str) -> str:
    cursor = Cursor(name)
    await pause()
    return cursor.place


@attrs.frozen
class Config:
    tags: list[str] = attrs.field(factory=list)


CONFIG = Config()


async def frozen_with_list(tag: str) -> list[str]:
    CONFIG.tags[:] = [tag]
    await pause()
    return list(CONFIG.tags)


async def frozen_with_list_fixed(tag: str) -> list[str]:
    config = attrs.evolve(CONFIG, tags=[*CONFIG.tags, tag])
    await pause()
    return list(config.tags)


# Containers --------------------------------------------------------------------------------------


@dataclass
class Store:
    line: deque[str] = field(default_factory=deque)
    names: set[str] = field(default_factory=set)
    bytes_read: bytearray = field(default_factory=bytearray)
    by_user: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    order: OrderedDict[str, int] = field(default_factory=OrderedDict)
    votes: "Counter[str]" = field(default_factory=Counter)


STORE = Store()


async def shared_deque(text: str) -> str:
    STORE.line.append(text)
    await pause(2)
    return STORE.line.pop()


async def shared_deque_fixed(text: str) -> str:
    STORE.line.append(text)
    await pause(2)
    STORE.line.remove(text)
    return text


async def shared_set(text: str) -> list[str]:
    STORE.names.clear()
    STORE.names.add(text)
    await pause()
    return sorted(STORE.names)


async def shared_set_fixed(text: str) -> list[str]:
    STORE.names.add(text)
    await pause()
    return [text] if text in STORE.names else []


async def shared_buffer(text: str) -> str:
    STORE.bytes_read[:] = b""
    for letter in text:
        STORE.bytes_read.extend(letter.encode())
        await pause()
    return STORE.bytes_read.decode()


async def shared_buffer_fixed(text: str) -> str:
    read = bytearray()
    for letter in text:
        read.extend(letter.encode())
        await pause()
    return read.decode()


async def shared_groups(text: str) -> int:
    STORE.by_user["anybody"].append(text)
    await pause()
    return len(STORE.by_user.pop("anybody", []))


async def shared_groups_fixed(text: str) -> int:
    STORE.by_user[text].append(text)
    await pause()
    return len(STORE.by_user.pop(text, []))


async def shared_votes(text: str) -> int:
    STORE.votes[text] += 1
    await pause()
    total = STORE.votes.total()
    del STORE.votes[text]
    return total


async def shared_votes_fixed(text: str) -> int:
    votes = Counter([text])
    await pause()
    return votes.total()


# Functions ---------------------------------------------------------------------------------------


async def function_attribute(user: str) -> str:
    function_attribute.user = user  # type: ignore[attr-defined]
    await pause()
    return str(function_attribute.user)  # type: ignore[attr-defined]


async def function_attribute_fixed(user: str) -> str:
    await pause()
    return user


def make_closure() -> tuple[Agent, Agent]:
    turns: list[str] = []

    async def leaky(text: str) -> list[str]:
        turns[:] = [text]
        await pause()
        return list(turns)

    async def right(text: str) -> list[str]:
        own = [text]
        await pause()
        return list(own)

    return leaky, right


closure, closure_fixed = make_closure()


def make_nonlocal() -> tuple[Agent, Agent]:
    current = ""

    async def leaky(text: str) -> str:
        nonlocal current
        current = text
        await pause()
        return current

    async def right(text: str) -> str:
        await pause()
        return text

    return leaky, right


closure_variable, closure_variable_fixed = make_nonlocal()

_numbers = itertools.count(1)


async def counter(text: str) -> str:
    number = next(_numbers)
    await pause()
    return f"{text}-{number}"


async def counter_fixed(text: str) -> str:
    numbers = itertools.count(1)
    await pause()
    return f"{text}-{next(numbers)}"


# Cancellation ------------------------------------------------------------------------------------

SLOTS = trio.Semaphore(1)


async def lost_slot(text: str) -> str:
    await SLOTS.acquire()
    await pause()
    SLOTS.release()
    return text


async def lost_slot_fixed(text: str) -> str:
    async with SLOTS:
        await pause()
        return text


class Wire:
    """A connection on which each request is answered by one reply, in order."""

    def __init__(self) -> None:
        self.replies: deque[str] = deque()

    async def call(self, request: str) -> str:
        self.replies.append(f"re:{request}")
        await pause(2)
        return self.replies.popleft()


class Pool:
    def __init__(self) -> None:
        self.wire = Wire()
        self.free = trio.Semaphore(1)


POOL = Pool()


async def unread_reply(request: str) -> str:
    async with POOL.free:
        return await POOL.wire.call(request)


CAREFUL_POOL = Pool()


async def unread_reply_fixed(request: str) -> str:
    async with CAREFUL_POOL.free:
        try:
            return await CAREFUL_POOL.wire.call(request)
        except trio.Cancelled:
            CAREFUL_POOL.wire = Wire()  # Its reply is still to come, and is nobody's.
            raise


class Flag:
    busy = False


async def flag_left_set(text: str) -> str:
    if Flag.busy:
        return "busy"
    Flag.busy = True
    for letter in text:
        Flag.busy = False
        await pause()
        Flag.busy = letter == text[0]
        if Flag.busy:
            await pause()
            Flag.busy = False
    return text


async def flag_left_set_fixed(text: str) -> str:
    await pause()
    return text


_requests, _replies = trio.open_memory_channel[str](8)


async def shared_channel(text: str) -> str:
    await _requests.send(text)
    return f"re:{await _replies.receive()}"


async def shared_channel_fixed(text: str) -> str:
    requests, replies = trio.open_memory_channel[str](1)
    with requests, replies:
        await requests.send(text)
        return f"re:{await replies.receive()}"


# Waiting for each other --------------------------------------------------------------------------

FLIGHTS: dict[str, trio.Event] = {}
LOADED: dict[str, str] = {}


async def shared_flight(text: str) -> str:
    """Whoever comes first loads for all; if that one is cancelled, the others wait for ever."""
    if "key" in FLIGHTS:
        await FLIGHTS["key"].wait()
    if "key" not in LOADED:
        FLIGHTS["key"] = trio.Event()
        await pause(2)
        LOADED["key"] = "value"
        FLIGHTS.pop("key").set()
    return LOADED["key"] + text


async def shared_flight_fixed(text: str) -> str:
    await pause(2)
    return "value" + text


LEFT = trio.Lock()
RIGHT = trio.Lock()


async def two_locks(text: str) -> str:
    first, second = (LEFT, RIGHT) if len(text) % 2 else (RIGHT, LEFT)
    async with first:
        await pause()
        async with second:
            return text


async def two_locks_fixed(text: str) -> str:
    async with LEFT:
        await pause()
        async with RIGHT:
            return text


class Gate:
    """A semaphore made by hand. A place goes with its waiter, who may be cancelled."""

    def __init__(self) -> None:
        self.free = 1
        self.line: deque[trio.Event] = deque()

    async def enter(self) -> None:
        if self.free:
            self.free -= 1
            return
        event = trio.Event()
        self.line.append(event)
        await event.wait()
        await pause()

    def leave(self) -> None:
        if self.line:
            self.line.popleft().set()
        else:
            self.free += 1


GATE = Gate()


async def lost_wakeup(text: str) -> str:
    await GATE.enter()
    try:
        await pause()
    finally:
        GATE.leave()
    return text


async def lost_wakeup_fixed(text: str) -> str:
    async with SLOTS:
        await pause()
    return text


# Endings -----------------------------------------------------------------------------------------


class Link:
    is_open = True


LINK = Link()


async def closed_by_the_first(text: str) -> str:
    try:
        await pause()
        return text if LINK.is_open else "closed"
    finally:
        LINK.is_open = False


async def closed_by_the_first_fixed(text: str) -> str:
    link = Link()
    try:
        await pause()
        return text if link.is_open else "closed"
    finally:
        link.is_open = False


class Cancels:
    seen = False


async def cancel_flag(text: str) -> str:
    try:
        await trio.sleep(1)
    except trio.Cancelled:
        Cancels.seen = True
        raise
    await trio.sleep(1)
    return "cancelled" if Cancels.seen else text


async def cancel_flag_fixed(text: str) -> str:
    seen = False
    try:
        await trio.sleep(1)
    except trio.Cancelled:
        seen = True
        raise
    await trio.sleep(1)
    return "cancelled" if seen else text


TURNS: list[str] = []


async def rolled_back(text: str) -> str:
    length = len(TURNS)
    TURNS.append(text)
    await pause()
    mine = TURNS[length:]
    del TURNS[length:]
    return "".join(mine)


async def rolled_back_fixed(text: str) -> str:
    turns = [text]
    await pause()
    return "".join(turns)


# Outputs and inputs ------------------------------------------------------------------------------

DRAFT: list[str] = []


async def returned_list(text: str) -> list[str]:
    await pause()
    DRAFT[:] = [text]
    return DRAFT


async def returned_list_fixed(text: str) -> list[str]:
    await pause()
    return [text]


# A look that is stale ----------------------------------------------------------------------------


class Issuer:
    def __init__(self) -> None:
        self.valid = ""
        self.issued = 0

    async def issue(self) -> str:
        self.issued += 1
        self.valid = token = f"t{self.issued}"
        await pause()
        return token


class Tokens:
    def __init__(self) -> None:
        self.issuer = Issuer()
        self.token = ""

    async def get(self) -> str:
        if not self.token:
            self.token = await self.issuer.issue()
        return self.token

    async def ask(self, text: str) -> str:
        token = await self.get()
        await pause()
        return text if token == self.issuer.valid else "refused"


TOKENS = Tokens()


async def two_refreshes(text: str) -> str:
    return await TOKENS.ask(text)


class CarefulTokens(Tokens):
    def __init__(self) -> None:
        super().__init__()
        self.lock = trio.Lock()

    async def get(self) -> str:
        async with self.lock:
            return await super().get()


CAREFUL_TOKENS = CarefulTokens()


async def two_refreshes_fixed(text: str) -> str:
    return await CAREFUL_TOKENS.ask(text)


# Two things together -----------------------------------------------------------------------------


class Pair:
    def __init__(self) -> None:
        self.first = ""
        self.second = ""


PAIR = Pair()


async def two_attributes(text: str) -> str:
    PAIR.first = text
    PAIR.second = text
    await pause()
    return f"{PAIR.first}{PAIR.second}"


async def two_attributes_fixed(text: str) -> str:
    pair = Pair()
    pair.first = pair.second = text
    await pause()
    return f"{pair.first}{pair.second}"


HERE = __name__

KINDS: dict[str, tuple[str, ...]] = {
    "class_list": (f"{HERE}.Chat.messages",),
    "class_binding": (f"{HERE}.Session.current",),
    "keyword_default": (f"{HERE}.keyword_default.__kwdefaults__['seen']",),
    "global_number": (f"{HERE}._spent",),
    "global_dict": (f"{HERE}.STATE['current']",),
    "lazy_client": (f"{HERE}._client",),
    "cached_list": (f"{HERE}.history",),
    "cached_list_at_once": (f"{HERE}.drafts",),
    "cached_by_the_wrong_key": ("answers['balance'] (local of remembered)",),
    "context_default": (f"{HERE}.NOTES.get()",),
    "thread_local": (f"{HERE}.THREADS.user",),
    "global_random": ("random",),
    "environment": ("os.environ['HARNESS_TEST_USER']",),
    "log_handlers": (f"{HERE}.LOG.handlers",),
    "captured_output": ("sys.stdout",),
    "shared_file_in_memory": (f"{HERE}.BUFFER",),
    "named_tuple_with_list": (f"{HERE}.SCRATCH.lines",),
    "library_setting": ("tests.testing.isolation.library.api_key",),
    "namespace": (f"{HERE}.NAMESPACE.user",),
    "user_dict": (f"{HERE}.SETTINGS.data['user']",),
    "foreign_client": (f"{HERE}.SHARED_CLIENT",),
    "slotted": (f"{HERE}.CURSOR.place",),
    "frozen_with_list": (f"{HERE}.CONFIG.tags",),
    "shared_deque": (f"{HERE}.STORE.line",),
    "shared_set": (f"{HERE}.STORE.names",),
    "shared_buffer": (f"{HERE}.STORE.bytes_read",),
    "shared_groups": (f"{HERE}.STORE.by_user['anybody']",),
    "shared_votes": (f"{HERE}.STORE.votes",),
    "function_attribute": (f"{HERE}.function_attribute.user",),
    "closure": ("turns (local of make_closure)",),
    "closure_variable": ("current (local of make_nonlocal)",),
    "counter": (f"{HERE}._numbers",),
    "lost_slot": (f"{HERE}.SLOTS",),
    "unread_reply": (f"{HERE}.POOL.wire.replies",),
    "shared_flight": (f"{HERE}.FLIGHTS['key']",),
    "two_locks": (f"{HERE}.LEFT", f"{HERE}.RIGHT"),
    "lost_wakeup": (f"{HERE}.GATE.free",),
    "closed_by_the_first": (f"{HERE}.LINK.is_open",),
    "cancel_flag": (f"{HERE}.Cancels.seen",),
    "rolled_back": (f"{HERE}.TURNS",),
    "flag_left_set": (f"{HERE}.Flag.busy",),
    "shared_channel": (f"{HERE}._requests",),
    # A private count of tokens would hide it: then two tokens have the same name.
    "two_refreshes": (f"{HERE}.TOKENS.issuer.issued", f"{HERE}.TOKENS.token"),
    "returned_list": (f"{HERE}.DRAFT",),
    "two_attributes": (f"{HERE}.PAIR.first", f"{HERE}.PAIR.second"),
}
"""The objects that a report must name, by the name of the leaky agent."""

INPUTS = ["ab", "cd", "efg"]
