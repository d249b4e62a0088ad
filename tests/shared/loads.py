"""What the caches of the tests load."""

from __future__ import annotations

import trio


class Loader:
    """Loads take a second, are counted, and tell which load it was."""

    def __init__(self, *, fail: bool = False, seconds: float = 1.0) -> None:
        self.calls = 0
        self.under_way = 0
        self.cancelled = 0
        self.fail = fail
        self.seconds = seconds

    async def load(self) -> str:
        self.calls += 1
        number = self.calls
        self.under_way += 1
        assert self.under_way == 1, "two loads of one key at once"
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1
        if self.fail:
            error = OSError(f"failure {number}")
            error.add_note("noted by the load")
            raise error from KeyError("cause")
        return f"value {number}"
