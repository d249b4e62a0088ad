"""Run pytest in a process of its own, with the plugin, on files made for it."""

from __future__ import annotations

import os
import re
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


RunPytest = Callable[..., Ran]


@pytest.fixture
def run_pytest(tmp_path: Path) -> RunPytest:
    def run(text: str, *options: str, plugins: tuple[str, ...] = ("trio",), ini: str = "") -> Ran:
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        (tmp_path / "pytest.ini").write_text("[pytest]\n" + textwrap.dedent(ini))
        # Nothing of this very run may leak in: neither its options nor its plugins.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        } | {
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        names = {"trio": "pytest_trio.plugin", "anyio": "anyio.pytest_plugin"}
        loaded = [f"-p{names.get(plugin, plugin)}" for plugin in ("harness_pytest", *plugins)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-rA", "-pno:cacheprovider", *loaded, *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return Ran(done.returncode, done.stdout + done.stderr)

    return run
