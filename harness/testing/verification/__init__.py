"""Run a sample of a finished batch again, each item alone, and say what that says of the rest."""

from harness.testing.verification._bounds import Bounds, bounds
from harness.testing.verification._checks import (
    Checked,
    Difference,
    Estimate,
    Recorded,
    Verdict,
    Verification,
)
from harness.testing.verification._sample import Drawn, SampleDraw
from harness.testing.verification._verify import verify, verify_sample

__all__ = [
    "Bounds",
    "Checked",
    "Difference",
    "Drawn",
    "Estimate",
    "Recorded",
    "SampleDraw",
    "Verdict",
    "Verification",
    "bounds",
    "verify",
    "verify_sample",
]
