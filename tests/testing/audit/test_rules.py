"""Each rule finds the fault it is for, and says nothing about the code with the fault taken out."""

import textwrap
from pathlib import Path

import pytest

from harness.testing.audit import Finding, audit_paths, audit_source
from tests.testing.audit.right_programs import RIGHT
from tests.testing.audit.wrong_programs import WRONG, Wrong


def audit(text: str) -> list[Finding]:
    return audit_source(textwrap.dedent(text), "agents.py")


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_the_fault_is_found_where_it_is(wrong: Wrong) -> None:
    found = audit(wrong.text)
    assert [(one.rule, one.symbol, one.line) for one in found] == [
        (wrong.rule, wrong.symbol, wrong.line)
    ]
    assert wrong.symbol.rpartition(".")[2].partition("(")[0] in found[0].message
    assert found[0].why
    assert found[0].fix


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_code_put_right_is_left_alone(text: str) -> None:
    assert audit(text) == []


def test_one_decision_about_several_things_is_one_finding() -> None:
    (found,) = audit(
        """\
        class Client:
            async def get(self):
                if self.session is None:
                    self.session = await self.open()
                    self.opened_at = self.now()
                    self.session_id = self.session.id
                    if self.session_id: pass
                if self.count:
                    await self.ping()
                    self.count = 0
        """
    )
    assert found.symbol == "Client.session"
    assert "also self.count" in found.message


def test_an_attribute_of_a_class_is_found_once_and_not_also_as_a_check_then_act() -> None:
    """To keep it per call mends both, and the second finding only asked for a lock."""
    found = audit(
        """\
        import asyncio
        class Agent:
            async def stream(self, prompts):
                self.cancelled = False
                for prompt in prompts:
                    if self.cancelled:
                        break
                    await asyncio.sleep(0)
            async def run(self, prompts):
                for prompt in prompts:
                    if self.cancelled:
                        break
                    await asyncio.sleep(0)
                self.cancelled = True
        """
    )
    assert [(one.rule, one.symbol) for one in found] == [
        ("shared-instance-state", "Agent.cancelled")
    ]


SCRIPT = (
    "import random\nimport trio\nasync def run(seed):\n    random.seed(seed)\n    await serve()\n"
    "def main():\n    trio.run(run, 1)\n"
)
GUARD = 'if __name__ == "__main__":\n    main()\n'

