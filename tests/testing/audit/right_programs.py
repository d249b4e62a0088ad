"""Programs without a fault, which the rules of the audit are to leave alone.

Many are a wrong one put right, in a way that users would choose.
"""

RIGHT = {
    "a lock of the class": """\
        import threading
        class Agent:
            counts = {}
            lock = threading.Lock()
            def __new__(cls, name):
                with cls.lock:
                    cls.counts[name] = 1
                return super().__new__(cls)
        """,
    "a lock that the caller holds": """\
        import trio
        class Page:
            def __init__(self):
                self.lock = trio.Lock()
                self.page = None
            async def ensure(self):
                async with self.lock:
                    await self._open()
            async def _open(self):
                if self.page is None:
                    await trio.sleep(1)
                    self.page = 1
        """,
    "a lock that all callers of what changes the module hold": """\
        import threading
        COUNTS = {}
        LOCK = threading.Lock()
        async def get(name):
            with LOCK:
                note(name)
        def note(name):
            COUNTS[name] = 1
        """,
    "private attributes of a model below a model": """\
        import pydantic
        class Base(pydantic.BaseModel):
            name: str
        class Middle(Base):
            pass
        class Agent(Middle):
            _messages = []
            async def run(self, text):
                self._messages.append(text)
        """,
    "a constructor that fills a list of the instance": """\
        class Agent:
            tools = []
            def __init__(self, tool):
                self.tools = [tool]
        async def agent(text):
            return Agent(text).tools
        """,
    "a list of the module filled by constructors at import": """\
        PARTS = []
        class Part:
            def __init__(self, name):
                PARTS.append(name)
        WHEEL = Part("wheel")
        """,
    "a default that is an object without state": """\
        class Clock:
            def now(self):
                return 1
        class Memory:
            def __init__(self, clock=Clock()):
                self.clock = clock
        """,
    "a cancel scope kept in a local variable": """\
        import trio
        class Agent:
            async def run(self, text):
                with trio.CancelScope() as scope:
                    await trio.sleep(1)
        AGENT = Agent()
        """,
    "a value of a cached function that is only read, or copied": """\
        import functools
        @functools.cache
        def settings():
            return {}
        async def agent(text):
            mine = dict(settings())
            mine["text"] = text
            return settings()["text"]
        """,
    "a RunLocal of calls that have a run each": """\
        import harness
        notes = harness.RunLocal(list)
        @harness.open_run("call")
        async def call(text):
            notes.get().append(text)
        async def both(text):
            await call(text)
            await call(text)
        """,
    "a RunLocal of the items of a fan-out, and of runs in a loop": """\
        import harness
        notes = harness.RunLocal(list)
        async def call(text):
            notes.get().append(text)
        async def batch(texts):
            await harness.fan_out(call, texts)
        async def one_by_one(texts):
            for text in texts:
                async with harness.open_run("call"):
                    await call(text)
        """,
    "a RunLocal that one call changes": """\
        import harness
        notes = harness.RunLocal(list)
        async def call(text):
            notes.get().append(text)
        async def once(text):
            await call(text)
            return notes.get()
        """,
    "a class below has a list of its own": """\
        class Agent:
            messages = []
        class Support(Agent):
            def __init__(self):
                self.messages = []
            async def run(self, text):
                self.messages.append(text)
        """,
    "what is taken out of a pool and put back": """\
        POOL = [connect(), connect()]
        async def run(text):
            async with SLOTS:
                connection = POOL.pop()
                try:
                    return await connection.ask(text)
                finally:
                    connection.clear()
                    POOL.append(connection)
        """,
    "messages of the instance": """\
        class Agent:
            messages = []
            def __init__(self): self.messages = []
            async def run(self, text): self.messages.append(text)
        """,
    "a class attribute that nobody changes": """\
        class Agent:
            tools = ["search"]
            async def run(self, text): return [text, *self.tools]
        """,
    "a registry that is filled at import": """\
        class Base:
            kinds = {}
            def __init_subclass__(cls): Base.kinds[cls.__name__] = cls
        """,
    "a default of a pydantic model, which is copied": """\
        from pydantic import BaseModel
        class State(BaseModel):
            messages: list[str] = []
            def add(self, text): self.messages.append(text)
        """,
    "a table that a decorator fills": """\
        ROUTES = {}
        def route(name):
            def decorate(fn):
                ROUTES[name] = fn
                return fn
            return decorate
        """,
    "a setting that the program makes": """\
        _folder = None
        def set_folder(folder):
            global _folder
            _folder = folder
        """,
    "a constant that is made when first asked for": """\
        _table = None
        def table():
            global _table
            if _table is None:
                _table = build()
            return _table
        """,
    "a local of the same name": """\
        items = []
        def collect(values):
            items = []
            items.append(values)
            return items
        """,
    "what is under way, taken out again": """\
        ACTIVE = set()
        async def agent(name):
            ACTIVE.add(name)
            try:
                await work(name)
            finally:
                ACTIVE.discard(name)
        """,
    "an attribute of a named object, put back": """\
        from types import SimpleNamespace
        STORE = SimpleNamespace(user=None)
        async def agent(user):
            before = STORE.user
            STORE.user = user
            try:
                await work()
            finally:
                STORE.user = before
        """,
    "an attribute of a local object": """\
        from types import SimpleNamespace
        async def agent(user):
            store = SimpleNamespace()
            store.user = user
            return store
        """,
    "a class attribute that the program sets": """\
        class Agent:
            model = None
        def configure(model):
            Agent.model = model
        """,
    "a RunLocal": """\
        import harness
        messages = harness.RunLocal(list)
        async def agent(text):
            messages.get().append(text)
        """,
    "a default of None": """\
        class Agent:
            def __init__(self, tools=None):
                self.tools = [] if tools is None else tools
            def add(self, tool): self.tools.append(tool)
        """,
    "a default that is copied": """\
        class Agent:
            def __init__(self, tools=[]):
                tools = list(tools)
                self.tools = tools
            def add(self, tool): self.tools.append(tool)
        """,
    "a default that has nothing in it, and is only taken from": """\
        def spawn(target, kwargs={}):
            name = kwargs.pop("name", "unknown")
            return start(target, name, **kwargs)
        """,
    "a default that is only read": """\
        def ask(text, options={}):
            return call(text, **options)
        """,
    "a factory of a field": """\
        import attrs
        @attrs.define
        class State:
            messages = attrs.field(factory=list)
        """,
    "an object per run": """\
        import trio
        class Agent:
            async def handle(self, request):
                self.active = request
                await trio.sleep(0)
                return self.active
        async def main(request):
            return await Agent().handle(request)
        """,
    "a singleton that keeps what it does in variables": """\
        import trio
        class Agent:
            def __init__(self, model): self.model = model
            async def handle(self, request):
                active = request
                await trio.sleep(0)
                return active, self.model
        AGENT = Agent("m")
        """,
    "a singleton under a lock": """\
        import trio
        class Agent:
            def __init__(self): self.lock = trio.Lock(); self.active = None
            async def handle(self, request):
                async with self.lock:
                    self.active = request
                    await trio.sleep(0)
                    return self.active
        AGENT = Agent()
        """,
    "a singleton that counts": """\
        class Agent:
            def __init__(self): self.calls = 0
            async def handle(self, request):
                self.calls += 1
                return await answer(request, self.calls)
        AGENT = Agent()
        """,
    "a token behind a lock": """\
        class Provider:
            async def get(self):
                async with self._lock:
                    if self.token is None:
                        self.token = await self.fetch()
                return self.token
        """,
    "a token behind a lock, looked at before and after": """\
        class Provider:
            async def get(self):
                if self.token is None:
                    async with self._lock:
                        if self.token is None:
                            self.token = await self.fetch()
                return self.token
        """,
    "a lock that is acquired by hand": """\
        class Provider:
            async def get(self):
                await self._lock.acquire()
                try:
                    if self.token is None:
                        self.token = await self.fetch()
                finally:
                    self._lock.release()
        """,
    "a second look after the await": """\
        class Cache:
            async def get(self, key):
                if key not in self.entries:
                    value = await self.load(key)
                    if key not in self.entries:
                        self.entries[key] = value
                return self.entries[key]
        """,
    "a place that is taken before the wait": """\
        class Budget:
            async def call(self, cost):
                if self.spent + cost > self.limit:
                    raise ValueError(cost)
                self.spent += cost
                await self.send()
        """,
    "an addition after the await": """\
        class Counter:
            async def add(self, item):
                price = await self.price(item)
                self.total += price
        """,
    "a loop that looks again each time": """\
        class Gate:
            async def pass_through(self):
                while self.taken:
                    await self.event()
                self.taken = True
        """,
    "a variable of the function around, with one task": """\
        import trio
        async def main():
            left = 1
            async def take():
                nonlocal left
                if left:
                    await trio.sleep(0)
                    left -= 1
            await take()
        """,
    "a cut by what is there now": """\
        import trio
        async def turn(history, text):
            history.append(text)
            await trio.sleep(0)
            history.remove(text)
        """,
    "a default of a context variable that nobody changes": """\
        from contextvars import ContextVar
        names = ContextVar("names", default={})
        def name_of(key):
            return names.get().get(key)
        """,
    "a number that says whether others were here": """\
        class Client:
            async def refresh(self):
                version = self.version
                if self.tools is None:
                    tools = await self.fetch()
                    if version == self.version:
                        self.tools = tools
        """,
    "an await that lets nobody run": """\
        import trio
        class Client:
            async def refresh(self):
                if self.tools is None:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    self.tools = []
        """,
    "a function that refuses a second caller": """\
        class Client:
            async def refresh(self):
                if self.waiting:
                    raise ConcurrencyError("refresh is running")
                if self.tools is None:
                    self.tools = await self.fetch()
        """,
    "a client in a block": """\
        from openai import AsyncOpenAI
        async def main():
            async with AsyncOpenAI() as client:
                await work(client)
        """,
    "a client of a script": """\
        import httpx
        if __name__ == "__main__":
            client = httpx.Client()
        """,
    "a type that is called like a client": """\
        import httpx
        class Fetcher:
            client: httpx.AsyncClient
        """,
    "a cache around a plain function": """\
        import functools
        @functools.lru_cache
        def load(key):
            return key
        """,
    "a folder that a script changes": """\
        import os
        def main():
            os.chdir("work")
        """,
    "an environment that is the same for all": """\
        import os
        def quieten():
            os.environ["LIBRARY_QUIET"] = "1"
        async def run():
            quieten()
            await call()
        """,
    "warnings that are silenced without waiting": """\
        import warnings
        async def run(tool):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = look()
            await tool(found)
        """,
    "an agent that a cached function makes for each user": """\
        import functools
        class Agent:
            async def ask(self, question):
                self.question = question
                await work()
                return self.question
        @functools.cache
        def agent(user):
            return Agent()
        """,
    "a local list that is called as the caller likes": """\
        STATE = {}
        async def run(user):
            state = dict(STATE)
            state["user"] = user
        """,
    "names that are imported when first needed": """\
        Client = None
        def load():
            global Client
            from library import Client as _Client
            Client = _Client
        async def run():
            load()
        """,
    "a decorator inside of a function": """\
        HANDLERS = {}
        def handles(name):
            def decorator(fn):
                HANDLERS[name] = fn
                return fn
            return decorator
        async def run(decorator):
            decorator()
        """,
    "a table that a nested function builds": """\
        BY_NAME = {}
        def _build_table():
            def collect(cls):
                for sub in cls.__subclasses__():
                    BY_NAME[sub.name] = sub
                    collect(sub)
            collect(Event)
        async def run(collect):
            await collect()
        """,
    "a table that is filled when it is empty": """\
        import sys
        PREFIXES = []
        def shorten(name):
            if not PREFIXES:
                for folder in sys.path:
                    PREFIXES.append((folder, ""))
            return name
        """,
    "what was warned of": """\
        import warnings
        class Request:
            said = set()
            def __setitem__(self, key, value):
                if key not in self.said:
                    self.said.add(key)
                    warnings.warn("use a typed key", stacklevel=2)
        """,
    "a key that is claimed, and given back": """\
        class Once:
            async def perform(self, key):
                if self.under_way.setdefault(key, self) is not self:
                    raise ValueError(key)
                try:
                    return await self.effect(key)
                finally:
                    del self.under_way[key]
        """,
    "a frame that is sent": """\
        class Connection:
            async def send_frame(self, frame):
                if self.frames_left:
                    await self.socket.put(frame)
                    self.frames_left -= 1
        """,
    "one end of a stream": """\
        class PartReader:
            async def next(self):
                if self.part is None:
                    self.part = await self.fetch()
                return self.part
        """,
    "an actor": """\
        class ManagerActor(ActorBase):
            async def on_message(self, message):
                if self.turn >= self.turns:
                    await self.end()
                    self.turn = 0
        """,
    "what Python calls after a fork": """\
        import os
        prefix = os.urandom(4)
        def _again():
            global prefix
            prefix = os.urandom(4)
        os.register_at_fork(after_in_child=_again)
        """,
    "blocks of generators that nobody reads in turns": """\
        import contextlib
        import pytest
        import trio
        import harness
        @contextlib.asynccontextmanager
        async def desk():
            async with harness.open_run("desk") as run, trio.open_nursery():
                yield run
        @trio.as_safe_channel
        async def pages():
            async with trio.open_nursery():
                yield 1
        @pytest.fixture(scope="module")
        async def client():
            with trio.CancelScope():
                yield 1
        """,
    "blocks that are left before the yield": """\
        import trio
        import harness
        async def pages(urls):
            for url in urls:
                async with harness.open_run("page"):
                    page = await fetch(url)
                    async def inner():
                        yield page
                yield page
            with open("x") as file:
                yield file
        """,
    "a loop that the object's one task runs": """\
        import asyncio
        class Service:
            async def run(self):
                self.task = asyncio.current_task()
                self.running = True
                while self.running:
                    await self.step()
        """,
    "state of a call in local variables": """\
        import asyncio
        class Manager:
            def __init__(self):
                self.pending = []
        class Agent:
            def __init__(self):
                self.manager = Manager()
                self.queue = asyncio.Queue()
            async def run(self, prompts):
                aborted = False
                task = asyncio.current_task()
                for prompt in prompts:
                    if aborted:
                        break
                    await self.ask(prompt, task)
        """,
    "an object for each task": """\
        import asyncio
        class Agent:
            async def run(self, prompt):
                self.prompt = prompt
                await self.ask()
                return self.prompt
        async def test():
            async def one(marker):
                agent = Agent()
                return await agent.run(marker)
            await asyncio.gather(*[one(number) for number in range(10)])
        async def one_only():
            agent = Agent()
            async def one(marker):
                return await agent.run(marker)
            await asyncio.gather(one(1), other(2))
        """,
    "a lock that the caller of the caller holds": """\
        import asyncio
        class Topology:
            def __init__(self):
                self.lock = asyncio.Lock()
                self.servers = {}
            async def on_change(self, name):
                async with self.lock:
                    await self._process(name)
            async def _process(self, name):
                await asyncio.sleep(1)
                await self._update(name)
            async def _update(self, name):
                if name not in self.servers:
                    self.servers[name] = await open_server(name)
        """,
    "an object that only the function which makes it has": """\
        class _Bulk:
            async def execute(self):
                while self.offset < self.total:
                    self.offset += len(await self.send())
        async def write(rows):
            bulk = _Bulk(rows)
            await bulk.execute()
        """,
    "data that is looked up once": """\
        class Event:
            async def get_sender(self):
                if self._sender is None:
                    self._sender = await self.find(self.sender_id)
                return self._sender
        """,
    "a cache filled by an await": """\
        class Store:
            async def find(self, key):
                if key in self.cached_bots:
                    return self.cached_bots[key]
                bot = await self.below.find(key)
                self.cached_bots[key] = bot
                return bot
        """,
    "an argument put into another form": """\
        class DeleteRequest:
            def __init__(self, peer):
                self.peer = peer
            async def resolve(self, client):
                if self.peer:
                    self.peer = await client.input_of(self.peer)
        """,
    "a count of what was tried": """\
        class Connection:
            async def connected(self):
                if self.attempts:
                    await self.tell_all()
                self.attempts += 1
        """,
    "what an object's one task counts for itself": """\
        class Recognizer:
            def __init__(self):
                self.retries = 0
            async def _main_task(self):
                while self.retries <= 3:
                    try:
                        return await self.recognize()
                    except OSError:
                        if self.retries > 1:
                            await self.wait()
                        self.retries = 0
        """,
    "a state on every way out": """\
        class Channel:
            async def watch(self):
                if self.state == "idle":
                    try:
                        await self.poll()
                    finally:
                        self.state = "stopped"
        """,
    "a buffer filled until there is enough": """\
        class Body:
            async def fill(self, wanted):
                while len(self.data) < wanted:
                    chunk = await self.source()
                    self.data += chunk
        """,
    "what must be there before more is added": """\
        class Chat:
            async def invoke(self, agent):
                if not self.messages:
                    raise ValueError("no messages")
                answer = await agent(self.messages)
                self.messages.append(answer)
        """,
    "a method that asserts that nobody calls it concurrently": """\
        class Frames:
            async def get(self):
                if not self.frames:
                    assert self.waiter is None, "cannot call get() concurrently"
                    await self.wait()
                return self.frames.popleft()
        """,
    "a thread-local in a file of threads": """\
        import threading
        local = threading.local()
        def worker(queue):
            local.proceed = True
            while local.proceed:
                queue.get()()
        """,
    "defaults that nobody changes": """\
        class Handler:
            def __init__(self, errors=[OSError, ValueError], plugins: Sequence[str] = []):
                self.errors = errors
                self.plugins = plugins
        """,
    "the one object of a class": """\
        class Environment:
            _instance = None
            @classmethod
            def get(cls):
                if cls._instance is None:
                    cls._instance = cls()
                return cls._instance
        async def render(text):
            return Environment.get().render(text)
        """,
    "a class variable that the class changes": """\
        from typing import ClassVar
        class App:
            apps: ClassVar[dict[str, list[str]]] = {}
            async def run(self, name):
                App.apps[name] = [name]
        """,
    "the environment set by a server as it starts": """\
        import os
        class Server:
            async def start(self, url):
                os.environ["SERVER_URL"] = url
                await self.serve()
        """,
    "a folder changed under a lock": """\
        import os
        async def run(folder, command, chdir_lock):
            with chdir_lock:
                os.chdir(folder)
                await command()
        """,
    "tasks kept from being collected": """\
        import asyncio
        TASKS = set()
        async def run(work):
            task = asyncio.create_task(work())
            TASKS.add(task)
        """,
    "objects that enter a list of their kind": """\
        SESSIONS = {}
        class Session:
            def __init__(self, id):
                self.id = id
                SESSIONS[self.id] = self
        async def connect(id):
            return Session(id)
        """,
    "what is only taken out": """\
        EXECUTORS = []
        async def close(executor):
            EXECUTORS.remove(executor)
        """,
    "a function of a module that has the name of a change": """\
        import aiofiles.os
        async def delete(path):
            await aiofiles.os.remove(path)
        """,
    "a decorator with the name of a client": """\
        import mcp
        @mcp.resource("file://story.md")
        def story():
            return "once"
        """,
    "what a module makes for itself": """\
        import multiprocessing
        queue = None
        def create_queues():
            global queue
            queue = multiprocessing.Queue()
        async def serve():
            create_queues()
        """,
    "a class of which there is one object": """\
        class ControlBlock:
            _inst = None
            events = []
            def note(self, event):
                self.events.insert(0, event)
        """,
    "a body that is read once, and is Empty before": """\
        class Request:
            async def json(self):
                if self._json is Empty:
                    self._json = loads(await self.body())
                return self._json
        """,
    "an event that is asked whether it is set, and cleared": """\
        class Client:
            async def request(self):
                if not self._open.is_set():
                    await self._open.wait()
                if await self.send() == 429:
                    self._open.clear()
        """,
    "the event of a shared worker's loop": """\
        import asyncio
        class Worker:
            def __init__(self):
                self.wake = asyncio.Event()
            async def work(self):
                while True:
                    await self.wake.wait()
                    self.wake.clear()
        WORKER = Worker()
        """,
    "what is noted is what was asked for": """\
        class Client:
            async def save(self, key, value):
                if self.saved.get(key) is value:
                    return
                await self.send(key, value)
                self.saved[key] = value
        """,
    "a plain answer, asked for once for each key": """\
        class Client:
            async def supports(self, command):
                known = self.known.get(command)
                if known is None:
                    known = bool(await self.command(command))
                    self.known[command] = known
                return known
        """,
    "what a nursery starts, once for each object": """\
        class CacheClient:
            async def work(self, task_status):
                self.nodes = []
                task_status.started()
                for node in await self.find():
                    self.nodes.append(node)
                    await node.ping(self.nodes)
        """,
    "a file that asks the one person at a terminal": """\
        from prompt_toolkit import PromptSession
        multiline = False
        async def ask(long):
            global multiline
            multiline = long
            await PromptSession().prompt_async()
            return multiline
        """,
    "a method with the name of an event's, which others call": """\
        import os
        class Settings:
            def set(self, key, value):
                os.environ[key] = value
        async def wake(event):
            event.set()
        """,
    "a log-in that asks for what it hasn't been given": """\
        class Client:
            async def authorize(self):
                if not self.token:
                    self.token = await self.ask_for_it()
        """,
    "what starts the server of the process": """\
        import os
        def api_start(port):
            os.environ["PORT"] = str(port)
        async def main(port):
            api_start(port)
        """,
    "a time of blocks is no lock, and looked up": """\
        class Chain:
            async def block_time(self):
                if self._block_time is None:
                    self._block_time = int(await self.constant("duration")) / 1000
                return self._block_time
        """,
    "the next frame of one end of a stream": """\
        class Source:
            async def next_frame(self):
                due = self.started + self.sent / self.rate
                if due > self.now():
                    await self.sleep(due)
                self.sent += len(self.frame())
        """,
    "a default object of a model's field, of which each object has a copy": """\
        from pydantic import BaseModel
        class Memory:
            async def sum_up(self):
                self.summary = await self.ask()
                return self.summary
        class Agent(BaseModel):
            memory: Memory = Memory()
        """,
    "names that a metaclass notes": """\
        class TestMeta(type(TestCase)):
            names = set()
            def __new__(mcls, name, bases, namespace):
                mcls.names.add(name)
                return super().__new__(mcls, name, bases, namespace)
        async def main():
            TestMeta("T", (), {})
        """,
    "a list that its function made itself, and not the default": """\
        class Table:
            def __init__(self, *, rows: Sequence = []):
                self.rows = rows
            @classmethod
            def decode(cls, data):
                table = Table()
                table.rows = []
                for one in data:
                    table.rows.append(one)
                return table
        """,
    "a generator under a decorator, which one task reads": """\
        class Orchestrator:
            @traced
            async def turns(self):
                while self.turn < 3:
                    await self.ask()
                    self.turn = self.next(self.turn)
                    yield self.turn
        """,
    "a copy of a context variable's default, and what isn't the default": """\
        from contextvars import ContextVar
        SPANS = ContextVar("spans", default={})
        NOTES = ContextVar("notes", default=[])
        def note(key):
            spans = dict(SPANS.get())
            spans[key] = 1
            notes = NOTES.get(None)
            if notes is not None:
                notes.append(key)
        """,
}
