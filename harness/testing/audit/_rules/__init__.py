"""The rules of the static audit, a file for each."""

from harness.testing.audit._rules._across_yield import ACROSS_YIELD
from harness.testing.audit._rules._cached_coroutine import CACHED_COROUTINE
from harness.testing.audit._rules._cached_value import CACHED_VALUE
from harness.testing.audit._rules._check_then_act import CHECK_THEN_ACT
from harness.testing.audit._rules._class_attribute import CLASS_ATTRIBUTE
from harness.testing.audit._rules._client_at_import import CLIENT_AT_IMPORT
from harness.testing.audit._rules._module_global import MODULE_GLOBAL
from harness.testing.audit._rules._mutable_default import MUTABLE_DEFAULT
from harness.testing.audit._rules._named_object import NAMED_CLASS, NAMED_INSTANCE
from harness.testing.audit._rules._process_state import PROCESS_STATE
from harness.testing.audit._rules._run_local import RUN_LOCAL
from harness.testing.audit._rules._shared_instance import CLASS_OF_CALLS, SHARED_INSTANCE
from harness.testing.audit._rules._thread_local import THREAD_LOCAL
from harness.testing.audit._sources import Checker

__all__ = ["CHECKERS"]

CHECKERS: tuple[Checker, ...] = (
    CLASS_ATTRIBUTE,
    MODULE_GLOBAL,
    MUTABLE_DEFAULT,
    SHARED_INSTANCE,
    CLASS_OF_CALLS,
    CHECK_THEN_ACT,
    THREAD_LOCAL,
    CLIENT_AT_IMPORT,
    CACHED_COROUTINE,
    CACHED_VALUE,
    RUN_LOCAL,
    PROCESS_STATE,
    ACROSS_YIELD,
    NAMED_CLASS,
    NAMED_INSTANCE,
)
"""All checkers. A rule may have two, which look for the same thing in two ways."""
