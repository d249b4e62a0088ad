"""Programs whose calls share something, each with its twin, in which they share nothing.

Seven are faults that were reported of real programs, as modules that know of no test.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Program:
    """A module with a fault, and what to change so that it has none."""

    target: str
    """The function that a test is written for."""

    text: str
    fault: str
    """A part of the text."""

    correction: str
    """What the twin has in its place."""

    @property
    def corrected(self) -> str:
        assert self.text.count(self.fault) == 1
        return self.text.replace(self.fault, self.correction)


PROGRAMS = {
    "unread_reply": Program(
        "agent",
        """\
import collections
import trio

class Connection:
    def __init__(self):
        self.replies = collections.deque()

    async def call(self, question):
        self.replies.append(f"re:{question}")
        await self.wait()
        return self.replies.popleft()

    async def wait(self):
        await trio.sleep(0)
        await trio.sleep(0)

CONNECTION = Connection()
FREE = trio.Semaphore(1)
INPUTS = ["a", "b"]

async def agent(question):
    async with FREE:
        return await CONNECTION.call(question)
""",
        "        await self.wait()\n",
        "        try:\n            await self.wait()\n"
        "        except BaseException:\n            self.replies.clear()\n            raise\n",
    ),
    "active_run": Program(
        "Agent.handle",
        """\
import trio

class Agent:
    async def handle(self, number: int) -> int:
        self.active = number
        await trio.sleep(0)
        return self.active
""",
        "        return self.active",
        "        return number",
    ),
    "default_tools": Program(
        "agent",
        """\
import trio

class Agent:
    def __init__(self, tools=[]):
        self.tools = tools

async def agent(name: str) -> list[str]:
    made = Agent()
    made.tools.append(name)
    await trio.sleep(0)
    return list(made.tools)
""",
        "self.tools = tools",
        "self.tools = list(tools)",
    ),
    "token_refresh": Program(
        "Provider.chat",
        """\
import trio

class Server:
    def __init__(self):
        self.issued = 0

    async def issue(self):
        self.issued += 1
        token = self.issued
        await trio.sleep(0)
        return token

class Provider:
    def __init__(self):
        self.server = Server()
        self.token = None
        self.lock = trio.Lock()

    async def refresh(self):
        if self.token is None:
            self.token = await self.server.issue()
        return self.token

    async def chat(self, text):
        token = await self.refresh()
        await trio.sleep(0)
        if token != self.server.issued:
            raise RuntimeError("401")
        return text
""",
        "        token = await self.refresh()",
        "        async with self.lock:\n            token = await self.refresh()",
    ),
    "lost_wakeup": Program(
        "scenario",
        """\
import collections
import trio

class Gate:
    def __init__(self):
        self.free = True
        self.line = collections.deque()

    async def enter(self):
        if self.free:
            self.free = False
            return
        turn = trio.Event()
        self.line.append(turn)
        await turn.wait()
        await trio.sleep(0)

    def leave(self):
        if self.line:
            self.line.popleft().set()
        else:
            self.free = True

async def scenario():
    gate, scope, entered = Gate(), trio.CancelScope(), []

    async def holder():
        await gate.enter()
        await trio.sleep(0)
        gate.leave()

    async def gives_up():
        with scope:
            await gate.enter()
            gate.leave()

    async def last():
        await gate.enter()
        entered.append("last")
        gate.leave()

    async def stop():
        await trio.sleep(0)
        scope.cancel()

    async with trio.open_nursery() as nursery:
        for task in (holder, gives_up, last, stop):
            nursery.start_soon(task)
    return entered

def check(entered):
    assert entered == ["last"]
""",
        "        await turn.wait()\n        await trio.sleep(0)\n",
        "        with trio.CancelScope(shield=True):\n            await turn.wait()\n",
    ),
    "rollback": Program(
        "scenario",
        """\
import trio

async def turn(history, text, fails):
    began = len(history)
    history.append(text)
    await trio.sleep(0)
    if fails:
        undo(history, began, text)

