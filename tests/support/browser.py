"""Drive a headless Chromium through its driver, in the W3C's protocol: JSON over HTTP.

Debian's packages ``chromium`` and ``chromium-driver`` are installed by ``make setup`` where it may.
Where they can't be had, the tests that need a browser are skipped with a message; `make check`
fails if they could have been.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.scale import PATIENCE_SECONDS

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
]


class Browser:
    """One window, and what it has asked the network for."""

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, address: str) -> None:
        self._call("/url", {"url": address})

    def run(self, script: str, *args: object) -> Any:
        """Run a function body in the page, and return what it returns."""
        return self._call("/execute/sync", {"script": script, "args": args})

    def wait_for(self, script: str) -> Any:
        """Wait until an expression is true, and return its value."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(0.05)
        return value

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Return what was added to a log since it was last asked for."""
        found: list[dict[str, Any]] = self._call("/se/log", {"type": kind})
        return found

    def asked_for(self) -> list[str]:
        """Return the addresses that were asked for since, but for the browser's own pages."""
        messages = [json.loads(one["message"])["message"] for one in self.log("performance")]
        return [
            one["params"]["request"]["url"]
            for one in messages
            if one["method"] == "Network.requestWillBeSent"
            and not one["params"]["request"]["url"].startswith(("chrome:", "data:"))
        ]

    def command(self, name: str, **parameters: object) -> Any:
        """Send a command of Chromium's own protocol."""
        return self._call("/goog/cdp/execute", {"cmd": name, "params": parameters})

    def close(self) -> None:
        """End the browser."""
        _send("DELETE", self._session)

    def _call(self, path: str, body: dict[str, Any]) -> Any:
        return _send("POST", f"{self._session}{path}", body)


def _send(method: str, address: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(address, data, {"Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)["value"]


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Open a browser with a new profile in that folder."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        words = "there is no Chromium here; Debian has chromium and chromium-driver"
        # `make check` says so where they could have been installed.
        (pytest.fail if os.environ.get("HARNESS_BROWSER") == "required" else pytest.skip)(words)
    process = subprocess.Popen(
        [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        port = next(
            found[1]
            for line in process.stdout
            if (found := re.search(r"successfully on port (\d+)", line))
        )
        options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        }
        root = f"http://127.0.0.1:{port}/session"
        session = _send("POST", root, {"capabilities": {"alwaysMatch": wanted}})
        browser = Browser(f"{root}/{session['sessionId']}")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
