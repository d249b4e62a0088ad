"""Look for state that outlives a run, from the command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from harness.cli._errors import EXIT_FAILED, EXIT_OK, InputError
from harness.cli._later import named
from harness.cli._option_table import argument, command, flag, option
from harness.cli._target import load_module, load_target
from harness.testing import audit as auditing
from harness.testing.audit import (
    RULES,
    Baseline,
    Finding,
    Format,
    InventoryFormat,
    audit_paths,
    inventory_paths,
    inventory_report,
    report,
)

_T = TypeVar("_T")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(
            f"--input {text!r} is not JSON ({error}); a string needs its quotes: '\"{text}\"'"
        ) from error


def _baseline(path: str) -> Baseline:
    try:
        return Baseline.read(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--baseline {path!r} can't be read ({error}); write one with "
            f"`harness audit ... --format json > {path}`"
        ) from error
    except ValueError as error:
        raise InputError(f"--baseline {path!r}: {error}") from error


@attrs.frozen(kw_only=True)
class AuditOptions:
    """Find what runs share by accident: in the code, and in what a run leaves behind.

    A PATH is a file or a folder. Its files are read, and never imported.

    A MODULE is imported, and its code is read like that of a PATH. With a FUNCTION (by default
    'agent', if the module has one and INPUTS beside it), that is run once for each input, on a
    virtual clock, and what it leaves in the module's objects is reported as well.

    A comment silences what is shared on purpose, and says why:

    \b
        ROUTES = {}  # harness: shared (filled at import, constant after that)

    \b
    Examples:
      harness audit src
      harness audit src tests --format sarif > audit.sarif
      harness audit src --all
      harness audit src --baseline known.json
      harness audit src --inventory --format markdown
      harness audit support.agents:triage --input '"My card has not arrived"'

    Exit status: 0 nothing found, nothing new or an inventory, 1 findings, 2 wrong usage,
    130 interrupted.
    """

    targets: tuple[str, ...] = argument("PATH|MODULE[:FUNCTION]...", many=True)
    format: Format | InventoryFormat = option(
        "How the findings are written: text, json or sarif; an inventory: text, json or markdown.",
        type=click.Choice(["text", "json", "sarif", "markdown"]),
        default="text",
    )
    inventory: bool = flag(
        "List every piece of state that outlives a call instead: where it is declared, who reads "
        "and writes it, and whether it is per call, shared on purpose, constant or unknown. "
        "Nothing is run."
    )
    all: bool = flag(
        "Also show the findings that nothing in the code shows calls to meet at, marked 'maybe'."
    )
    baseline: Baseline | None = option(
        "What --format json wrote for old code: only findings that are not in it are shown, and "
        "fail. A finding is known again after its line has moved.",
        "FILE",
        read=lambda path: None if path is None else _baseline(path),
    )
    input: list[Any] = option(
        "What FUNCTION is called with, such as '\"Hello\"' or '{\"id\": 1}'; may be given several "
        "times. By default each value of the module's INPUTS.",
        "JSON",
        many=True,
        read=lambda texts: [_value(text) for text in texts],
    )
    quiet: bool = flag("Show no progress, on a terminal either.")


def _run(options: AuditOptions) -> int:
    paths: list[str] = []
    from_runs: list[Finding] = []
    modules = [target for target in options.targets if not _is_path(target)]
    form = options.format
    if options.inventory and (options.input or options.baseline is not None):
        raise InputError("--inventory lists everything, so it takes neither --input nor --baseline")
    if options.input and not any(":" in target for target in modules):
        raise InputError("--input is for a MODULE:FUNCTION, and none of the targets names one")
    for target in options.targets:
        if target not in modules:
            paths.append(target)
            continue
        name, _, function = target.partition(":")
        module = load_module(name)
        paths += _files_of(module, name)
        if options.inventory:
            continue
        given: Any = options.input or list(getattr(module, "INPUTS", ()))
        if not function and hasattr(module, "INPUTS") and callable(getattr(module, "agent", None)):
            function = "agent"
        if not function:
            continue
        if not given:
            raise InputError(
                f"{target} needs something to run with; give --input, or INPUTS in its module"
            )
        found = auditing.audit_function(load_target(f"{name}:{function}"), given)
        from_runs += [attrs.evolve(one, path=_shown(one.path)) for one in found]
    if options.inventory:
        if form == "sarif":
            raise InputError("--inventory is written as text, json or markdown, not as sarif")
        click.echo(inventory_report(_of_paths(inventory_paths, paths), form), nl=False)
        return EXIT_OK
    if form == "markdown":
        raise InputError("findings are written as text, json or sarif; markdown is for --inventory")
    look = audit_paths if options.quiet or not sys.stderr.isatty() else _audit_shown
    findings = [*_of_paths(look, paths), *from_runs]
    new = findings if options.baseline is None else options.baseline.new(findings)
    shown = [one for one in new if options.all or not one.maybe]
    known, hidden = len(findings) - len(new), len(new) - len(shown)
    click.echo(report(shown, form, RULES, known, hidden), nl=False)
    return EXIT_FAILED if shown else EXIT_OK


def _audit_shown(paths: list[str]) -> list[Finding]:
    """Audit files, with a bar: half a million lines take half a minute, or more."""
    with named("rich.progress:Progress")(
        console=named("rich.console:Console")(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("reading the code")

        def tell(done: int, steps: int) -> None:
            doing = "reading the code" if 2 * done < steps else "applying the rules"
            bar.update(task, completed=done, total=steps, description=doing)

        return audit_paths(paths, tell=tell)


def _of_paths(look: Callable[[list[str]], list[_T]], paths: list[str]) -> list[_T]:
    try:
        return look(paths)
    except FileNotFoundError as error:
        raise InputError(f"{error}; a target is a file, a folder or a module") from error


def _is_path(target: str) -> bool:
    """Return whether a target is meant as a path: it is one, or it looks like one."""
    if os.path.exists(target):
        return True
    name = target.partition(":")[0]
    if os.path.isfile(name) and ":" in target:
        raise InputError(
            f"{target} names a function of a file, and files are never imported; "
            "write it as module:function, or the path alone"
        )
    return name.endswith(".py") or os.sep in target or "/" in target


def _files_of(module: Any, name: str) -> list[str]:
    """Return the file of a module; of a package, its folder."""
    folders = list(getattr(module, "__path__", ()))
    found = folders or [file] if (file := getattr(module, "__file__", None)) else folders
    if not found or not all(path.endswith(".py") or Path(path).is_dir() for path in found):
        raise InputError(f"the module {name!r} has no Python source to read")
    return [_shown(path) for path in found]


def _shown(path: str) -> str:
    """Return a path as seen from the current folder, if it is below it."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd())) or "."
    except ValueError:
        return path


audit = command("audit", AuditOptions, _run)
