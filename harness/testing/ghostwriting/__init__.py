"""Write the test that proves or refutes that the calls of a function share something.

Needs the extra ``testing`` (Hypothesis), which makes values of the classes that annotations name.
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy

if TYPE_CHECKING:
    from harness.testing.ghostwriting._ghostwrite import ghostwrite
else:
    __getattr__, __dir__ = lazy(extras={"hypothesis": "testing"})

__all__ = ["ghostwrite"]
