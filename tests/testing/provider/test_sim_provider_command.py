"""``harness sim-provider``: it serves, ends cleanly on Ctrl-C, and says what it counted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

pytest.importorskip("h11")
testing = pytest.importorskip("click.testing")

from harness.cli._sim_provider import sim_provider  # noqa: E402  (needs click)
from tests.testing.provider.asks import CHAT, ask  # noqa: E402

RUN = [sys.executable, "-c", "from harness.cli._sim_provider import sim_provider; sim_provider()"]


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
            with urllib.request.urlopen(request, timeout=10) as response:
                reply = json.load(response)
            assert reply["choices"][0]["message"]["content"] == "fine"
            with pytest.raises(urllib.error.HTTPError, match="429"):
                urllib.request.urlopen(request, timeout=10)
            process.send_signal(number)
            rest, _ = process.communicate(timeout=10)
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
def test_wrong_options_are_told(arguments: list[str], message: str) -> None:
    result = testing.CliRunner().invoke(sim_provider, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
