"""A chat model that needs no network: it waits, sometimes fails, and then answers.

The model adds what a real one adds to a program: latency, and requests that fail
for a moment and succeed when they are sent again. What it says comes from a plain
function of the messages.

How long a request takes and whether it fails depends on the seed, the request and
how often its sender has failed before, never on the order in which requests come in.
So a ticket sent alone sees the same model as one among a thousand. All waiting is
`trio.sleep`, so on a `trio.testing.MockClock` it takes no time.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypedDict

import attrs
import trio

MOST_FAILURES_PER_KEY = 2
# So three attempts at an item always get through, however many requests it sends.

MOST_KEYS_REMEMBERED = 10_000
# An item that is given up on leaves its count behind; the oldest are forgotten.


class Message(TypedDict):
    """One message of a chat."""

    role: str
    content: str


class ModelOverloadedError(Exception):
    """The model can't take the request now; try the same one later."""

    status_code = 503


@attrs.define(eq=False, kw_only=True)
class SimulatedModel:
    """A model that answers with ``answer(messages)``, after a while."""

    answer: Callable[[Sequence[Message]], str]
    """What the model says; a function of the messages alone, as it is shared by all runs."""

    seed: int = 0
    """Another seed gives other latencies and other failures, and the same answers."""

    shortest_latency_seconds: float = 0.05
    longest_latency_seconds: float = 0.25

    failure_rate: float = attrs.field(default=0.03, validator=attrs.validators.ge(0))
    """The share of requests that fail with `ModelOverloadedError`."""

    _failures: dict[str, int] = attrs.field(factory=dict, init=False)
    """How many requests have failed under an idempotency key, the oldest key first."""

    async def complete(self, messages: Sequence[Message], *, idempotency_key: str) -> Message:
        """Send the messages, and return the assistant's next one.

        Args:
          messages: The chat so far, as it is now: later changes don't reach a request
            that is under way.
          idempotency_key: The same for each attempt at an item, another for each item.
            It lets the model recognise a repeated request.

        Raises:
          ModelOverloadedError: for some requests, at most twice under one key.

        Checkpoint: always.

        Cancellation: the request is dropped and counts as not failed.
        """
        failures = self._failures.get(idempotency_key, 0)
        draws = random.Random(f"{self.seed} {failures} {messages[-1]['content']}")
        fails = draws.random() < self.failure_rate and failures < MOST_FAILURES_PER_KEY
        latency_seconds = draws.uniform(self.shortest_latency_seconds, self.longest_latency_seconds)
        content = "" if fails else self.answer(messages)
        await trio.sleep(latency_seconds)
        if fails:
            self._failures[idempotency_key] = failures + 1
            if len(self._failures) > MOST_KEYS_REMEMBERED:
                del self._failures[next(iter(self._failures))]
            raise ModelOverloadedError("the model is overloaded; send the request again later")
        return {"role": "assistant", "content": content}
