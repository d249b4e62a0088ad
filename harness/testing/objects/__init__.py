"""Look at what runs can reach and share: find it, name it, compare it, and put it back.

`Reached` walks objects, and `SharedState` keeps what they held at first. `LineTrace` follows the
steps of tasks through the lines of code that touch them.
"""

from harness.testing.objects._kinds import GeneratorPart, ThreadLocalsPart
from harness.testing.objects._loads import Spot, Touch, touches
from harness.testing.objects._locals import (
    LocalAccess,
    LocalSuspect,
    LocalsWatch,
    local_suspects,
)
from harness.testing.objects._parts import WHOLE, MappingPart, OpaquePart, Part
from harness.testing.objects._places import Place, place_of_definition
from harness.testing.objects._reach import Reached
from harness.testing.objects._roots import reach_from
from harness.testing.objects._shared_state import SharedState, Suspect, suspects_of
from harness.testing.objects._tracing import LineTrace, in_a_thread_of_its_own

__all__ = [
    "WHOLE",
    "GeneratorPart",
    "LineTrace",
    "LocalAccess",
    "LocalSuspect",
    "LocalsWatch",
    "MappingPart",
    "OpaquePart",
    "Part",
    "Place",
    "Reached",
    "SharedState",
    "Spot",
    "Suspect",
    "ThreadLocalsPart",
    "Touch",
    "in_a_thread_of_its_own",
    "local_suspects",
    "place_of_definition",
    "reach_from",
    "suspects_of",
    "touches",
]
