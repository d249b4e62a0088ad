"""``harness doctor``: what is installed, what works here, and what a limiter or journal holds."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.cli import _doctor, _installed, main
from harness.cli._installed import Extra, Need, installed_extras
from harness.cluster import FleetLimiter
from harness.journal import open_journal
from harness.limits import Rate
from tests.cluster.test_fleet_limiter import pretend

if sys.platform != "win32":
    import fcntl

ROOT = Path(__file__).parents[2]

Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run it, and return what it wrote as JSON."""

    def run(*arguments: str, status: int = 0) -> dict[str, Any]:
        assert main(["doctor", *arguments, "--json"]) == status
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        return said

    return run


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str, status: int = 0) -> str:
        assert main(["doctor", *arguments]) == status
        return capsys.readouterr().out

    return run


# What is installed --------------------------------------------------------------------------------


def test_extras_are_those_that_the_package_states() -> None:
    """Each with its packages and their floors: no second list could differ."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = project["optional-dependencies"]
    found = {extra.name: {need.package: need.floor for need in extra.needs} for extra in EXTRAS}
    assert set(found) == {"", *stated} - {"bench", "dev", "docs", "test"}
    for name, needs in {"": project["dependencies"], **stated}.items():
        if name not in found:
            continue
        own = [need for need in needs if not need.startswith("trio-harness")]
        floors = {need.partition(">=")[2] for need in own}
        packages = {re.split(r"[\[>]", need)[0] for need in own}
        assert set(found[name]) >= packages
        assert set(found[name].values()) >= floors
        assert ";" not in "".join(own), "a condition isn't judged"


EXTRAS = installed_extras()


@pytest.mark.slow
def test_what_is_installed_here_will_do(doctor: Doctor) -> None:
    said = doctor()
    assert said["problems"] == []
    assert said["versions"]["trio"] == distribution("trio").version
    assert said["extras"]["cli"]["faults"] == []
    assert said["extras"]["cli"]["installed"]["click"] == distribution("click").version


@pytest.mark.parametrize(
    ("installed", "floor", "will_do"),
    [
        ("8.1", "8.1", True),
        ("8.1.0", "8.1", True),
        ("8", "8.0", True),
        ("10.0", "9.5", True),
        ("8.0.9", "8.1", False),
        ("2.0rc1", "2", True),
        ("2026.1.post1", "2026.1", True),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(installed: str, floor: str, will_do: bool) -> None:
    assert (Need("p", floor, installed).fault is None) == will_do


def test_what_is_too_old_or_missing_is_told_with_what_to_run(
    monkeypatch: pytest.MonkeyPatch, text: Callable[..., str]
) -> None:
    core = Extra("", (Need("trio", "0.25", "0.24.1"),))
    redis = Extra("redis", (Need("coredis", "6.9", "5.0"),))
    ray = Extra("ray", (Need("ray", "2.52", None),))
    monkeypatch.setattr(_doctor, "installed_extras", lambda: [core, redis, ray])
    said = text("--need", "ray", status=1)
    assert "coredis is 5.0, and 6.9 or newer is needed; run: pip install --upgrade " in said
    assert re.search(r"^  ray +not installed$", said, re.MULTILINE)
    problems = said.partition("problems:\n")[2].splitlines()
    assert problems == [
        "  trio is 0.24.1, and 0.25 or newer is needed; run: pip install --upgrade 'trio-harness'",
        "  ray: ray is not installed; run: pip install --upgrade 'trio-harness[ray]'",
    ]


@pytest.mark.slow
def test_what_is_needed_is_imported(monkeypatch: pytest.MonkeyPatch, doctor: Doctor) -> None:
    """Installed isn't enough: a compiled part may be missing."""

    def broken(module: str) -> None:
        raise OSError(f"no libpq for {module}")

    doctor("--need", "provider")
    monkeypatch.setattr(_installed, "import_module", broken)
    [problem] = doctor("--need", "provider", status=1)["problems"]
    assert "h11 can't be imported: OSError: no libpq for h11" in problem
    assert doctor()["problems"] == [], "nobody asked"


def test_a_need_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--need", "reddis"]) == 2
    assert "--need reddis names nothing that could be checked; there are agents, " in (
        capsys.readouterr().err
    )


def test_run_from_its_source_it_says_so(
    monkeypatch: pytest.MonkeyPatch, text: Callable[..., str]
) -> None:
    monkeypatch.setattr(_installed, "PACKAGE", "no-such-package-here")
    assert "unknown: harness runs from its source" in text()