SHOWN_BY = {
    "a module that isn't a script": (SCRIPT, "", GUARD),
    "a script that runs it many times": (
        SCRIPT,
        f"    for seed in range(9):\n        trio.run(run, seed)\n{GUARD}",
        GUARD,
    ),
    "a script that starts it as a task": (
        SCRIPT,
        f"async def several():\n    nursery.start_soon(run, 2)\n{GUARD}",
        GUARD,
    ),
    "a read after an await": (
        "current = None\nasync def ask(text):\n    global current\n    current = text.strip()\n",
        "    await send()\n    return current\n",
    ),
    "what earlier calls added": (
        "said = []\nasync def ask(text):\n    said.append(text)\n",
        "    return said\n",
    ),
    "a reader that the caller calls next": (
        "said = []\ndef note(text):\n    said.append(text)\ndef tell():\n    return said\n"
        "async def ask(text):\n    note(text)\n",
        "    return tell()\n",
    ),
    "keys that callers give": (
        "class Desks:\n    async def desk(self, name):\n        if self.desks[name] is None:\n"
        "            desk = await self.make(name)\n            ",
        "self.desks[name] = desk\n",
        "self.last = desk\n            if self.last: pass\n            self.desks['last'] = desk\n",
    ),
    "a lock elsewhere in the class": (
        "import asyncio\nclass Desk:\n    async def answer(self):\n"
        "        if self.session is None:\n"
        "            await self.ring()\n            self.session = Door()\n",
        "    def lock(self):\n        self.turn = asyncio.Lock()\n",
    ),
    "an object that the module makes": (
        "class Desk:\n    async def answer(self):\n        if self.session is None:\n"
        "            await self.ring()\n            self.session = Door()\n",
        "DESKS = [make(Desk())]\n",
    ),
    "a name that says one for all": (
        "",
        "class DeskManager:\n    async def answer(self):\n        if self.session is None:\n"
        "            await self.ring()\n            self.session = Door()\n",
        "class DeskRequest:\n    async def answer(self):\n        if self.session is None:\n"
        "            await self.ring()\n            self.session = Door()\n",
    ),
    "a connection that is opened": (
        "class Desk:\n    async def answer(self):\n        if self.session is None:\n"
        "            await self.ring()\n",
        "            self.session = await connect()\n",
        "            self.session = Door()\n",
    ),
    "another caller than the loop": (
        "class DeskManager:\n    async def _one(self):\n        if self.session is None:\n"
        "            await self.ring()\n            self.session = Door()\n"
        "    async def run(self):\n        await self._one()\n",
        "    async def ask(self):\n        await self._one()\n",
    ),
    "something other than a look is done twice": (
        "class DeskManager:\n    async def update(self):\n        if not self.ready:\n",
        "            await self.subscribe()\n            self.ready = True\n",
        "            await self._async_poll()\n            self.ready = True\n",
    ),
    "an entry that is made, and not only found": (
        "class DeskManager:\n    async def get_desk(self, name):\n"
        "        desk = self.desks.get(name)\n        if desk: return desk\n"
        "        place = await self.open(name)\n",
        "        desk = Desk(place)\n        self.desks[name] = desk\n        return desk\n",
        "        desk = place.number()\n        self.desks[name] = desk\n        return desk\n",
    ),
    "an entry that something is done for, and not only looked up": (
        "class DeskManager:\n    async def ",
        "add_desk(self, name):\n        if name in self.known: return True\n"
        "        await self.query(name)\n        self.known.add(name)\n",
        "has_desk(self, name):\n        if name in self.known: return True\n"
        "        await self.query(name)\n        self.known.add(name)\n",
    ),
    "a table of sessions, and not of what sessions have": (
        "class DeskManager:\n    async def find_desks(self, name):\n",
        "        if name in self._sessions: return self._sessions[name]\n"
        "        found = []\n        await self.query(found)\n"
        "        self._sessions[name] = found\n        return list(self._sessions[name])\n",
        "        if name in self._session_desk_map: return self._session_desk_map[name]\n"
        "        found = []\n        await self.query(found)\n"
        "        self._session_desk_map[name] = found\n"
        "        return list(self._session_desk_map[name])\n",
    ),
    "a worker started twice": (
        "class DeskManager:\n    async def answer(self, nursery):\n        async def worker():\n"
        "            while True:\n                if self.rate > 1:\n"
        "                    await self.sleep()\n                    self.rate = self.now()\n"
        "        nursery.start_soon(worker)\n",
        "        nursery.start_soon(worker)\n",
        "",
    ),
    "a manager of many, and not of one block": (
        "",
        "class DeskManager:\n    async def _apply(self):\n        if self.applied: return\n"
        "        await self.bind()\n        self.applied = True\n",
        "class DeskContextManager:\n    async def _apply(self):\n"
        "        if self.applied: return\n"
        "        await self.bind()\n        self.applied = True\n",
    ),
    "a token that is fetched, and not read where it is": (
        "class DeskManager:\n    async def token_of(self):\n        if self.token == '':\n",
        "            self.token = await self.fetch()\n",
        "            self.token = await self.read()\n",
    ),
    "another message than the loop's next": (
        "class DeskManager:\n    async def ",
        "answer(self, one):\n        if self.last != one:\n            await self.ring()\n"
        "        self.last = one.number\n",
        "_process_call_message(self, one):\n        if self.last != one:\n"
        "            await self.ring()\n        self.last = one.number\n",
    ),
    "a function that isn't the program's main one": (
        "from server import Server\nserver = Server()\n",
        "async def answer(port):\n    server.port = port\n    await server.run(server.port)\n",
        "async def async_main(port):\n    server.port = port\n    await server.run(server.port)\n",
    ),
    "a wait while prints are redirected": (
        "import contextlib\nasync def ask(tool):\n    with contextlib.redirect_stdout(tool):\n",
        "        await tool()\n",
        "        tool()\n",
    ),
}
"""What makes a finding worth a look: a program, what shows it, and what there is without it."""


@pytest.mark.parametrize("texts", SHOWN_BY.values(), ids=SHOWN_BY)
def test_without_anything_that_shows_that_calls_meet_a_finding_is_a_maybe(
    texts: tuple[str, ...],
) -> None:
    program, shown, *otherwise = texts
    assert [one for one in audit(program + shown) if not one.maybe]
    without = audit(program + "".join(otherwise))
    assert without
    assert all(one.maybe for one in without)


@pytest.mark.parametrize(
    ("owner", "method", "write", "why"),
    [
        ("DeskManager", "answer", "session = Door()", "by its name, one DeskManager serves many"),
        ("Desk", "ensure_door", "session = Door()", "its name says that whoever"),
        ("Desk", "answer", "session = await connect()", "two callers would open one each"),
        ("Desk", "answer", "session += price", "an addition in between would be lost"),
    ],
)
def test_a_decision_says_why_several_tasks_take_it(
    owner: str, method: str, write: str, why: str
) -> None:
    """A reader who isn't told why calls should meet there has to believe it, or not."""
    (found,) = audit(
        f"class {owner}:\n    async def {method}(self):\n        if self.session is None:\n"
        f"            await self.ring()\n            self.{write}\n"
    )
    assert f"with an await in between and no lock; {why}" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "class Desk:\n    async def note(self, name):\n        if self.seen is not None:\n"
        "            await self.ring()\n            self.seen[name] = 1\n",
        "class Desk:\n    async def note(self, name):\n"
        "        if not self.seen or not self.names:\n            raise ValueError\n"
        "        await self.ring()\n        self.seen[name] = 1\n",
    ],
)
def test_a_table_that_only_has_to_be_there_is_left_alone(text: str) -> None:
    assert audit(text) == []
    assert audit(
        text.replace("self.seen is not None", "name not in self.seen").replace(
            "not self.seen or", "name in self.seen or"
        )
    )


