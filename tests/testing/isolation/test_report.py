"""What a failure says: it is read by people who don't know where to look."""

import re
import time
from typing import ClassVar

import pytest
import trio
import trio.lowlevel

from harness.errors import ScheduleError
from harness.testing import assert_isolated
from tests.testing.isolation import kinds

pytestmark = pytest.mark.slow


class Chat:
    messages: ClassVar[list[str]] = []

    async def ask(self, question: str) -> str:
        self.messages.append(question)
        await trio.sleep(1)
        asked = self.messages.copy()
        self.messages.remove(question)
        return ",".join(asked)


async def agent(question: str) -> str:
    return await Chat().ask(question)


async def report_of(inputs: list[str]) -> tuple[str, ScheduleError]:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(agent, inputs)
    return str(caught.value), caught.value


async def test_the_whole_report() -> None:
    text, error = await report_of(["a", "b"])
    assert error.objects == (f"{__name__}.Chat.messages",)
    # Marks in a replay string are hashes of the code.
    text = re.sub(r"schedule='[^']*'", "schedule='...'", text)
    # How many orders there are to prove it under is the search's affair.
    text = re.sub(r"in \d+ replays", "in N replays", text)
    assert text == REPORT


async def test_a_method_is_not_replayed_by_the_name_of_its_class() -> None:
    with pytest.raises(ScheduleError, match=r"Chat\.ask is not isolated") as caught:
        await assert_isolated(Chat().ask, ["a", "b"])
    assert "replay: await assert_isolated(agent_fn, inputs, " in str(caught.value)


LINE = Chat.ask.__code__.co_firstlineno
REPORT = f"""\
agent is not isolated: together, run 2 gives something else than alone (schedule 1)

  run 2 ('b')
    alone:    'b'
    together: 'a,b'

{__name__}.Chat.messages  (list)
  written by run 1 ('a') at Chat.ask (test_report.py:{LINE + 1})
  written by run 2 ('b') at Chat.ask (test_report.py:{LINE + 1})
  written by run 2 ('b') at Chat.ask (test_report.py:{LINE + 4})
  written by run 1 ('a') at Chat.ask (test_report.py:{LINE + 4})
  read by run 2 ('b') at Chat.ask (test_report.py:{LINE + 3})
proof: in N replays in which it had contents of its own for each run, every run gave what it \
gives alone

step | run 1 ('a')                           | run 2 ('b')
-----+---------------------------------------+--------------------------------------
   1 | writes messages; test_report.py:{LINE + 2}    |
   2 |                                       | writes messages; test_report.py:{LINE + 2}
   3 |                                       | reads messages, writes messages; ends
   4 | reads messages, writes messages; ends |

replay: await assert_isolated(agent, inputs, schedule='...')
fix: make it a local variable of the function; or open a run for each call, with \
@harness.open_run('agent'), and keep it there, as in messages = harness.RunLocal(list, \
name='messages'); without the decorator the RunLocal is the surrounding run's, for what its calls \
are meant to share"""


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("global_dict", "as in STATE = harness.RunLocal(dict, name='STATE'); without"),
        ("keyword_default", "make the default None"),
        ("cached_list", "don't cache what runs change"),
        ("global_random", "random.Random(seed)"),
        ("environment", "pass it as an argument"),
        ("two_locks", "take several of its kind in the same order"),
        ("unread_reply", "in order when a run is cancelled (try/finally)"),
    ],
)
async def test_the_fix_fits_the_kind(name: str, advice: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(getattr(kinds, name), kinds.INPUTS)
    last = str(caught.value).splitlines()[-1]
    assert last.startswith("fix: ")
    assert advice in last


async def test_a_deadlock_says_once_who_waits_where() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(kinds.two_locks, kinds.INPUTS)
    lines = str(caught.value).splitlines()
    assert "    together: never ended; it waits in two_locks (kinds.py:" in "\n".join(lines)
    assert len([line for line in lines if "task 'run 1' waits in two_locks" in line]) == 1


async def test_a_long_output_is_told_apart() -> None:
    parts: list[str] = []

    async def wordy(text: str) -> dict[str, list[str]]:
        parts[:] = [text]
        await trio.lowlevel.checkpoint()
        return {"long": ["x" * 200], "short": [parts[0]]}

    with pytest.raises(ScheduleError, match=r"differ    at \['short'\]\[0\]: 'a' and 'b'"):
        await assert_isolated(wordy, ["a", "b"])


async def test_runs_that_have_nothing_to_do_with_it_are_left_out() -> None:
    """A table of two columns can be read; one of six can't."""
    text, _ = await report_of(["a", "b", "c", "d", "e", "f"])
    assert len(re.findall(r"^step \| (run .*)$", text, re.MULTILINE)[0].split("|")) == 2


@pytest.mark.speed
async def test_shrinking_and_report_take_less_than_two_seconds() -> None:
    class Session:
        current: ClassVar[str] = ""

    async def ten_steps(user: str) -> str:
        Session.current = user
        for _ in range(9):
            await trio.lowlevel.checkpoint()
        return Session.current

    begin = time.perf_counter()
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(ten_steps, ["a", "b", "c", "d"])
    assert time.perf_counter() - begin < 2
    assert caught.value.objects == (
        "Session.current (local of test_shrinking_and_report_take_less_than_two_seconds)",
    )
