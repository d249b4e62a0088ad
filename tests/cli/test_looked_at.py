"""Looking at a batch: live, from other programs, and afterwards on a page."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import main
from tests.scale import PATIENCE_SECONDS

BATCH = ["batch", "agent.py:work", "--input", "in.txt", "--output", "out.jsonl"]


@pytest.fixture
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(
        "import trio\n"
        "async def work(record):\n"
        "    if record == 'bad':\n"
        "        raise ValueError('<b>bad</b>')\n"
        "    if record == 'long':\n"
        "        await trio.sleep_forever()\n"
        "    return record\n"
    )
    (clean_imports / "in.txt").write_text("one\nbad\ntwo\n")
    return clean_imports


def test_report_writes_a_page_of_the_batch(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*BATCH, "--report", "report.html"]) == 1
    page = (folder / "report.html").read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found is not None
    data = json.loads(found[1])
    assert data["total_runs"] == 4
    assert data["failures"]["groups"][0]["messages"] == ["<b>bad</b>"]
    assert sorted(path.name for path in folder.iterdir()) == [
        *("agent.py", "in.txt", "out.jsonl", "report.html")
    ]


def test_report_and_trace_share_a_recording(folder: Path) -> None:
    assert main([*BATCH, "--report", "report.html", "--trace", "trace.jsonl", "--quiet"]) == 1
    assert '"total_runs":4' in (folder / "report.html").read_text(encoding="utf-8")
    assert (folder / "trace.jsonl").read_text().count('"run_ended"') == 4


def test_a_report_that_would_replace_something_is_refused_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in ("in.txt", "agent.py", ".", "-", "no/such/report.html"):
        assert main([*BATCH, "--report", given]) == 2
        assert "--report" in capsys.readouterr().err
    assert not (folder / "out.jsonl").exists()


def test_a_report_that_cannot_be_written_at_the_end_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pages").mkdir()
    (folder / "agent.py").write_text(
        "import shutil\nasync def work(record):\n    shutil.rmtree('pages', ignore_errors=True)\n"
    )
    assert main([*BATCH, "--report", "pages/report.html"]) == 2
    assert "the report can't be written" in capsys.readouterr().err
    assert (folder / "out.jsonl").read_text().count("\n") == 3


def test_what_cancels_needs_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BATCH, "--allow-cancel"]) == 2
    assert "add --dashboard" in capsys.readouterr().err


class _WithoutHypercorn:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "hypercorn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_missing_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "harness.observe._dashboard", raising=False)
    for name in [*sys.modules]:
        if name.partition(".")[0] == "hypercorn":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_WithoutHypercorn(), *sys.meta_path])
    assert main([*BATCH, "--dashboard"]) == 2
    assert "trio-harness[dashboard]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_running_batch_is_seen_by_top_dump_and_the_page(folder: Path) -> None:
    (folder / "in.txt").write_text("one\nbad\nlong\n")
    (folder / "run").mkdir()
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder / "run")}
    program = [sys.executable, "-m", "harness"]

    def ask(*arguments: str) -> str:
        return subprocess.run(
            [*program, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        ).stdout

    batch = subprocess.Popen(
        [*program, *BATCH, "--dashboard", "--grace", "0", "--report", "report.html"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert batch.stderr is not None
        said = next(line for line in batch.stderr if line.startswith("dashboard: "))
        host, token = said.removeprefix("dashboard: http://").strip().split("/#")
        while "1 in flight" not in (shown := ask("top", "--once")):
            assert batch.poll() is None
        assert f"harness batch agent.py:work (process {batch.pid})" in shown
        assert "failures: 1 (1 ValueError)" in shown
        assert "work (agent.py:6)" in ask("dump", str(batch.pid))
        connection = http.client.HTTPConnection(host, timeout=PATIENCE_SECONDS)
        connection.request("GET", "/events", headers={"Authorization": f"Bearer {token}"})
        picture = json.loads(connection.getresponse().readline().removeprefix(b"data: "))
        connection.close()
        assert picture["fan_outs"]["shown"][0]["in_flight"] == 1
        assert picture["may_cancel"] is False
    finally:
        batch.send_signal(signal.SIGINT)
        batch.communicate(timeout=PATIENCE_SECONDS)
    assert batch.returncode == 130
    assert '"cancelled"' in (folder / "report.html").read_text(encoding="utf-8")
    assert list((folder / "run").rglob("*.sock")) == []
