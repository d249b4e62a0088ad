"""Every public name can be found: by ``dir``, which the reference is made from, and by use."""

import importlib

import pytest

FOLDERS = [
    "harness",
    "harness.runs",
    "harness.policies",
    "harness.fanout",
    "harness.flow",
    "harness.limits",
    "harness.agents",
    "harness.testing",
    "harness.testing.exploration",
    "harness.testing.schedules",
    "harness.testing.provider",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_public_name_is_listed_and_can_be_had(folder: str) -> None:
    """Names that are loaded when first used were missing in the reference."""
    module = importlib.import_module(folder)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("folder", ["harness", "harness.fanout", "harness.agents"])
def test_a_name_that_does_not_exist_is_an_attribute_error(folder: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = importlib.import_module(folder).nothing
