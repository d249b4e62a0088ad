"""A reviewer on trio that checks a text from several sides at once."""

import math
from collections.abc import Awaitable, Callable

import attrs
import trio

import harness

Check = Callable[[str, str], Awaitable[str]]


@attrs.define
class Review:
    """What the reviewer knows of the text it is at."""

    remarks: list[str] = attrs.field(factory=list)
    text: str = ""
    channel: tuple[trio.MemorySendChannel[str], trio.MemoryReceiveChannel[str]] = attrs.field(
        factory=lambda: trio.open_memory_channel[str](math.inf)
    )
    cancelled: bool = False
    current_stream: trio.MemorySendChannel[str] | None = None


reviews = harness.RunLocal(Review, name="reviews")


class Reviewer:
    """Reviews texts. One reviewer serves them all."""

    def __init__(self, check: Check) -> None:
        self.check = check

    @property
    def current(self) -> Review:
        return reviews.get()

    @harness.open_run("review")
    async def review(self, text: str) -> str:
        """Return the remarks on a text: on its facts and its tone, then on its style.

        A text that has to be written anew gets no remarks on its style.
        """
        self.current.remarks.clear()
        self.current.text = text
        self.current.cancelled = False
        self.current.current_stream = self.current.channel[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.look_at, "facts")
            nursery.start_soon(self.look_at, "tone")
        if not self.current.cancelled:
            await self.look_at("style")
        return f"{text}: {', '.join(self.take_remarks())}"

    async def look_at(self, side: str) -> None:
        """Look at one side of the text."""
        remark = await self.check(side, self.current.text)
        assert self.current.current_stream is not None
        self.current.current_stream.send_nowait(remark)
        if remark.endswith("rewrite"):
            self.current.cancelled = True

    def take_remarks(self) -> list[str]:
        """Return the remarks so far, in a fixed order."""
        while True:
            try:
                self.current.remarks.append(self.current.channel[1].receive_nowait())
            except trio.WouldBlock:
                return sorted(self.current.remarks)