def undo(history, began, text):
    del history[began:]

async def scenario():
    history = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn, history, "A", True)
        nursery.start_soon(turn, history, "B", False)
    return history

def check(history):
    assert history == ["B"]
""",
        "del history[began:]",
        "history.remove(text)",
    ),
    "workspace": Program(
        "agent",
        """\
import trio

workspace = None
INPUTS = ["/a", "/b"]

async def write(name, folder):
    await trio.sleep(0)
    return f"{folder or workspace}/{name}"

async def agent(folder):
    global workspace
    workspace = folder
    return [await write("one", None), await write("two", None)]
""",
        """[await write("one", None), await write("two", None)]""",
        """[await write("one", folder), await write("two", folder)]""",
    ),
    "asyncio_arguments": Program(
        "translate",
        """\
import asyncio
import enum

class Tongue(enum.Enum):
    FRENCH = "fr"
    GERMAN = "de"

last = {}

async def translate(text: str, *, to: Tongue, glossary: dict[str, int] | None):
    last["to"] = to
    await asyncio.sleep(0.1)
    return text, last["to"], glossary
""",
        'last["to"], glossary',
        "to, glossary",
    ),
    "asyncio_stream": Program(
        "Desk.words",
        """\
import asyncio
from collections.abc import AsyncIterator

class Desk:
    def __init__(self, name: str, *, most: int) -> None:
        self.rest: list[str] = []

    async def words(self, text: str) -> AsyncIterator[str]:
        self.rest = rest = [text, text]
        while self.rest:
            await asyncio.sleep(0)
            yield self.rest.pop()
""",
        "        while self.rest:\n            await asyncio.sleep(0)\n"
        "            yield self.rest.pop()",
        "        while rest:\n            await asyncio.sleep(0)\n            yield rest.pop()",
    ),
    "thread_method": Program(
        "Ledger.book",
        """\
class Ledger:
    def __init__(self):
        self.amount = 0

    def book(self, amount: int, currency: str) -> str:
        self.amount = amount
        return f"{self.amount} {currency}"
""",
        "{self.amount} {currency}",
        "{amount} {currency}",
    ),
    "thread_program": Program(
        "count",
        """\
import threading

def count():
    counts = [0]
    lock = threading.Lock()

    def one():
        counts[0] += 1

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts[0]

def check(counted):
    assert counted == 2
""",
        "        counts[0] += 1",
        "        with lock:\n            counts[0] += 1",
    ),
    "drawn": Program(
        "handle",
        """\
import asyncio
import dataclasses

@dataclasses.dataclass
class Request:
    text: str
    size: int

current: list[Request] = []

async def handle(request: Request, tries: int) -> tuple[str, int]:
    current[:] = [request]
    await asyncio.sleep(0)
    return current[0].text, current[0].size
""",
        "return current[0].text, current[0].size",
        "return request.text, request.size",
    ),
    "cache_of_trio": Program(
        "Cache",
        """\
import trio

class Cache:
    def __init__(self, name: str) -> None:
        self.values = {}
        self.lock = trio.Lock()

    async def get(self, key: str) -> int | None:
        return self.values.get(key)

    async def add(self, key: str, value: int) -> bool:
        return await self._add(key, value)

    async def _add(self, key, value):
        if key in self.values:
            return False
        await trio.sleep(0.1)
        self.values[key] = value
        return True

    async def size(self) -> int:
        return len(self.values)
""",
        """        return await self._add(key, value)
""",
        """        async with self.lock:
            return await self._add(key, value)
""",
    ),
    "counter_of_threads": Program(
        "Counter",
        """\
import threading

class Counter:
    def __init__(self):
        self.count = 0
        self.lock = threading.Lock()

    def increase(self):
        self.count += 1
        return self.count
""",
        """        self.count += 1
        return self.count
""",
        """        with self.lock:
            self.count += 1
            return self.count
""",
    ),
}
