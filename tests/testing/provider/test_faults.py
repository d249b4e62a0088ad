"""What goes wrong on purpose: how often, to whom, and the same again in the next run."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from harness.testing.provider import Faults, Provider, Storm, lognormal, open_provider
from harness.testing.provider import _fates as faults_module
from harness.testing.provider._fates import RequestFate, RequestFates
from tests.testing.provider.asks import CHAT, MESSAGES, PATHS, ask, echo


async def outcome(provider: Provider, prompt: str, *, path: str = CHAT, **more: Any) -> str:
    """Return in a word what became of a request."""
    with trio.move_on_after(1000):
        try:
            reply = await provider.request(path, ask(path, prompt, **more))
        except trio.BrokenResourceError:
            return "cut"
        if reply.status != 200:
            return str(reply.status)
        if more.get("stream"):
            payloads = [line[6:] for line in reply.body.splitlines() if line.startswith("data: ")]
            return "ok" if all(map(is_json, payloads)) else "malformed"
        return "ok" if isinstance(reply.body, dict) else "malformed"
    return "hang"


def is_json(text: str) -> bool:
    """Return whether ``text`` is JSON, or the end mark of a chat stream."""
    try:
        json.loads(text)
    except ValueError:
        return text == "[DONE]"
    return True


EVERYTHING = Faults(7, errors={500: 0.1, 529: 0.1, 429: 0.1}, cut=0.1, malformed=0.1, hang=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_fault_happens_as_often_as_asked(
    path: str, stream: bool, autojump_clock: MockClock
) -> None:
    outcomes: list[str] = []

    async def one(number: int) -> None:
        outcomes.append(await outcome(provider, f"question {number}", path=path, stream=stream))

    async with open_provider(answer=echo, faults=EVERYTHING, http=False) as provider:
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(one, number)
        counted = provider.statistics()

    assert sorted(set(outcomes)) == ["429", "500", "529", "cut", "hang", "malformed", "ok"]
    for kind in ("429", "500", "529", "cut", "hang", "malformed"):
        assert 60 < outcomes.count(kind) < 140  # 100 expected, four standard deviations.
    assert counted.errors == {int(kind): outcomes.count(kind) for kind in ("429", "500", "529")}
    assert counted.cut == outcomes.count("cut")
    assert counted.malformed == outcomes.count("malformed")
    assert counted.hung == outcomes.count("hang")
    assert counted.answered == outcomes.count("ok") + outcomes.count("malformed")
    assert counted.accepted == 1000 - sum(counted.errors.values())
    assert counted.violations == counted.invalid == 0
    assert counted.requests == counted.accepted + sum(counted.errors.values())
    assert counted.in_flight == 0


async def test_a_run_repeats_whatever_the_order(autojump_clock: MockClock) -> None:
    """Tasks that start together run in a random order; who is hit must not depend on it."""

    async def one_run(numbers: list[int]) -> dict[int, list[str]]:
        fates: dict[int, list[str]] = {number: [] for number in numbers}
        async with open_provider(answer=echo, faults=EVERYTHING, http=False) as provider:
            for number in numbers:
                for _attempt in range(3):
                    fates[number].append(await outcome(provider, f"question {number}"))
        return fates

    forwards = await one_run(list(range(50)))
    backwards = await one_run(list(range(49, -1, -1)))
    assert forwards == backwards
    assert any(len(set(attempts)) > 1 for attempts in forwards.values()), "retries may get through"


@pytest.mark.slow
async def test_another_seed_hits_others(autojump_clock: MockClock) -> None:
    async def one_run(seed: int) -> list[str]:
        faults = Faults(seed=seed, errors={500: 0.5})
        async with open_provider(answer=echo, faults=faults, http=False) as provider:
            return [await outcome(provider, f"question {number}") for number in range(50)]

    assert await one_run(1) != await one_run(2)


async def test_errors_cost_nothing_and_accepted_requests_that_fail_do(
    autojump_clock: MockClock,
) -> None:
    for faults, left in ((Faults(errors={500: 1}), 5), (Faults(cut=1), 0)):
        async with open_provider(
            answer=echo, requests_per_minute=5, faults=faults, http=False
        ) as provider:
            for _ in range(5):
                await outcome(provider, "hello")
            reply = provider._core.limits.states(0.0)["requests"]
        assert reply.remaining == left


async def test_latency_takes_its_time(autojump_clock: MockClock) -> None:
    async with open_provider(
        answer=echo, faults=Faults(latency_seconds=2.5), http=False
    ) as provider:
        await outcome(provider, "hello")
    assert trio.current_time() == 2.5


@pytest.mark.slow
async def test_latency_between_bounds_and_with_a_tail(autojump_clock: MockClock) -> None:
    async def latencies(faults: Faults) -> list[float]:
        taken: list[float] = []
        async with open_provider(answer=echo, faults=faults, http=False) as provider:
            for number in range(1000):
                began = trio.current_time()
                await outcome(provider, f"question {number}")
                taken.append(trio.current_time() - began)
        return taken

    even = await latencies(Faults(latency_seconds=(1.0, 3.0)))
    assert 1.0 <= min(even) < 1.05
    assert 2.95 < max(even) <= 3.0
    tailed = await latencies(
        Faults(latency_seconds=lognormal(median_seconds=1.0, p99_seconds=10.0))
    )
    assert 0.9 < statistics.median(tailed) < 1.1
    assert 0.98 < sum(taken < 10 for taken in tailed) / 1000 < 1.0


async def test_events_of_a_stream_keep_their_distance(autojump_clock: MockClock) -> None:
    async with open_provider(
        answer=echo, faults=Faults(event_gap_seconds=1), http=False
    ) as provider:
        reply = await provider.request(CHAT, ask(CHAT, "one two three", stream=True))
    events = reply.body.count("data: ")
    assert trio.current_time() == events - 1 == 5


async def test_a_storm_hits_everybody_and_passes(autojump_clock: MockClock) -> None:
    faults = Faults(storms=(Storm(start_seconds=10, duration_seconds=5),))
    async with open_provider(answer=echo, faults=faults, http=False) as provider:
        statuses: dict[float, int] = {}
        for moment in (9.5, 10, 12, 14.5, 15):
            await trio.sleep_until(moment)
            reply = await provider.request(CHAT, ask(CHAT))
            statuses[moment] = reply.status
            if moment == 12:
                assert reply.headers["retry-after"] == "3"
        counted = provider.statistics()
    assert statuses == {9.5: 200, 10: 429, 12: 429, 14.5: 429, 15: 200}
    assert counted.errors == {429: 3}
    assert counted.violations == 0


def test_storms_come_once_in_each_period() -> None:
    storm = Storm(start_seconds=100, duration_seconds=5, every_seconds=60, status=529)
    stormy = [tick / 10 for tick in range(7000) if storm.seconds_left(tick / 10, seed=1) > 0]
    assert min(stormy) >= 100
    per_period = [sum(0 <= at - 100 - 60 * period < 60 for at in stormy) for period in range(10)]
    assert all(49 <= count <= 51 for count in per_period)
    begins = {min(at for at in stormy if at >= 100 + 60 * period) % 60 for period in range(10)}
    assert len(begins) > 5, "the moment inside the period is seeded, not fixed"


@pytest.mark.parametrize("path", PATHS)
async def test_injected_errors_speak_the_dialect(path: str, autojump_clock: MockClock) -> None:
    faults = Faults(errors={529: 1})
    async with open_provider(answer=echo, faults=faults, http=False) as provider:
        reply = await provider.request(path, ask(path))
    assert reply.status == 529
    kind = reply.body["error"]["type"]
    assert kind == ("overloaded_error" if path == MESSAGES else "server_error")


async def test_no_more_requests_are_remembered_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults_module, "MAX_REMEMBERED_REQUESTS", 10)
    fates = RequestFates(Faults(cut=0.5))
    dealt = [fates.fate_of(lambda name=name: b"%d" % name, 0.0) for name in range(100)]  # type: ignore[misc]
    assert len(fates._seen) == 10
    assert fates.fate_of(lambda: b"0", 0.0) == dealt[0], "forgotten, so it counts as new"


def test_calm_weather_asks_for_no_identity() -> None:
    """Hashing every body would cost more than all the rest of the decision."""

    def identify() -> bytes:
        raise AssertionError("asked")

    assert RequestFates(Faults(latency_seconds=2)).fate_of(identify, 0.0) == RequestFate(
        latency_seconds=2
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cut": 1.5}, "add up to at most 1"),
        ({"cut": 0.6, "hang": 0.6}, "add up to at most 1"),
        ({"cut": math.nan}, "add up to at most 1"),
        ({"errors": {200: 0.5}}, "from 400 to 599, not 200"),
        ({"latency_seconds": -1}, "latency_seconds must be finite and at least 0"),
        ({"latency_seconds": (3, 1)}, "wrong way round"),
        ({"event_gap_seconds": math.inf}, "event_gap_seconds must be finite"),
    ],
)
def test_faults_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Faults(**arguments)


def test_a_storm_longer_than_its_period_is_refused() -> None:
    with pytest.raises(ValueError, match="can't come every 1 s"):
        Storm(duration_seconds=5, every_seconds=1)


def test_a_tail_shorter_than_the_median_is_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        lognormal(median_seconds=2, p99_seconds=1)
