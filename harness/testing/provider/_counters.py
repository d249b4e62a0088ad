"""Count what a simulated provider sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class ProviderStatistics:
    """What a simulated provider has seen so far.

    Every request is counted once by what becomes of it: ``requests == accepted + violations +
    invalid + sum(errors.values())``.
    """

    requests: int
    """Requests that arrived complete, of whatever kind."""

    accepted: int
    """Requests within the limits, and charged to them."""

    violations: int
    """Requests refused with 429 because they broke a limit. Injected 429s are not
    the client's fault; they are in ``errors``."""

    violations_by_limit: Mapping[str, int]
    """The same, by the limit that refused: ``requests``, ``tokens``, ``requests_day``, ..."""

    invalid: int
    """Requests refused with another 4xx: not JSON, an unknown path, too large, ..."""

    errors: Mapping[int, int]
    """Injected errors, by status."""

    answered: int
    """Accepted requests whose answer, or `ErrorAnswer`, was sent to its end."""

    cut: int
    """Accepted requests whose connection was cut."""

    malformed: int
    """Accepted requests that got a malformed body; they are in ``answered`` too."""

    hung: int
    """Accepted requests that got no answer, or half a stream."""

    clients_gone: int
    """Requests whose client left before it had its answer."""

    input_tokens: int
    """Tokens of all accepted requests."""

    output_tokens: int
    """Tokens of all answers."""

    batches: int
    """Batches of requests that came in."""

    batched_requests: int
    """Requests in them; they count nowhere else."""

    in_flight: int
    """Requests being answered now."""

    peak_in_flight: int
    """The most that were being answered at once."""

    connections: int
    """Connections open now."""

    connections_opened: int
    """Connections that were ever opened."""


@attrs.define(eq=False)
class Counters:
    """The counters behind the statistics."""

    requests: int = 0
    accepted: int = 0
    violations_by_limit: Counter[str] = attrs.field(factory=Counter[str])
    invalid: int = 0
    errors: Counter[int] = attrs.field(factory=Counter[int])
    answered: int = 0
    cut: int = 0
    malformed: int = 0
    hung: int = 0
    clients_gone: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    batches: int = 0
    batched_requests: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    connections: int = 0
    connections_opened: int = 0

    def begin(self) -> None:
        """Count a request that starts being answered."""
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)

    def snapshot(self) -> ProviderStatistics:
        """Return the counters as a value that no longer changes."""
        violations = self.violations_by_limit.total()
        return ProviderStatistics(violations=violations, **attrs.asdict(self))
