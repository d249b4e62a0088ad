"""A written test runs at once: it fails on a program with a fault, and passes on its twin."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import textwrap
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest

from harness.cli import main
from harness.testing.ghostwriting import ghostwrite
from tests.scale import PATIENCE_SECONDS, scaled, some_of
from tests.testing.ghostwriting.programs import PROGRAMS

ROOT = Path(__file__).parents[3]
PLUGINS = ("-pno:cacheprovider", "-pharness_pytest")
SCHEDULES = scaled(100, full=500)


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Where the resolution of annotations looks.
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]
    return module


def written(path: Path, text: str, target: str) -> str:
    """Write a module, and return the test that is written for it."""
    path.write_text(textwrap.dedent(text))
    module = loaded(path)
    sys.modules[path.stem] = module
    try:
        return ghostwrite(attrgetter(target)(module), module, target)
    finally:
        del sys.modules[path.stem]


@pytest.mark.long
def test_a_written_test_fails_on_a_fault_and_passes_on_its_twin(tmp_path: Path) -> None:
    expected: dict[str, str] = {}
    for name, program in some_of(PROGRAMS.items(), one_in=3):
        for suffix, text in (("wrong", program.text), ("right", program.corrected)):
            module = f"{name}_{suffix}"
            test = written(tmp_path / f"{module}.py", text, program.target)
            (tmp_path / f"test_{module}.py").write_text(test)
            expected[module] = "PASSED" if suffix == "right" else "FAILED"
    ran = subprocess.run(
        # With no plugin for async tests.
        [*(sys.executable, "-m", "pytest", "-rA"), *PLUGINS, f"--schedules={SCHEDULES}"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    lines = [line.split() for line in ran.stdout.splitlines() if "::test_" in line]
    ended = {
        line[1].partition(".py::")[0].removeprefix("test_"): line[0]
        for line in lines
        if line[0] in ("PASSED", "FAILED")
    }
    assert ended == expected, ran.stdout
    # They fail because something is shared, not because of what was guessed.
    assert "every run fails alone" not in ran.stdout
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is not None:
        files = sorted(map(str, tmp_path.glob("test_*.py")))
        done = subprocess.run([ruff, "format", "--isolated", "--check", *files], check=False)
        assert done.returncode == 0
        rules = ["--select", "E4,E7,E9,F,B,RET,TRY", "--target-version", "py311"]
        assert subprocess.run([ruff, "check", "--isolated", *rules, *files]).returncode == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("active_run", "trio.run(assert_isolated, subject.handle, INPUTS)", id="trio"),
        pytest.param("asyncio_arguments", "asyncio.run(assert_isolated(call, INPUTS))", id="io"),
        pytest.param("thread_method", "    def call(given: tuple[Any, ...]) -> Any:", id="threads"),
        pytest.param(
            "thread_program", "@explore_schedules\ndef test_count_in", id="starts threads"
        ),
        pytest.param("rollback", "    check(await scenario())", id="the module's own check"),
        pytest.param("unread_reply", "from tested import INPUTS, agent", id="its own inputs"),
        pytest.param(
            "asyncio_arguments",
            'INPUTS = [\n    ("a", Tongue.FRENCH, {"a": 1}),\n    ("b", Tongue.GERMAN, {"b": 2}),',
            id="by annotation",
        ),
        pytest.param("asyncio_stream", 'subject = Desk("a", most=1)', id="constructor"),
        pytest.param(
            "drawn", "st.tuples(st.from_type(Request), st.sampled_from([1, 2, 3]))", id="drawn"
        ),
        pytest.param(
            "cache_of_trio",
            '        (Cache.add, "b", 2),\n        Cache.size,\n    ]\n'
            '    assert_linearizable(lambda: Cache("a"), operations)\n',
            id="class",
        ),
        pytest.param("token_refresh", "# TODO: text has no annotation", id="to do"),
        pytest.param(
            "default_tools", "- mutable-default in line 4: ", id="what the audit has found"
        ),
    ],
)
@pytest.mark.slow
def test_what_is_written_fits_the_function(tmp_path: Path, name: str, said: str) -> None:
    program = PROGRAMS[name]
    target = "Agent.__init__" if name == "default_tools" else program.target
    assert said in written(tmp_path / "tested.py", program.text, target)


def test_what_cannot_be_made_up_is_a_to_do_and_the_test_runs(tmp_path: Path) -> None:
    text = """\
        from typing import Protocol

        class Bank(Protocol):
            def send(self, amount: int) -> None: ...

        class Desk:
            def __init__(self, bank: Bank) -> None:
                self.bank = bank

            def pay(self, bank: Bank) -> bool:
                return bank is None
        """
    test = written(tmp_path / "tested.py", text, "Desk.pay")
    assert "# TODO: bank takes tested.Bank, which nobody can make up here" in test
    assert "INPUTS = [None, None, None]" in test
    assert "subject = Desk(None)" in test


def test_the_command_writes_a_file_and_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("ghosts.py").write_text(
        "async def answer(question: str): return question\nN = 1\nclass E: pass\n"
    )
    arguments = ["ghostwrite", "ghosts.py:answer", "--output", "test_ghosts.py"]
    assert main(arguments) == 0
    assert "from ghosts import answer" in Path("test_ghosts.py").read_text()
    assert main(arguments) == 2
    assert "test_ghosts.py is there already" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0
    assert main(["ghostwrite", "ghosts.py:N"]) == 2
    assert "N is of type int; name a function" in capsys.readouterr().err
    assert main(["ghostwrite", "ghosts.py:E"]) == 2
    assert "E has no methods of its own" in capsys.readouterr().err
    assert main(["ghostwrite", "ghosts.py:none"]) == 2
    assert "has no 'none'" in capsys.readouterr().err