# What works here ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_locks_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doctor: Doctor) -> None:
    """As on a network's file system that ignores them."""
    monkeypatch.chdir(tmp_path)
    assert doctor("--need", "locks")["here"]["locks"]["works"]
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    [problem] = doctor("--need", "locks", status=1)["problems"]
    assert "flock keeps nobody out in this folder" in problem
    assert os.listdir(tmp_path) == []


# What a path holds --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.real_clock
def test_a_limiters_file_says_limits_use_places_processes_and_the_pause(
    tmp_path: Path, doctor: Doctor, text: Callable[..., str]
) -> None:
    file = tmp_path / "openai.limits"

    async def use() -> None:
        async with FleetLimiter(
            file, "openai", requests_per_minute=60, tokens=Rate(900, 60), headroom=0.5, concurrent=3
        ) as limiter:
            async with limiter.reserve(tokens=30), limiter.reserve(tokens=0):
                limiter.change(requests_per_minute=30)
                limiter.pause(100)
                [seen] = doctor(str(file))["looked_at"]
                words = text(str(file))
        assert {key: seen[key] for key in ("name", "concurrent", "headroom", "in_flight")} == {
            "name": "openai",
            "concurrent": 3,
            "headroom": 0.5,
            "in_flight": 2,
        }
        assert seen["limits"] == [
            {"dimension": "requests", "amount": 30, "period": 60, "used": 2},
            {"dimension": "tokens", "amount": 900, "period": 60, "used": 30},
        ]
        assert 90 < seen["paused_seconds"] < 120
        assert seen["holders"] == [{"process": str(os.getpid()), "is_alive": True, "places": 2}]
        assert "2 of 3 places are taken" in words
        assert f"process {os.getpid()}: alive, 2 places" in words

    trio.run(use)
    pretend(file, members=1, places=1)
    before = file.read_bytes()
    [seen] = doctor(str(file))["looked_at"]
    assert seen["holders"] == [{"process": "4711", "is_alive": False, "places": 1}]
    assert "process 4711: dead, 1 places" in text(str(tmp_path)), "of a folder, the files in it"
    assert file.read_bytes() == before, "nothing is changed"


@pytest.mark.slow
async def test_times_of_another_clock_are_not_told(
    tmp_path: Path, autojump_clock: MockClock, doctor: Doctor
) -> None:
    file = tmp_path / "p.limits"
    async with FleetLimiter(file, "p", requests_per_minute=60) as limiter:
        async with limiter.reserve():
            with open(file, "rb") as stopped:  # noqa: ASYNC230
                fcntl.flock(stopped, fcntl.LOCK_EX)
                [seen] = await trio.to_thread.run_sync(lambda: doctor(str(file))["looked_at"])
    assert seen["limits"][0]["used"] is None
    assert seen["paused_seconds"] is None
    assert seen["note"] == (
        "a process keeps it locked, probably because it was stopped; "
        "its times are of a test's clock"
    )


@pytest.mark.slow
async def test_a_journal_says_its_version_and_who_writes_to_it(
    tmp_path: Path, autojump_clock: MockClock, doctor: Doctor, text: Callable[..., str]
) -> None:
    async def answer(item: int) -> int:
        return 1 // item

    async with open_journal(tmp_path / "run.db") as journal:
        await harness.fan_out(
            answer, [0, 1, 2], journal=journal, key=str, policy=harness.BestEffort(), name="sums"
        )
        [seen] = doctor(str(tmp_path / "run.db"))["looked_at"]
    assert seen["version"] >= 6
    [batch] = seen["batches"]
    writer = batch.pop("writer")
    assert batch == {
        "name": "sums",
        "state": "running",
        "items": 3,
        "ok": 2,
        "failed": 1,
        "in_flight": 0,
    }
    assert f"process {os.getpid()} on " in writer
    assert "sums: ended (" in text(str(tmp_path / "run.db"))


@pytest.mark.slow
def test_what_is_neither_is_a_problem(tmp_path: Path, doctor: Doctor) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").touch()
    paths = [str(tmp_path / name) for name in ("notes.txt", "empty", "nowhere")]
    problems = doctor(*paths, status=1)["problems"]
    for problem, path, words in zip(
        problems,
        paths,
        ["neither a journal nor the file of a limiter", "empty", "No such file"],
        strict=True,
    ):
        assert problem.startswith(path)
        assert words in problem


@pytest.mark.slow
def test_no_password_is_shown(text: Callable[..., str]) -> None:
    said = text("postgresql://ada:hunter2@127.0.0.1:1/x?password=hunter3", status=1)
    assert "postgresql://ada@127.0.0.1:1/x: JournalError: " in said
    assert "hunter" not in said
