"""Find state that outlives a run: by reading code, and by running it.

`audit_paths` reads files and runs nothing; `audit_function` runs a function and looks at what it
leaves behind. The second is loaded when first used: it brings the isolation check along.
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy
from harness.testing.audit._baseline import Baseline
from harness.testing.audit._finding import Finding, Rule
from harness.testing.audit._formats import Format, report
from harness.testing.audit._inventory import State, Use, inventory_paths
from harness.testing.audit._inventory_formats import InventoryFormat, inventory_report
from harness.testing.audit._run_rules import LEFT_BEHIND, RUN_FAILED
from harness.testing.audit._static import RULES as _STATIC_RULES
from harness.testing.audit._static import audit_paths, audit_source

if TYPE_CHECKING:
    from harness.testing.audit._behind import audit_function
else:
    __getattr__, __dir__ = lazy()

__all__ = [
    "RULES",
    "Baseline",
    "Finding",
    "Format",
    "InventoryFormat",
    "Rule",
    "State",
    "Use",
    "audit_function",
    "audit_paths",
    "audit_source",
    "inventory_paths",
    "inventory_report",
    "report",
]

RULES: tuple[Rule, ...] = (*_STATIC_RULES, LEFT_BEHIND, RUN_FAILED)
"""All rules."""
