"""Run pytest in a process of its own, with the plugin, on files made for it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from tests.scale import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]


@attrs.frozen
class Ran:
    """What a run of pytest said."""

    status: int
    text: str

    @property
    def outcomes(self) -> dict[str, str]:
        """How each test ended, by its name."""
        found = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) \S+?::(\S+)", self.text, re.MULTILINE)
        return {name: outcome for outcome, name in found}

    @property
    def printed(self) -> list[str]:
        """The arguments of the command that replays the first failure."""
        found = re.search(
            r"^(?:  |(?:E +)?replay: )pytest (.*--schedule=.*)$", self.text, re.MULTILINE
        )
        assert found is not None, self.text
        return shlex.split(found[1])


RunPytest = Callable[..., Ran]
PLUGINS = {"trio": "pytest_trio.plugin", "anyio": "anyio.pytest_plugin"}


@pytest.fixture
def run_as_given(tmp_path: Path) -> RunPytest:
    """Run pytest with some arguments in the folder of the test, with the plugins they name."""

    def run(*arguments: str, typed: str = "") -> Ran:
        # Nothing of this very run may leak in: neither its options nor its plugins.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        } | {
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=tmp_path,
            env=environment,
            input=typed,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return Ran(done.returncode, done.stdout + done.stderr)

    return run


@pytest.fixture
def run_pytest(tmp_path: Path, run_as_given: RunPytest) -> RunPytest:
    def run(
        text: str,
        *options: str,
        plugins: tuple[str, ...] = ("trio",),
        ini: str = "",
        typed: str = "",
    ) -> Ran:
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        (tmp_path / "pytest.ini").write_text("[pytest]\n" + textwrap.dedent(ini))
        loaded = [f"-p{PLUGINS.get(plugin, plugin)}" for plugin in ("harness_pytest", *plugins)]
        return run_as_given("-rA", "-pno:cacheprovider", *loaded, *options, typed=typed)

    return run
