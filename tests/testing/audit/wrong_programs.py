"""Programs with one fault each, for the rules of the audit to find."""

from __future__ import annotations

import attrs


@attrs.frozen
class Wrong:
    """A program with one fault, and where it is to be found."""

    rule: str
    symbol: str
    line: int
    text: str


WRONG = {
    "a list of the class body filled in the constructor": Wrong(
        "mutable-class-attribute",
        "Agent.tools",
        2,
        """\
        class Agent:
            tools = []
            def __init__(self, tool):
                self.tools.append(tool)
        """,
    ),
    "a dict of the class body filled by the constructor of a class that a run makes": Wrong(
        "mutable-class-attribute",
        "Agent.headers",
        2,
        """\
        class Agent:
            headers = {}
            def __init__(self):
                self.headers["id"] = draw()
        class Support(Agent):
            pass
        async def agent(text):
            return Support().headers
        """,
    ),
    "a list of the module filled by a constructor": Wrong(
        "module-global",
        "callbacks",
        4,
        """\
        callbacks = []
        class Router:
            def __init__(self, log):
                callbacks.append(log)
        async def agent(text):
            Router(text)
            return callbacks
        """,
    ),
    "a default that is an object with a list": Wrong(
        "mutable-default",
        "Memory.__init__(state=)",
        5,
        """\
        class State:
            def __init__(self):
                self.history = []
        class Memory:
            def __init__(self, state=State()):
                self.state = state
        """,
    ),
    "a dataclass's default that is an object with a list": Wrong(
        "mutable-default",
        "Memory.state",
        8,
        """\
        import dataclasses
        from dataclasses import field
        @dataclasses.dataclass(eq=False)
        class State:
            history: list[str] = field(default_factory=list)
        @dataclasses.dataclass
        class Memory:
            state: State = State()
        """,
    ),
    "a cancel scope of a call on an object for all": Wrong(
        "shared-instance-state",
        "AGENT.scope",
        4,
        """\
        import trio
        class Agent:
            async def run(self):
                with trio.CancelScope() as self.scope:
                    await trio.sleep(1)
        AGENT = Agent()
        """,
    ),
    "a nursery of a call, with no object in sight": Wrong(
        "shared-instance-state",
        "Agent.nursery",
        4,
        """\
        import trio
        class Agent:
            async def run(self, text):
                async with trio.open_nursery() as self.nursery:
                    self.nursery.start_soon(ask, text)
        """,
    ),
    "a value of a cached function that a caller changes": Wrong(
        "cached-value",
        "settings",
        8,
        """\
        import functools
        @functools.cache
        def settings():
            found = {}
            return found
        async def agent(text):
            mine = settings()
            mine["text"] = text
        """,
    ),
    "a RunLocal of one run that two calls change": Wrong(
        "run-local-of-several-calls",
        "messages",
        9,
        """\
        import harness
        class Desk:
            messages = harness.RunLocal(list)
            async def answer(self, ticket):
                messages = self.messages.get()
                messages.append(ticket)
        DESK = Desk()
        async def both(record):
            return [await DESK.answer(record["a"]), await DESK.answer(record["b"])]
        """,
    ),
    "a RunLocal of one run that the tasks of a nursery change": Wrong(
        "run-local-of-several-calls",
        "notes",
        10,
        """\
        import harness, trio
        notes = harness.RunLocal(list)
        async def call(text):
            notes.get().append(text)
        async def orchestrate(texts):
            async def one(text):
                await call(text)
            async with trio.open_nursery() as nursery:
                for text in texts:
                    nursery.start_soon(one, text)
        """,
    ),
    "a class attribute changed by a class below": Wrong(
        "mutable-class-attribute",
        "Agent.messages",
        2,
        """\
        class Agent:
            messages = []
        class Support(Agent):
            async def run(self, text):
                self.messages.append(text)
        """,
    ),
    "a plain method of a shared object that async code calls": Wrong(
        "shared-instance-state",
        "EVENTS.queue",
        5,
        """\
        class Bus:
            def __init__(self):
                self.queue = []
            def emit(self, event):
                self.queue.append(event)
            def drain(self):
                return list(self.queue)
        EVENTS = Bus()
        async def run(text):
            EVENTS.emit(text)
            await work(text)
            return EVENTS.drain()
        """,
    ),
    "prints redirected by a run": Wrong(
        "process-state",
        "contextlib.redirect_stdout",
        4,
        """\
        import contextlib
        import io
        async def run(tool):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                await tool()
            return out.getvalue()
        """,
    ),
    "prints sent elsewhere by a run": Wrong(
        "process-state",
        "sys.stdout",
        3,
        """\
        import sys
        async def run(tool, out):
            sys.stdout = out
            await tool()
        """,
    ),
    "messages on the class": Wrong(
        "mutable-class-attribute",
        "Agent.messages",
        2,
        """\
        class Agent:
            messages = []
            async def run(self, text):
                self.messages.append(text)
        """,
    ),
    "a class attribute changed by its class's name": Wrong(
        "mutable-class-attribute",
        "Agent.usage",
        2,
        """\
        class Agent:
            usage: dict[str, int] = {}
        async def run(name):
            Agent.usage[name] = Agent.usage.get(name, 0) + 1
        """,
    ),
    "a class attribute changed through cls": Wrong(
        "mutable-class-attribute",
        "Agent.seen",
        3,
        """\
        class Agent:
            name = "a"
            seen = set()
            @classmethod
            async def run(cls, text):
                cls.seen.add(text)
        """,
    ),
    "a class attribute bound anew": Wrong(
        "mutable-class-attribute",
        "Session.current",
        5,
        """\
        class Session:
            current = None
            @classmethod
            async def work(cls, user):
                cls.current = user
        """,
    ),
    "an attribute of a named object": Wrong(
        "shared-instance-state",
        "STORE.line",
        5,
        """\
        from types import SimpleNamespace
        STORE = SimpleNamespace(line=[])
        async def agent(text):
            other = 1
            STORE.line.append(text)
        """,
    ),
    "an attribute of a function": Wrong(
        "shared-instance-state",
        "agent.user",
        2,
        """\
        async def agent(user):
            agent.user = user
        """,
    ),
    "a setting of a library": Wrong(
        "shared-instance-state",
        "openai.api_key",
        3,
        """\
        import openai
        async def agent(key):
            openai.api_key = key
        """,
    ),
    "a global bound anew": Wrong(
        "module-global",
        "current_folder",
        4,
        """\
        current_folder = None
        async def agent(folder):
            global current_folder
            current_folder = folder
        """,
    ),
    "a global list that grows": Wrong(
        "module-global",
        "HISTORY",
        4,
        """\
        import collections
        HISTORY = collections.deque()
        def remember(text):
            HISTORY.append(text)
        """,
    ),
    "a setter that runs call": Wrong(
        "module-global",
        "_user",
        4,
        """\
        _user = None
        def set_user(user):
            global _user
            _user = user
        async def agent(user):
            set_user(user)
        """,
    ),
    "a class attribute bound anew through type(self)": Wrong(
        "mutable-class-attribute",
        "Session.current",
        4,
        """\
        class Session:
            current = None
            async def work(self, user):
                type(self).current = user
        """,
    ),
    "a class attribute bound anew through self.__class__": Wrong(
        "mutable-class-attribute",
        "Session.current",
        4,
        """\
        class Session:
            current = None
            async def work(self, user):
                self.__class__.current = user
        """,
    ),
    "an agent in a dict of the module": Wrong(
        "shared-instance-state",
        "AGENTS.question",
        3,
        """\
        class Agent:
            async def ask(self, question):
                self.question = question
                await work()
                return self.question
        AGENTS = {"a": Agent(), "b": Agent()}
        """,
    ),
    "an agent that a cached function makes": Wrong(
        "shared-instance-state",
        "agent().question",
        4,
        """\
        import functools
        class Agent:
            async def ask(self, question):
                self.question = question
                await work()
                return self.question
        @functools.cache
        def agent():
            return Agent()
        """,
    ),
    "an agent whose calls are gathered": Wrong(
        "shared-instance-state",
        "agent.question",
        4,
        """\
        import asyncio
        class Agent:
            async def ask(self, question):
                self.question = question
                await work()
                return self.question
        async def main(questions):
            agent = Agent()
            return await asyncio.gather(*(agent.ask(one) for one in questions))
        """,
    ),
    "a global by another name": Wrong(
        "module-global",
        "STATE",
        4,
        """\
        STATE = {}
        async def run(user):
            state = STATE
            state["user"] = user
        """,
    ),
    "where modules are imported from": Wrong(
        "process-state",
        "sys.path",
        3,
        """\
        import sys
        async def run(folder, tool):
            sys.path.insert(0, folder)
            await tool()
        """,
    ),
    "the environment, by a function that a run calls": Wrong(
        "process-state",
        "os.environ",
        3,
        """\
        import os
        def use(key):
            os.environ["KEY"] = key
        async def run(key):
            use(key)
            await call()
        """,
    ),
    "warnings that are silenced while a run waits": Wrong(
        "process-state",
        "warnings.catch_warnings",
        3,
        """\
        import warnings
        async def run(tool):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                await tool()
        """,
    ),
    "a memory on the class": Wrong(
        "mutable-class-attribute",
        "Bot.memory",
        2,
        """\
        class Bot:
            memory = {}
            async def ask(self, question):
                self.memory[question] = await answer(question)
        """,
    ),
    "an account of the module": Wrong(
        "module-global",
        "account",
        4,
        """\
        account = 100
        async def spend(amount):
            global account
            account -= amount
        """,
    ),
    "an amount that was consumed meanwhile": Wrong(
        "check-then-act",
        "Budget.consumed",
        6,
        """\
        class Budget:
            async def spend(self, amount):
                if self.consumed + amount > self.limit:
                    raise ValueError
                await self.bill(amount)
                self.consumed += amount
        """,
    ),
    "money that is sent, which is no frame": Wrong(
        "check-then-act",
        "Account.left",
        5,
        """\
        class Account:
            async def send_money(self, amount):
                if self.left >= amount:
                    await self.bank(amount)
                    self.left -= amount
        """,
    ),
    "questions that were seen, and are refused": Wrong(
        "module-global",
        "SEEN",
        4,
        """\
        SEEN = set()
        def refuse(question):
            if question not in SEEN:
                SEEN.add(question)
                return False
            return True
        """,
    ),
    "a table that is filled with what the first one asks": Wrong(
        "module-global",
        "FIRST",
        4,
        """\
        FIRST = []
        def first(question):
            if not FIRST:
                FIRST.append(question)
            return FIRST[0]
        """,
    ),
    "a default that is kept and changed": Wrong(
        "mutable-default",
        "Agent.__init__(tools=)",
        2,
        """\
        class Agent:
            def __init__(self, name, tools=[]):
                self.tools = tools
            def add(self, tool):
                self.tools.append(tool)
        """,
    ),
    "a default that is changed": Wrong(
        "mutable-default",
        "ask(history=)",
        1,
        """\
        async def ask(text, *, history=[]):
            history.append(text)
        """,
    ),
    "a default that is handed out": Wrong(
        "mutable-default",
        "settings(base=)",
        1,
        """\
        def settings(base={}):
            return base
        """,
    ),
    "a default of a field": Wrong(
        "mutable-default",
        "State.messages",
        4,
        """\
        import attrs
        @attrs.define
        class State:
            messages = attrs.field(default=[])
        """,
    ),
    "a default of a context variable": Wrong(
        "mutable-default",
        "messages",
        2,
        """\
        from contextvars import ContextVar
        messages = ContextVar("messages", default=[])
        def remember(text):
            messages.get().append(text)
        """,
    ),
    "the active request on a singleton": Wrong(
        "shared-instance-state",
        "AGENT.active",
        5,
        """\
        import trio
        class Agent:
            def __init__(self): self.active = None
            async def handle(self, request):
                self.active = request
                await trio.sleep(0)
                return self.active
        AGENT = Agent()
        """,
    ),
    "a flag on a singleton": Wrong(
        "shared-instance-state",
        "AGENT.cancelled",
        4,
        """\
        class Agent:
            def __init__(self): self.cancelled = False
            async def run(self, steps):
                self.cancelled = False
                for step in steps:
                    await step()
                    if self.cancelled: return
            def cancel(self): self.cancelled = True
        AGENT = Agent()
        """,
    ),
    "an object that a loop gives to many tasks": Wrong(
        "shared-instance-state",
        "agent.question",
        4,
        """\
        import trio
        class Agent:
            async def ask(self, question):
                self.question = question
                await trio.sleep(0)
                return self.question
        async def main(questions):
            agent = Agent()
            async with trio.open_nursery() as nursery:
                for question in questions:
                    nursery.start_soon(agent.ask, question)
        """,
    ),
    "what a shared object holds": Wrong(
        "shared-instance-state",
        "POOL.line.replies",
        5,
        """\
        import trio
        class Line:
            def __init__(self): self.replies = []
            async def call(self, text):
                self.replies.append(text)
                await trio.sleep(0)
                return self.replies.pop()
        class Pool:
            def __init__(self): self.line = Line()
        POOL = Pool()
        """,
    ),
    "a token that is fetched twice": Wrong(
        "check-then-act",
        "Provider.token",
        4,
        """\
        class Provider:
            async def get(self):
                if self.token is None:
                    self.token = await self.fetch()
                return self.token
        """,
    ),
    "a check that returns early": Wrong(
        "check-then-act",
        "Provider.token",
        5,
        """\
        class Provider:
            async def get(self):
                if self.token is not None:
                    return self.token
                self.token = await self.fetch()
                return self.token
        """,
    ),
    "a cache without a flight": Wrong(
        "check-then-act",
        "Cache.entries",
        5,
        """\
        class Cache:
            async def get(self, key):
                if key not in self.entries:
                    value = await self.load(key)
                    self.entries[key] = value
                return self.entries[key]
        """,
    ),
    "a budget that is checked before the call": Wrong(
        "check-then-act",
        "Budget.spent",
        6,
        """\
        class Budget:
            async def call(self, cost):
                if self.spent + cost > self.limit:
                    raise ValueError(cost)
                await self.send()
                self.spent += cost
        """,
    ),
    "an update that is lost": Wrong(
        "check-then-act",
        "Counter.value",
        6,
        """\
        import trio
        class Counter:
            async def add(self):
                before = self.value
                await trio.sleep(0)
                self.value = before + 1
        """,
    ),
    "an addition around an await": Wrong(
        "check-then-act",
        "Counter.total",
        3,
        """\
        class Counter:
            async def add(self, item):
                self.total += await self.price(item)
        """,
    ),
    "a global that is checked": Wrong(
        "check-then-act",
        "client",
        5,
        """\
        client = None  # harness: shared (the check is what is tested here)
        async def get_client():
            global client
            if client is None:
                client = await connect()
            return client
        """,
    ),
    "a variable of the function around": Wrong(
        "check-then-act",
        "left",
        9,
        """\
        import trio
        async def main():
            left = 1
            async def take():
                nonlocal left
                if left:
                    await trio.sleep(0)
                    done.append(left)
                    left -= 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take)
                nursery.start_soon(take)
        done = ()
        """,
    ),
    "a cut where the end was": Wrong(
        "check-then-act",
        "history",
        6,
        """\
        import trio
        async def turn(history, text):
            start = len(history)
            history.append(text)
            await trio.sleep(0)
            del history[start:]
        """,
    ),
    "threading.local": Wrong(
        "thread-local",
        "local",
        2,
        """\
        import threading
        local = threading.local()
        """,
    ),
    "a class derived from threading.local": Wrong(
        "thread-local",
        "Current",
        2,
        """\
        from threading import local
        class Current(local):
            run = None
        """,
    ),
    "a client": Wrong(
        "client-at-import",
        "client",
        2,
        """\
        from openai import AsyncOpenAI
        client = AsyncOpenAI()
        """,
    ),
    "a client as a default": Wrong(
        "client-at-import",
        "httpx.AsyncClient",
        2,
        """\
        import httpx
        async def fetch(url, client=httpx.AsyncClient()):
            return await client.get(url)
        """,
    ),
    "a channel": Wrong(
        "client-at-import",
        "send, receive",
        2,
        """\
        import trio
        send, receive = trio.open_memory_channel(10)
        """,
    ),
    "a cached coroutine": Wrong(
        "cached-coroutine",
        "load",
        3,
        """\
        import functools
        @functools.lru_cache
        async def load(key):
            return key
        """,
    ),
    "the current folder": Wrong(
        "process-state",
        "os.chdir",
        3,
        """\
        import os
        async def agent(folder):
            os.chdir(folder)
        """,
    ),
    "the environment": Wrong(
        "process-state",
        "os.environ",
        3,
        """\
        import os
        async def agent(key):
            os.environ["KEY"] = key
        """,
    ),
    "a run across a yield": Wrong(
        "held-across-yield",
        "Agent.run_stream",
        4,
        """\
        import harness
        class Agent:
            async def run_stream(self, prompts):
                async with harness.open_run("stream"):
                    for prompt in prompts:
                        yield await self.ask(prompt)
        """,
    ),
    "a nursery across a yield, beside another block": Wrong(
        "held-across-yield",
        "pages",
        3,
        """\
        from trio import open_nursery
        async def pages(urls):
            async with client() as session, open_nursery() as nursery:
                try:
                    yield nursery, session
                finally:
                    nursery.cancel_scope.cancel()
        """,
    ),
    "a deadline across a yield": Wrong(
        "held-across-yield",
        "ticks",
        4,
        """\
        import trio
        async def ticks():
            while True:
                with trio.fail_after(5):
                    await trio.sleep(1)
                    yield 1
        """,
    ),
    "the task of the caller, kept on the object": Wrong(
        "shared-instance-state",
        "Agent.current_stream",
        4,
        """\
        import asyncio
        class Agent:
            async def run_stream(self, prompts):
                self.current_stream = asyncio.current_task()
                for prompt in prompts:
                    yield await self.ask(prompt)
        """,
    ),
    "a flag that every call resets": Wrong(
        "shared-instance-state",
        "Agent.aborted",
        3,
        """\
        class Agent:
            async def run_stream(self, prompts):
                self.aborted = False
                async for prompt in prompts:
                    if self.aborted:
                        break
                    yield prompt
            def abort(self):
                self.aborted = True
        """,
    ),
    "an object of a test, used by a function that is started many times": Wrong(
        "shared-instance-state",
        "agent.prompt",
        4,
        """\
        import asyncio
        class Agent:
            async def run(self, prompt):
                self.prompt = prompt
                await self.ask()
                return self.prompt
        async def test():
            agent = Agent()
            async def one(marker):
                return [part for part in await agent.run(marker)]
            calls = [one(f"M{number}") for number in range(10)]
            await asyncio.gather(*calls)
        """,
    ),
    "an object that is given to two tasks": Wrong(
        "shared-instance-state",
        "agent.prompt",
        4,
        """\
        import asyncio
        class Agent:
            async def run(self, prompt):
                self.prompt = prompt
                await self.ask()
                return self.prompt
        async def both():
            agent = Agent()
            return await asyncio.gather(agent.run("a"), agent.run("b"))
        """,
    ),
    "a default object whose attributes are set by way of its keeper": Wrong(
        "mutable-default",
        "Filter.__init__(prompt=)",
        5,
        """\
        class Prompt:
            def __init__(self):
                self.name = ""
        class Filter:
            def __init__(self, prompt=Prompt()):
                self.prompt = prompt
        def rename(some, name):
            some.prompt.name = name
        """,
    ),
    "a thread-local that a task uses by way of a function": Wrong(
        "thread-local",
        "local",
        2,
        """\
        import threading
        local = threading.local()
        def locale():
            return local.locale
        async def handle(request):
            return locale()
        """,
    ),
    "a client that two callers would open": Wrong(
        "check-then-act",
        "Executor.client",
        4,
        """\
        class Executor:
            async def ensure(self):
                if self.client is None:
                    self.client = await connect(self.host)
        """,
    ),
    "what another method changes while the one task waits": Wrong(
        "check-then-act",
        "Flow.due",
        9,
        """\
        class Flow:
            def note(self, due):
                self.due = due
            async def answer_loop(self):
                while True:
                    if self.queued >= self.due:
                        await self.publish()
                        self.answered = True
                        self.due = 0
        """,
    ),
}