BUSY = """\
class TableManager:
    async def refresh(self, force=False):
        if self.busy:
            return
        try:
            self.busy = True
            if not force and self.refreshed_at > limit:
                return
            await self.ask()
            self.refreshed_at = now
        finally:
            self.busy = False
"""


def test_a_flag_set_before_the_first_await_is_a_lock() -> None:
    assert audit(BUSY) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("        try:\n", "        await self.ring()\n        try:\n"),
        ("            self.busy = True\n", ""),
        ("            self.busy = False\n", "            pass\n"),
        ("        if self.busy:\n            return\n", ""),
    ],
)
def test_a_flag_that_lets_two_in_is_no_lock(right: str, wrong: str) -> None:
    assert any(not one.maybe for one in audit(BUSY.replace(right, wrong)))


RFC = """\
import asyncio
import trio
class Manager:
    def __init__(self):
        self.pending = []
class BaseAgent:
    def __init__(self, name):
        self.name = name
        self._cancelled = False
        self._current_stream_task = None
        self._event_queue = asyncio.Queue()
        self._injection_manager = Manager()
    async def run_stream(self, prompts, deps=None):
        self._cancelled = False
        self._current_stream_task = asyncio.current_task()
        for p in prompts:
            if self._cancelled:
                break
            await asyncio.sleep(0)
            yield p
"""
USES = {
    "the class of a library": "",
    "the closure of a test": """\
async def test():
    agent = BaseAgent("t")
    async def one(marker):
        return [event async for event in agent.run_stream(marker)]
    await asyncio.gather(*[one(f"M{number}") for number in range(10)])
""",
    "a comprehension": """\
async def test():
    agent = BaseAgent("t")
    await asyncio.gather(*[agent.run_stream([number]) for number in range(10)])
""",
    "a loop that starts tasks": """\
async def test():
    agent = BaseAgent("t")
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(agent.run_stream, [number])
""",
    "an object of the module": """\
agent = BaseAgent("t")
async def handler(question):
    return agent.run_stream([question])
""",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_each_field_that_calls_of_one_object_share_is_named(use: str) -> None:
    found = audit(RFC + use)
    owner = "agent" if use else "BaseAgent"
    fields = ("_cancelled", "_current_stream_task", "_event_queue", "_injection_manager")
    assert sorted(one.symbol for one in found) == [f"{owner}.{field}" for field in fields]


def test_two_attributes_that_one_statement_sets_are_two_findings() -> None:
    found = audit(
        """\
        class Agent:
            async def ask(self, user, text):
                self.user, self.text = user, text
                await self.send()
                return self.user, self.text
        AGENT = Agent()
        """
    )
    assert [one.symbol for one in found] == ["AGENT.user", "AGENT.text"]


def test_a_model_of_another_file_copies_private_attributes_for_classes_below(
    tmp_path: Path,
) -> None:
    """With the base class in another file, the copies weren't known, and this was a finding."""
    (tmp_path / "base.py").write_text("import pydantic\nclass Base(pydantic.BaseModel): ...\n")
    below = """\
        from base import {base}
        class Agent({base}):
            _messages = []
            async def run(self, text):
                self._messages.append(text)
        """
    (tmp_path / "agent.py").write_text(textwrap.dedent(below.format(base="Base")))
    assert audit_paths([tmp_path]) == []
    (tmp_path / "agent.py").write_text(textwrap.dedent(below.format(base="Other")))
    assert [one.symbol for one in audit_paths([tmp_path])] == ["Agent._messages"]


def test_an_audit_tells_how_far_it_has_come(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    told: list[tuple[int, int]] = []
    audit_paths([tmp_path], tell=lambda done, steps: told.append((done, steps)))
    assert told == [(step, 6) for step in range(6)]


def test_a_class_of_another_file_is_known(tmp_path: Path) -> None:
    """The instance is made in one file, and its class stands in another."""
    (tmp_path / "agents.py").write_text(
        "import trio\nclass Agent:\n    async def ask(self, q):\n        self.q = q\n"
        "        await trio.sleep(0)\n        return self.q\n"
    )
    (tmp_path / "app.py").write_text("from agents import Agent\nAGENT = Agent()\n")
    found = audit_paths([tmp_path])
    assert [(Path(one.path).name, one.symbol) for one in found] == [("agents.py", "AGENT.q")]


def test_a_script_that_another_file_imports_is_a_module(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(SCRIPT + GUARD)
    assert [one.maybe for one in audit_paths([tmp_path])] == [True]
    (tmp_path / "batch.py").write_text("from desk import run\n")
    assert [one.maybe for one in audit_paths([tmp_path])] == [False]
