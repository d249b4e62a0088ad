"""Send each question the cheapest way that answers it: a form letter, a small model, a large one.

What a rule can answer costs nothing. The rest goes to a small model, and only what it
isn't sure of to a large one. Each track has a limit of its own, so that a hundred easy
questions never wait for three hard ones. The models are simulated.

Run:     python examples/hybrid_router.py
Prints:  300 of 300 answered in 36 s
         form: 105 taken, 105 ok, 0 working, 0 waiting
         small: 195 taken, 154 ok, 0 working, 0 waiting, 41 failed, 41 escalated
         large: 41 taken, 41 ok, 0 working, 0 waiting
         1.31 USD; with the large model for all 9.00 USD
"""

import random
from collections import Counter

import trio
from trio.testing import MockClock

import harness
from harness.flow import Router, track

QUESTIONS = 300
USD = {"small": 0.0004, "large": 0.03}
"""What a call of each model costs."""
FORMS = {"opening hours": "We are open from 9 to 17.", "address": "1 Harbour Street."}


class NotSureError(Exception):
    """The model would rather not say."""


asked: Counter[str] = Counter()
"""How often each model was called; a sum over all runs, which is shared on purpose."""


def questions() -> list[str]:
    """Return what people ask in a day."""
    draw = random.Random(7)
    kinds = ("opening hours", "address", "invoice", "invoice", "invoice", "contract")
    return [f"question {number} about: {draw.choice(kinds)}" for number in range(QUESTIONS)]


def about(question: str) -> str:
    return question.partition(": ")[2]


def cheapest(question: str) -> str:
    """Say which track a question begins on."""
    return "form" if about(question) in FORMS else "small"


async def form_letter(question: str) -> str:
    """Answer by rule."""
    return FORMS[about(question)]


async def small_model(question: str) -> str:
    """Answer quickly, or not at all."""
    asked["small"] += 1
    await trio.sleep(0.4)
    if about(question) == "contract":
        raise NotSureError(question)
    return f"{question}: see your account"


async def large_model(question: str) -> str:
    """Answer anything, slowly."""
    asked["large"] += 1
    await trio.sleep(6)
    return f"{question}: it depends"


async def main() -> None:
    """Answer a day's questions, and say what it cost."""
    asked.clear()
    router = Router(
        cheapest,
        tracks={
            "form": form_letter,
            "small": track(small_model, limit=20, escalate="large"),
            "large": track(large_model, limit=8, each=harness.Attempt(timeout=30)),
        },
    )
    began_at = trio.current_time()
    results = await router.run(questions(), policy=harness.BestEffort(), limit=QUESTIONS)
    seconds = trio.current_time() - began_at

    print(f"{results.summary().ok} of {QUESTIONS} answered in {seconds:.0f} s")
    print(router.statistics())
    usd = sum(USD[model] * count for model, count in asked.items())
    print(f"{usd:.2f} USD; with the large model for all {USD['large'] * QUESTIONS:.2f} USD")


if __name__ == "__main__":
    # A clock that skips the waiting: only the program sees the seconds.
    trio.run(main, clock=MockClock(autojump_threshold=0))
