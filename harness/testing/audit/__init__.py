"""Find state that outlives a run: by reading code, and by running it."""

from harness.testing.audit._finding import Finding, Rule
from harness.testing.audit._static import RULES, audit_paths, audit_source

__all__ = ["RULES", "Finding", "Rule", "audit_paths", "audit_source"]
