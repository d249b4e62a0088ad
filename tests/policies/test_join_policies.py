"""Join policies are frozen values that refuse what makes no sense when they are made."""

import copy
import pickle
from typing import Any

import pytest

from harness import BestEffort, FailFast, FirstSuccess, Quorum

VALUES = [FailFast(), BestEffort(), BestEffort(critical=callable), Quorum(3), FirstSuccess()]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_policy_is_a_value(value: Any) -> None:
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert again == value
        assert hash(again) == hash(value)
    assert type(value).__name__ in repr(value)


def test_policies_of_different_kinds_or_numbers_differ() -> None:
    assert len(set(VALUES)) == len(VALUES)
    assert Quorum(2) != Quorum(3)


@pytest.mark.parametrize("value", [BestEffort(), Quorum(3)], ids=repr)
def test_a_policy_cannot_be_changed(value: Any) -> None:
    for name in ("critical", "k", "anything"):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)


@pytest.mark.parametrize(
    ("k", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (None, TypeError),
        (True, TypeError),
        (2.0, TypeError),
        ("2", TypeError),
    ],
)
def test_a_quorum_that_is_no_positive_int_is_refused(k: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        Quorum(k)
    assert "Quorum" in str(caught.value)
    assert repr(k) in str(caught.value)


@pytest.mark.parametrize("critical", [3, "id", [], True])
def test_a_critical_that_is_no_function_is_refused(critical: Any) -> None:
    with pytest.raises(TypeError, match="critical") as caught:
        BestEffort(critical=critical)
    assert repr(critical) in str(caught.value)


def test_an_async_critical_is_refused() -> None:
    """The coroutine that it returned was true: every item was critical."""

    async def critical(item: int) -> bool:
        return False

    with pytest.raises(TypeError, match="plain function"):
        BestEffort(critical=critical)
