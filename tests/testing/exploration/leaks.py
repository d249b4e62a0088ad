"""Seven faults that were reported of real programs, each small, each with its correction.

A leak is an async test that fails under some order of its tasks; its twin is the same program
without the fault. What a report has to name is written next to each pair in `LEAKS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import attrs
import trio

import harness
from harness import RunLocal

AsyncTest = Callable[[], Awaitable[None]]


async def steps(count: int) -> None:
    """Do something that takes so many steps and touches nothing."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


# A connection goes back to its pool with a reply that nobody has read. ---------------------------


class Connection:
    """Replies come in the order of the requests."""

    def __init__(self) -> None:
        self.unread: deque[str] = deque()

    async def request(self, question: str) -> str:
        self.unread.append(f"reply to {question}")
        await steps(2)
        return self.unread.popleft()


class CarefulConnection(Connection):
    """Throws away what a cancelled request has left unread."""

    async def request(self, question: str) -> str:
        try:
            return await super().request(question)
        except trio.Cancelled:
            self.unread.clear()
            raise


class Pool:
    """One connection, for one at a time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.free = trio.Semaphore(1)

    async def ask(self, question: str) -> str:
        async with self.free:
            return await self.connection.request(question)


POOL = Pool(Connection())
CAREFUL_POOL = Pool(CarefulConnection())


def unread_reply(pool: Callable[[], Pool]) -> AsyncTest:
    async def test() -> None:
        answers: list[str] = []
        scope = trio.CancelScope()

        async def impatient() -> None:
            with scope:
                await pool().ask("impatient")

        async def patient() -> None:
            answers.append(await pool().ask("patient"))

        async def stop() -> None:
            await steps(1)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(impatient)
            nursery.start_soon(stop)
            nursery.start_soon(patient)
        assert answers == ["reply to patient"]

    return test


# One agent object serves all, and keeps the request it works on. ---------------------------------


class Receptionist:
    """Remembers whom it talks to."""

    def __init__(self) -> None:
        self.guest: str | None = None

    async def greet(self, name: str) -> str:
        self.guest = name
        await steps(2)
        return f"welcome, {self.guest}"


class ForgetfulReceptionist:
    """Keeps the guest in the call."""

    async def greet(self, name: str) -> str:
        guest = name
        await steps(2)
        return f"welcome, {guest}"


RECEPTIONIST = Receptionist()
FORGETFUL_RECEPTIONIST = ForgetfulReceptionist()


async def _greet_all(greet: Callable[[str], Awaitable[str]]) -> None:
    greetings: dict[str, str] = {}

    async def one(name: str) -> None:
        greetings[name] = await greet(name)

    async with trio.open_nursery() as nursery:
        for name in ("Ada", "Grace", "Mary"):
            nursery.start_soon(one, name)
    assert greetings == {name: f"welcome, {name}" for name in greetings}


async def kept_request() -> None:
    await _greet_all(RECEPTIONIST.greet)


async def request_in_the_call() -> None:
    await _greet_all(FORGETFUL_RECEPTIONIST.greet)


# A default argument is one object for all calls. -------------------------------------------------


class Worker:
    """Takes what it is given, and what all before it were given."""

    def __init__(self, name: str, tools: list[str] = []) -> None:  # noqa: B006 - that is the fault
        self.name = name
        self.tools = tools

    async def learn(self, tool: str) -> list[str]:
        self.tools.append(tool)
        await steps(1)
        return list(self.tools)


class FreshWorker(Worker):
    """Begins with an empty bag."""

    def __init__(self, name: str) -> None:
        super().__init__(name, [])


def default_argument(make: Callable[[str], Worker]) -> AsyncTest:
    async def test() -> None:
        learned: dict[str, list[str]] = {}

        async def one(name: str) -> None:
            learned[name] = await make(name).learn(f"tool of {name}")

        async with trio.open_nursery() as nursery:
            for name in ("p", "q"):
                nursery.start_soon(one, name)
        assert learned == {name: [f"tool of {name}"] for name in learned}

    return test


# Two find a token expired, and both get a new one; the first of them is no longer valid. ---------


class Issuer:
    """Only the token issued last is valid."""

    def __init__(self) -> None:
        self.issued = 0

    async def issue(self) -> int:
        self.issued += 1
        token = self.issued
        await steps(1)
        return token


class Session:
    """Looks, waits, and then sets."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.token: int | None = None

    async def current(self) -> int:
        if self.token is None:
            self.token = await self.issuer.issue()
        return self.token


