"""Two tasks spend from one account, each checking before it pays: wrong in one order of steps.

The second looks at the balance twelve steps later than the first, which has long paid by then, if
both go on step by step, as event loops have it. A slow answer for the first is enough to change it.
"""

from collections.abc import Awaitable, Callable

Sleep = Callable[[float], Awaitable[None]]
REPEATS = 200


class Account:
    """Holds 100."""

    def __init__(self) -> None:
        self.left = 100

    async def spend(self, amount: int, sleep: Sleep, *, after_steps: int) -> None:
        """Do something else first, then look, ask the bank, and pay."""
        for _ in range(after_steps):
            await sleep(0)
        if self.left >= amount:
            await sleep(0)  # Ask the bank.
            self.left -= amount
