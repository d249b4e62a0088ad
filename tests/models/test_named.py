"""A model by its name: read as on the command line, open while it is used, priced by a table."""

from __future__ import annotations

import copy
import datetime
import pickle
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import harness
from harness import models
from harness.agents import Agent
from harness.errors import MissingApiKeyError, MissingPriceError
from harness.limits import Limiter
from harness.models import (
    Message,
    ModelRequest,
    NamedModel,
    OpenAIModel,
    Price,
    PriceTable,
    is_model_name,
)
from harness.testing.provider import open_provider
from tests.models.providers import ask

TABLE = """\
dated = 2026-01-31

["openai:m"]
input_usd_per_million_tokens = 2
output_usd_per_million_tokens = 8.0
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "prices.toml"
    path.write_text(TABLE)
    return str(path)


@asynccontextmanager
async def simulated_openai(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[list[str]]:
    """Stand in for OpenAI, and note each time that clients are opened and closed."""
    noted: list[str] = []

    class Noted(OpenAIModel):
        async def __aenter__(self) -> Noted:
            noted.append("open")
            return await super().__aenter__()

        async def __aexit__(self, *args: object) -> None:
            await super().__aexit__(*args)
            noted.append("closed")

    async with open_provider(answer=lambda request: request.prompt) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.base_url}/v1")
        monkeypatch.setattr(models, "OpenAIModel", Noted)
        yield noted


def test_names_have_the_forms_of_the_command_line() -> None:
    for name in ("sim", "openai:gpt-5-mini", "anthropic:claude", "local:a b.gguf"):
        assert is_model_name(name)
    for name in ("", "gpt-4o", "openai:", "Sim", "simulated", "mistral:large"):
        assert not is_model_name(name)
        with pytest.raises(ValueError, match="write openai:NAME, anthropic:NAME, local:PATH"):
            NamedModel(name)
        with pytest.raises(ValueError, match="names no model"):
            Agent("a", model=name)
    with pytest.raises(TypeError, match="names no model"):
        NamedModel(3)  # type: ignore[arg-type]


async def test_an_agent_takes_the_name_of_a_model() -> None:
    agent = Agent("a", model="sim")
    assert (await agent.run("hello")).output == "simulated answer to: hello"
    again = pickle.loads(pickle.dumps(agent))
    assert (await again.run("hello")).output == "simulated answer to: hello"
    async with agent.stream("hello") as stream:
        assert "".join([e.payload.text async for e in stream if hasattr(e.payload, "text")])


@pytest.mark.slow
async def test_runs_side_by_side_share_what_is_open_and_the_last_one_closes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with simulated_openai(monkeypatch) as noted:
        agent = Agent("a", model="openai:m")
        await harness.fan_out(agent, ["one"] * 20)
        assert noted == ["open", "closed"]
        await agent.run("again")
        assert noted == ["open", "closed"] * 2
        assert isinstance(agent.model, NamedModel)
        async with agent.model:
            await agent.run("one")
            await agent.run("two")
            assert noted == [*["open", "closed"] * 2, "open"]
        assert noted == ["open", "closed"] * 3
        assert (await agent.model.complete(ask("alone"))).content == "alone"
        async with agent.model.stream(ask("in pieces")) as stream:
            assert "".join([piece async for piece in stream if isinstance(piece, str)])


async def test_a_cancel_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated_openai(monkeypatch) as noted:
        agent = Agent("a", model="openai:m")
        for _ in range(3):
            with trio.CancelScope() as scope:
                scope.cancel()
                await agent.run("hello")
        assert noted.count("open") == noted.count("closed")
        assert (await agent.run("hello")).output == "hello"


async def test_a_missing_key_is_told_by_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(MissingApiKeyError, match="OPENAI_API_KEY"):
        await Agent("a", model="openai:m").run("hello")


def test_a_copy_may_have_another_limiter() -> None:
    named = NamedModel("sim")
    other = copy.copy(named)
    other.limiter = Limiter("other", concurrent=1)
    assert named.limiter is None
    assert other._use is not named._use


# Prices -------------------------------------------------------------------------------------------


def test_a_table_has_a_date_and_exact_names(table: str) -> None:
    read = PriceTable.read(table)
    assert read.dated == datetime.date(2026, 1, 31)
    price = Price(input_usd_per_million_tokens=2, output_usd_per_million_tokens=8)
    assert dict(read.prices) == {"openai:m": price}
    assert NamedModel("openai:m", prices=table).price == price
    assert NamedModel("openai:m-2026", prices=read).price is None


def test_the_environment_names_a_table(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NamedModel("openai:m").price is None
    monkeypatch.setenv("HARNESS_PRICES", table)
    assert NamedModel("openai:m").price is not None


@pytest.mark.parametrize(
    ("name", "words"),
    [("openai:other", "isn't in .*prices.toml, dated 2026-01-31"), ("openai:m", None)],
)
async def test_a_model_without_a_price_is_not_guessed_at_but_says_so(
    name: str, words: str | None, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with simulated_openai(monkeypatch):
        agent = Agent("a", model=NamedModel(name, prices=table))
        async with harness.open_run("night", budget=harness.Budget(cost_usd=1.0)):
            if words is None:
                assert (await agent.run("hello")).output == "hello"
                assert harness.budgets.budget_left().cost_usd < 1.0  # type: ignore[operator]
            else:
                with pytest.raises(MissingPriceError, match=words):
                    await agent.run("hello")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    with pytest.raises(MissingPriceError, match="HARNESS_PRICES names no table"):
        async with harness.open_run("night", budget=harness.Budget(cost_usd=1.0)):
            await NamedModel("anthropic:m").complete(ModelRequest([Message("user", "hi")]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "doesn't say of which day"),
        ("dated = 2026-01-31T10:00:00", "doesn't say of which day"),
        ("dated =", "is no TOML"),
        ('dated = 2026-01-31\n["a"]\n', "no price for 'a'"),
        (f"{TABLE}cached_usd = 1", "no price for 'openai:m' .*cached_usd"),
        (TABLE.replace("8.0", '"8"'), "no price for 'openai:m'"),
        ("dated = 2026-01-31\na = 3", "no price for 'a'"),
    ],
)
def test_a_table_that_cant_be_read_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        PriceTable.read(path)
    with pytest.raises(OSError, match=r"none\.toml"):
        NamedModel("sim", prices=tmp_path / "none.toml")


def test_any_price_can_be_in_a_table(tmp_path: Path) -> None:
    fields: dict[str, Any] = dict.fromkeys(
        (
            "input_usd_per_million_tokens",
            "output_usd_per_million_tokens",
            "cached_input_usd_per_million_tokens",
            "cache_write_usd_per_million_tokens",
        ),
        1.5,
    )
    lines = [f"{name} = {value}" for name, value in fields.items()]
    path = tmp_path / "p.toml"
    path.write_text("\n".join(["dated = 2026-01-31", '["anthropic:m"]', *lines]))
    assert PriceTable.read(path).prices["anthropic:m"] == Price(**fields)
