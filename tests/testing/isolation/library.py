"""Stands for an installed package: tests make the isolation check take it for one."""

import trio
import trio.lowlevel

api_key = ""


def call() -> str:
    return f"called with {api_key}"


class Client:
    """Keeps the request that it works on, so it serves one caller at a time at most."""

    def __init__(self) -> None:
        self._request = ""

    async def ask(self, request: str) -> str:
        self._request = request
        await trio.lowlevel.checkpoint()
        return f"re:{self._request}"