class LockedSession(Session):
    """Looks and sets under a lock."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__(issuer)
        self.lock = trio.Lock()

    async def current(self) -> int:
        async with self.lock:
            return await super().current()


def token_refresh(make: Callable[[Issuer], Session]) -> AsyncTest:
    async def test() -> None:
        issuer = Issuer()
        session = make(issuer)

        async def call(late: int) -> None:
            await steps(late)
            token = await session.current()
            await steps(1)
            assert token == issuer.issued, "401"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, 0)
            nursery.start_soon(call, 6)
        assert issuer.issued == 1

    return test


# A permit is handed to one waiter; if that one is cancelled on waking, it is lost. ---------------


class Gate:
    """Lets one in at a time, and hands its place to the next in line."""

    def __init__(self) -> None:
        self.open = True
        self.line: deque[trio.Event] = deque()

    async def enter(self) -> None:
        if self.open:
            self.open = False
            return
        turn = trio.Event()
        self.line.append(turn)
        await turn.wait()
        await steps(1)

    def leave(self) -> None:
        if self.line:
            self.line.popleft().set()
        else:
            self.open = True


class FairGate(Gate):
    """A waiter that gives up passes on what it was handed, or leaves the line."""

    async def enter(self) -> None:
        if self.open:
            self.open = False
            return
        turn = trio.Event()
        self.line.append(turn)
        try:
            await turn.wait()
            await steps(1)
        except trio.Cancelled:
            if turn in self.line:
                self.line.remove(turn)
            else:
                self.leave()
            raise


def lost_wakeup(make: Callable[[], Gate]) -> AsyncTest:
    async def test() -> None:
        gate = make()
        scope = trio.CancelScope()
        entered: list[str] = []

        async def first() -> None:
            await gate.enter()
            await steps(2)
            gate.leave()

        async def gives_up() -> None:
            with scope:
                await steps(1)
                await gate.enter()
                gate.leave()

        async def last() -> None:
            await steps(1)
            await gate.enter()
            entered.append("last")
            gate.leave()

        async def stop() -> None:
            await steps(6)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            for task in (first, gives_up, last, stop):
                nursery.start_soon(task)
        assert entered == ["last"]

    return test


# A failed turn cuts the history back to its own beginning, and cuts off what others said since. --


def rollback(*, only_own: bool) -> AsyncTest:
    async def test() -> None:
        history: list[str] = []

        async def turn(who: str, late: int, *, fails: bool) -> None:
            await steps(late)
            began = len(history)
            history.append(f"{who} asks")
            await steps(2)
            if not fails:
                history.append(f"{who} is answered")
            elif only_own:
                history.remove(f"{who} asks")
            else:
                del history[began:]

        async def failing() -> None:
            await turn("A", 0, fails=True)

        async def good() -> None:
            await turn("B", 7, fails=False)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(failing)
            nursery.start_soon(good)
        assert history == ["B asks", "B is answered"]

    return test


# The folder of the run that works is a global of the module. -------------------------------------

folder: str | None = None
run_folder: RunLocal[str | None] = RunLocal(lambda: None, name="run_folder")


async def _write(name: str) -> str:
    await steps(1)
    return f"{folder}/{name}"


async def agent_with_global(place: str) -> list[str]:
    global folder
    folder = place
    return [await _write("one"), await _write("two")]


async def agent_with_run_local(place: str) -> list[str]:
    async with harness.open_run("agent"):
        run_folder.set(place)
        await steps(2)
        return [f"{run_folder.get()}/one", f"{run_folder.get()}/two"]
    raise AssertionError("nobody cancels it")


def global_folder(agent: Callable[[str], Awaitable[list[str]]]) -> AsyncTest:
    async def test() -> None:
        written: dict[str, list[str]] = {}

        async def one(place: str) -> None:
            written[place] = await agent(place)

        async with trio.open_nursery() as nursery:
            for place in ("/a", "/b"):
                nursery.start_soon(one, place)
        assert written == {place: [f"{place}/one", f"{place}/two"] for place in written}

    return test


@attrs.frozen
class Leak:
    """A faulty test, its twin, and what a report must name."""

    test: AsyncTest
    corrected: AsyncTest
    names: str
    """The end of a path that must be among the objects, or a part of the message."""


LEAKS = {
    "unread reply": Leak(
        unread_reply(lambda: POOL), unread_reply(lambda: CAREFUL_POOL), "POOL.connection.unread"
    ),
    "kept request": Leak(kept_request, request_in_the_call, "RECEPTIONIST.guest"),
    "default argument": Leak(
        default_argument(Worker), default_argument(FreshWorker), "Worker.__init__.__defaults__[0]"
    ),
    "token refresh": Leak(
        token_refresh(Session), token_refresh(LockedSession), "Session.token (local of test)"
    ),
    "lost wakeup": Leak(lost_wakeup(Gate), lost_wakeup(FairGate), "'last' waits in Gate.enter"),
    "rollback": Leak(rollback(only_own=False), rollback(only_own=True), "history (local of test)"),
    "global folder": Leak(
        global_folder(agent_with_global), global_folder(agent_with_run_local), "folder"
    ),
}
