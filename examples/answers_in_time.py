"""Ask ten agents one question, and keep the answers that arrive in time.

Shows three things together: a limit on how many agents are asked at once, a time
limit on the whole, and results that say who answered, who was cut off and who was
never asked.

Run:     python examples/answers_in_time.py
Prints:  4 of 10 answered within 6 s: agents 0, 1, 2, 3
         cut off: agents 4, 5, 6; never asked: agents 7, 8, 9
"""

import trio
from trio.testing import MockClock

import harness

AGENTS = 10
AGENTS_AT_ONCE = 3
PATIENCE_SECONDS = 6.0


async def ask(agent: int) -> str:
    """Think for a while, and answer."""
    await trio.sleep(1 + agent)  # Agent 0 is quick, agent 9 is a straggler.
    return "42"


async def main() -> None:
    """Ask all of them, and report."""
    results = await harness.fan_out(
        ask,
        range(AGENTS),
        policy=harness.BestEffort(),
        limit=AGENTS_AT_ONCE,
        within=PATIENCE_SECONDS,
    )

    def agents(status: str) -> str:
        return ", ".join(str(result.key) for result in results if result.status == status)

    print(
        f"{len(results.values())} of {len(results)} answered within {PATIENCE_SECONDS:.0f} s: "
        f"agents {agents('ok')}"
    )
    print(f"cut off: agents {agents('cancelled')}; never asked: agents {agents('skipped')}")


if __name__ == "__main__":
    # A clock that skips the waiting: only the program sees the seconds.
    trio.run(main, clock=MockClock(autojump_threshold=0))
