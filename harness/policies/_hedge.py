"""Say when to start a second attempt alongside one that is late."""

from __future__ import annotations

import attrs

from harness._arguments import check_fraction, check_seconds, says_near_options
from harness.policies._fields import fraction


@says_near_options
@attrs.frozen(kw_only=True)
class Hedge:
    """Start a second attempt for a straggler; the first answer wins, the other is cancelled.

    Give ``after`` or ``percentile``. A hedge takes no item's place, but has a budget of its own.
    """

    after: float | None = attrs.field(default=None)
    """Seconds after which an attempt is a straggler."""

    percentile: float | None = attrs.field(default=None)
    """An attempt is a straggler when it takes longer than this share of the first attempts that
    succeeded, such as 0.95; those beaten by a hedge count as slow. Learned while the fan-out runs:
    nothing is hedged until 20 are known."""

    budget: float = attrs.field(
        default=0.1, validator=fraction("0.05 allows one hedge for twenty items")
    )
    """Hedges allowed, as a share of the items started; ten are allowed in any case, so that short
    fan-outs can hedge. So a provider that is slow for everybody isn't asked twice by everybody. An
    attempt that is late while the budget is spent is hedged once more items have started."""

    def __attrs_post_init__(self) -> None:
        if (self.after is None) == (self.percentile is None):
            raise ValueError(
                f"Hedge takes either after=seconds or percentile=share, not after={self.after!r} "
                f"and percentile={self.percentile!r}; write Hedge(after=2.0) or "
                "Hedge(percentile=0.95)"
            )
        if self.after is not None:
            check_seconds("Hedge(after=...)", self.after, advice="say when an attempt is late")
        if self.percentile is not None:
            check_fraction("Hedge(percentile=...)", self.percentile, advice="0.95 is usual")
