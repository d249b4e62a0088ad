"""``harness sim-provider``: it serves, ends cleanly on Ctrl-C, and says what it counted."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from harness.cli import main
from tests.scale import PATIENCE_SECONDS
from tests.testing.provider.asks import CHAT, ask

RUN = [sys.executable, "-m", "harness", "sim-provider"]
SOCKETS = "harness.testing.provider._sockets"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a process can't send itself Ctrl-C there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_interrupted(number: signal.Signals) -> None:
    command = [*RUN, "--rpm", "1", "--reply", "fine", "--judged", "minute", "--latency", "0..0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("listening on ").strip()
            assert url.startswith("http://127.0.0.1:")
            request = urllib.request.Request(url + CHAT, json.dumps(ask(CHAT)).encode())
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                reply = json.load(response)
            assert reply["choices"][0]["message"]["content"] == "fine"
            with pytest.raises(urllib.error.HTTPError, match="429"):
                urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)
            process.send_signal(number)
            rest, _ = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "requests: 2\naccepted: 1\nviolations: 1\n" in rest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "only on a loopback address"),
        (["--rpm", "0"], "requests_per_minute must be finite and greater than 0"),
        (["--error", "500"], "such as 500=0.1"),
        (["--error", "200=0.1"], "from 400 to 599"),
        (["--latency", "slow"], "such as 0.2 or 0.1..0.5"),
        (["--cut", "2"], "add up to at most 1"),
        (["--judged", "hour"], "hour"),
    ],
)
def test_wrong_options_are_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim-provider", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["sim-provider", "--port", str(taken.getsockname()[1])]) == 2
    assert "can't listen on 127.0.0.1 port" in capsys.readouterr().err


def test_without_its_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    for name in [name for name in sys.modules if name.startswith(f"{SOCKETS}._")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["sim-provider"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Error: ")
    assert "needs h11, which is not installed; run: pip install 'trio-harness[provider]'" in said
    assert "http=False" not in said, "an advice for Python code"


def test_help_shows_it_among_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "sim-provider" in capsys.readouterr().out
    assert main(["sim-provider", "--help"]) == 0
    assert "--judged [bucket|second|minute]" in capsys.readouterr().out
