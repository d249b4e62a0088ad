"""The example of a chat: a page and web sockets, over real connections."""

import pytest
import trio

import chat_server
from tests.examples.headers import promised_output

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]


async def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    await chat_server.main()
    assert capsys.readouterr().out.splitlines() == promised_output(chat_server)


async def test_many_visitors_never_see_each_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, str] = {}

    async def many(address: str) -> None:
        async def visit(number: int) -> None:
            said[f"visitor {number}"] = await chat_server.chat_a_little(
                address, f"visitor {number}"
            )

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(visit, number)

    monkeypatch.setattr(chat_server, "be_visitors", many)
    await chat_server.main()
    assert said == {
        name: f"3 from you: I am {name}., I have a question., Who is {name}?" for name in said
    }
    assert "20 of the visitors: 3 answers" in capsys.readouterr().out
