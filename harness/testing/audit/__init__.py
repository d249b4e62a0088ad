"""Find state that outlives a run: by reading code, and by running it."""

from harness.testing.audit._behind import LEFT_BEHIND, RUN_FAILED, audit_function
from harness.testing.audit._finding import Finding, Rule
from harness.testing.audit._report import Format, report
from harness.testing.audit._static import RULES as STATIC_RULES
from harness.testing.audit._static import audit_paths, audit_source

__all__ = [
    "RULES",
    "Finding",
    "Format",
    "Rule",
    "audit_function",
    "audit_paths",
    "audit_source",
    "report",
]

RULES: tuple[Rule, ...] = (*STATIC_RULES, LEFT_BEHIND, RUN_FAILED)
"""Every rule there is."""
