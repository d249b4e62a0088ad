"""What is called the cause must be enough under every order that was tried, and be needed."""

from collections.abc import Sequence
from typing import cast

import attrs
import pytest

from harness.testing._outcomes import Comparison, Outcome
from harness.testing.isolation._causes import Candidate, Causes, find_causes
from harness.testing.isolation._generators import Generators
from harness.testing.isolation._trials import Difference, Subject, Trial, Verdict
from harness.testing.objects._parts import MappingPart
from harness.testing.objects._places import Place
from harness.testing.objects._reach import Reached
from harness.testing.objects._shared_state import SharedState, Suspect

WRONG = Difference(0, Outcome("returned", 1), Outcome("returned", 2))


@attrs.frozen
class Scripted:
    """A trial that is right if one of these sets of things is private."""

    enough: tuple[frozenset[str], ...]

    def play(self, subject: Subject, private: Sequence[Suspect]) -> Verdict:
        paths = {suspect.path for suspect in private}
        return Verdict({}, () if any(paths >= some for some in self.enough) else (WRONG,))


def trial(*enough: str) -> Trial:
    return cast("Trial", Scripted(tuple(frozenset(some) for some in enough)))


def causes(failing: Trial, *others: Trial) -> Causes:
    parts = [MappingPart(Place(name), {}) for name in "abc"]
    reached = Reached()
    reached.parts.extend(parts)

    async def agent(value: object) -> None: ...

    none = Generators([], 0)
    subject = Subject(agent, [], SharedState(reached), Comparison(None), {}, none)
    candidates = [Candidate(str(part.place), (Suspect(part),)) for part in parts]
    return find_causes(subject, failing, candidates, others)


@pytest.mark.parametrize(
    ("failing", "others", "paths", "joint"),
    [
        pytest.param(trial("a"), [trial("a")], "a", False, id="one"),
        pytest.param(trial("a", "b"), [trial("a", "b")], "ab", False, id="each of two"),
        # A private lock changes who runs when, and hides the fault from the one order it was in.
        pytest.param(trial("a", "b"), [trial("b")], "b", False, id="one of them by luck"),
        pytest.param(trial("ab"), [trial("ab")], "ab", True, id="two together"),
        pytest.param(trial("ab", "c"), [trial("ab")], "ab", True, id="two together, one by luck"),
        pytest.param(trial("c"), [trial()], "c", False, id="under the failing order only"),
        pytest.param(trial("ac"), [trial()], "ac", True, id="together, the failing order only"),
    ],
)
def test_proven_causes(failing: Trial, others: list[Trial], paths: str, joint: bool) -> None:
    found = causes(failing, *others)
    assert found.proven
    assert [one.path for one in found.candidates] == list(paths)
    assert found.joint == joint


def test_nothing_is_proven_if_nothing_helps() -> None:
    found = causes(trial(), trial())
    assert not found.proven
    assert [one.path for one in found.candidates] == ["a", "b", "c"]
