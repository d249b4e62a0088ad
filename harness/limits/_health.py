"""Whether a provider works: a rest after failures, longer each time.

It fails when at least half of its last ten answers are server errors or broken connections,
the last one among them. So the first answer of all decides at once, and one failure among
many good answers doesn't. While it rests, a pool uses the next provider; then one answer
decides again. A refusal for rate isn't a failure: that is what pauses are for.

Clock-free: every method is told what time it is.
"""

from __future__ import annotations

import math

_ANSWERS_KEPT = 10
_FIRST_REST_SECONDS = 10.0
_LONGEST_REST_SECONDS = 300.0


class Health:
    """The last answers of one provider."""

    __slots__ = ("_failed", "_next_rest_seconds", "rests_until")

    def __init__(self) -> None:
        self._failed: list[bool] = []
        self._next_rest_seconds = _FIRST_REST_SECONDS
        self.rests_until = -math.inf
        """Until when a pool should use another provider."""

    def record(self, *, failed: bool, now: float) -> None:
        """Take over one answer."""
        answers = self._failed
        answers.append(failed)
        if len(answers) > _ANSWERS_KEPT:
            del answers[0]
        if not failed:
            if now >= self.rests_until:
                self._next_rest_seconds = _FIRST_REST_SECONDS
            return
        if 2 * sum(answers) >= len(answers) and now >= self.rests_until:
            self.rests_until = now + self._next_rest_seconds
            self._next_rest_seconds = min(2 * self._next_rest_seconds, _LONGEST_REST_SECONDS)
            # After the rest the next answer counts alone; older ones have had their say.
            answers.clear()
