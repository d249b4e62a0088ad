"""What a verification is given and what it found, as plain values and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from harness._words import repr_of
from harness.errors import JournaledError
from harness.testing.verification._bounds import Bounds, bounds

Verdict = Literal["same", "differs", "varies", "failed"]
"""What came of an item: alone it ended as recorded; or otherwise, each time in the same way; or in
a new way each time, which says nothing about the batch; or it failed alone, and the batch has a
value."""

_IN_WORDS: Mapping[Verdict, str] = {
    "differs": "ended differently alone, in the same way each time",
    "failed": "failed alone, with a value in the batch; if another attempt may help, give --retry "
    "(from Python, each=)",
    "varies": "came out differently each time alone, which proves nothing about the batch; not "
    "counted above",
}

_SHOWN = 10
"""How many items, and fields of an item, a text shows."""


def words_of(error: BaseException) -> str:
    """Return ``Type: message``, whole, as the output of a batch has it."""
    try:
        if isinstance(error, JournaledError):
            return f"{error.type_name}: {error.message}"
        return f"{type(error).__name__}: {error}"
    except Exception as broken:
        return f"{type(error).__name__}: (its message can't be shown: {type(broken).__name__})"


@attrs.frozen(kw_only=True)
class Recorded:
    """What a batch has recorded of one item."""

    key: Any
    """What identifies it."""

    item: Any = None
    """What the function is called with."""

    status: str = "ok"
    """How it ended: ``"ok"``, ``"failed"``, ``"timed_out"``, ..."""

    value: Any = None
    """What it came to, if it is ok."""

    error: str | None = None
    """What went wrong, as ``Type: message``; None if it is ok."""

    @classmethod
    def of(cls, result: Any) -> Recorded:
        """Return what a `harness.Result` has recorded."""
        return cls(
            key=result.key,
            item=result.item,
            status=result.status,
            value=result.value if result.status == "ok" else None,
            error=None if result.error is None else words_of(result.error),
        )


@attrs.frozen
class Difference:
    """One place in which a value isn't the recorded one."""

    path: str
    """Where: ``.labels[2]``; empty for the whole value."""

    recorded: Any
    """What the batch has there; `MISSING` if nothing."""

    alone: Any
    """What the item came to alone; `MISSING` if nothing."""

    def __str__(self) -> str:
        path = f"{self.path}: " if self.path else ""
        return f"{path}{repr_of(self.recorded)} in the batch, {repr_of(self.alone)} alone"


class Missing:
    """Stands for a field or an entry that isn't there."""

    def __repr__(self) -> str:
        return "nothing"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = Missing()
"""In place of a field or an entry that isn't there."""


@attrs.frozen(repr=False)
class Raised:
    """Stands for the value of an item that has none."""

    error: str
    """What it raised, as ``Type: message``."""

    def __repr__(self) -> str:
        return f"raised {self.error}"


@attrs.frozen(kw_only=True)
class Checked:
    """What came of one item of the sample."""

    key: Any
    status: str
    """How it ended in the batch."""

    verdict: Verdict
    differences: tuple[Difference, ...] = ()
    """Where it differs, if it does."""

    runs: int = 1
    """How often it was run alone."""

    def __str__(self) -> str:
        shown = [str(one) for one in self.differences[:_SHOWN]]
        if len(self.differences) > _SHOWN:
            shown.append(f"and {len(self.differences) - _SHOWN:,} more")
        return f"{self.key}: {'; '.join(shown) or self.verdict}"


@attrs.frozen(kw_only=True)
class Estimate:
    """What the sample says of all items that ended in one way."""

    status: str
    population: int
    """How many there are."""

    decided: int
    """How many of them were run alone and ended as recorded, or differ."""

    differ: int
    bounds: Bounds
    """Between how many of the population differ."""

    confidence: float
    failed: str | None = None
    """What the first of them raised alone, if all failed: then nothing is known of the rest."""

    def __str__(self) -> str:
        if self.failed is not None:
            return f"all {self.decided:,} failed alone ({self.failed}): nothing could be compared"
        whole = f"{self.population:,}" + ("" if self.status == "ok" else f" {_words(self.status)}")
        if not self.decided:
            return f"none of the {whole} could be compared"
        least, most = self.bounds.least, self.bounds.most
        found = f"{self.differ:,} of {self.decided:,} differ"
        if self.decided == self.population:
            return f"{found}, and that is all of them"
        sure = f"with {100 * self.confidence:g} % confidence"
        if not self.differ:
            share = _percent((most + 1) / self.population, math.ceil)
            count = f"{most:,} at most" if most else "none"
            return f"{found}: fewer than {share} of the {whole} are suspect ({count}), {sure}"
        shares = (
            f"{_percent(least / self.population, math.floor)} to "
            f"{_percent(most / self.population, math.ceil)}"
        )
        return f"{found}: {shares} of the {whole} are suspect ({least:,} to {most:,}), {sure}"


