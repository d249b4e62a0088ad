"""``harness init``: write a small project whose tests pass at once.

The files are in ``template``, each with ``.txt`` behind its name, so that nothing takes them for
code of harness.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from harness.cli._errors import EXIT_OK, InputError

_SUFFIX = ".txt"
_NAME = "{name}"


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
def init(folder: Path) -> int:
    """Write a small project into FOLDER, by default the current one.

    An agent, a batch that runs it on a file and can be stopped at any time, its limits, tests that
    they hold and that no run sees anything of another, a file for CI, README and pyproject. The
    model is simulated until you name one, so the tests pass at once. No file is overwritten.
    """
    project = {
        folder / path: text.replace(_NAME, _project_name(folder))
        for path, text in _template(files("harness.cli") / "template")
    }
    there = [str(path.relative_to(folder)) for path in project if os.path.lexists(path)]
    if there:
        raise InputError(
            f"{str(folder)!r} already has {', '.join(there)}, and nothing is overwritten; give "
            "another folder: harness init FOLDER"
        )
    for path, text in project.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise InputError(
                f"{str(path)!r} can't be written: {error.strerror or error}"
            ) from error
        click.echo(path)
    where = "" if folder == Path() else f"cd {shlex.quote(str(folder))}; "
    click.echo(f'next: {where}pip install --editable ".[test]"; pytest')
    return EXIT_OK


def _template(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file."""
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        path = f"{above}{one.name}"
        if one.is_dir():
            yield from _template(one, f"{path}/")
        else:
            yield path.removesuffix(_SUFFIX), one.read_text(encoding="utf-8")


def _project_name(folder: Path) -> str:
    """Return what the project is called: like its folder, as far as packages may be."""
    words = re.findall("[a-z0-9]+", folder.absolute().name.lower())
    return "-".join(words) or "project"