@attrs.frozen(kw_only=True)
class Verification:
    """What running a sample of a batch again, each item alone, has shown."""

    checked: tuple[Checked, ...]
    """The items of the sample."""

    population: Mapping[str, int]
    """How many items the sample was drawn from, by how they ended."""

    seed: int
    confidence: float
    notes: tuple[str, ...] = ()
    """What else a reader must know, a sentence each."""

    @property
    def differing(self) -> tuple[Checked, ...]:
        """The items that differ; what failed alone, too."""
        return tuple(one for one in self.checked if one.verdict in ("differs", "failed"))

    @property
    def varying(self) -> tuple[Checked, ...]:
        """The items that differ from themselves when run alone, which proves nothing."""
        return tuple(one for one in self.checked if one.verdict == "varies")

    @property
    def ran(self) -> bool:
        """Whether anything was found out: not if every item that was ok failed alone."""
        return any(one.verdict in ("same", "differs") for one in self.checked)

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """What that says of the rest, for each way to end; first of what is ok."""
        statuses = sorted(self.population, key=lambda status: (status != "ok", status))
        return tuple(self._estimate(status) for status in statuses)

    def _estimate(self, status: str) -> Estimate:
        verdicts = [
            one.verdict for one in self.checked if one.status == status and one.verdict != "varies"
        ]
        failed = bool(verdicts) and set(verdicts) == {"failed"}
        differ, population = len(verdicts) - verdicts.count("same"), self.population[status]
        return Estimate(
            status=status,
            population=population,
            decided=len(verdicts),
            differ=differ,
            bounds=bounds(differ, len(verdicts), population, confidence=self.confidence),
            confidence=self.confidence,
            failed=self._first_error(status) if failed else None,
        )

    def _first_error(self, status: str) -> str:
        errors = (
            each.alone.error
            for one in self.checked
            if one.status == status and one.verdict == "failed"
            for each in one.differences
            if isinstance(each.alone, Raised)
        )
        return next(errors, "")

    def as_json(self) -> dict[str, Any]:
        """Return all of it in a form that JSON can hold, if the values can be."""
        return {
            "sample": len(self.checked),
            "seed": self.seed,
            "confidence": self.confidence,
            "differ": len(self.differing),
            "vary": len(self.varying),
            "estimates": [
                {
                    "status": one.status,
                    "population": one.population,
                    "decided": one.decided,
                    "differ": one.differ,
                    "least": one.bounds.least if one.failed is None else None,
                    "most": one.bounds.most if one.failed is None else None,
                }
                for one in self.estimates
            ],
            "items": [
                {
                    "key": one.key,
                    "status": one.status,
                    "verdict": one.verdict,
                    "runs": one.runs,
                    "differences": [_difference_json(each) for each in one.differences],
                }
                for one in self.checked
                if one.verdict != "same"
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for one in self.estimates:
            yield str(one)
        for verdict, what in _IN_WORDS.items():
            yield from _shown(what, [one for one in self.checked if one.verdict == verdict])
        yield from self.notes
        yield f"drawn with seed {self.seed}"


def _shown(what: str, items: list[Checked]) -> Iterator[str]:
    if items:
        yield f"{len(items):,} {'item' if len(items) == 1 else 'items'} {what}:"
        for one in items[:_SHOWN]:
            yield f"  {one}"
        if len(items) > _SHOWN:
            yield f"  and {len(items) - _SHOWN:,} more"


def _difference_json(one: Difference) -> dict[str, Any]:
    found = {"path": one.path}
    for side, value in (("recorded", one.recorded), ("alone", one.alone)):
        if isinstance(value, Raised):
            found[f"{side}_error"] = value.error
        elif value is not MISSING:
            found[side] = value
    return found


def _percent(share: float, rounded: Any) -> str:
    """Return a share with two digits that count, rounded outwards."""
    if share <= 0:
        return "0 %"
    share = min(share, 1) * 100
    digits = max(0, 1 - math.floor(math.log10(share)))
    scale = 10**digits
    # Less than one in 10 ** 9 is noise of the division.
    return f"{rounded(round(share * scale, 9)) / scale:g} %"


def _words(status: str) -> str:
    return status.replace("_", " ")
