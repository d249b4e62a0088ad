"""Each kind of accidentally shared state is found and named; corrected, it raises no alarm."""

import pytest

from harness.errors import ScheduleError
from harness.testing import assert_isolated
from tests.scale import scaled
from tests.testing.isolation import hidden_kinds, kinds

pytestmark = pytest.mark.slow

SEEDS = range(scaled(1, full=30))
CLASSIC = ("class_list", "global_dict", "unread_reply", "keyword_default", "lazy_client")
KINDS = dict.fromkeys(kinds.KINDS, kinds) | dict.fromkeys(hidden_kinds.KINDS, hidden_kinds)


@pytest.mark.parametrize("name", KINDS)
async def test_the_shared_object_is_named(name: str) -> None:
    for seed in range(scaled(5, full=30)) if name in CLASSIC else SEEDS:
        with pytest.raises(ScheduleError) as caught:
            await assert_isolated(getattr(KINDS[name], name), kinds.INPUTS, seed=seed)
        assert set(caught.value.objects) == set(KINDS[name].KINDS[name]), caught.value
        assert 1 <= caught.value.schedules_run <= 500
        assert "suspected" not in str(caught.value)


@pytest.mark.parametrize("name", KINDS)
async def test_the_corrected_agent_raises_no_alarm(name: str) -> None:
    agent = getattr(KINDS[name], f"{name}_fixed")
    seen = await assert_isolated(agent, kinds.INPUTS, schedules=scaled(30, full=300))
    assert seen.runs == 3
    assert seen.schedules_run == scaled(30, full=300)


@pytest.mark.parametrize("name", ["class_list", "unread_reply", "keyword_default"])
async def test_a_replay_shows_the_same_and_nothing_else(name: str) -> None:
    """A replay string is all that a report gives to go on with, so it must do."""
    agent = getattr(kinds, name)
    with pytest.raises(ScheduleError) as first:
        await assert_isolated(agent, kinds.INPUTS)
    assert first.value.schedule is not None
    with pytest.raises(ScheduleError) as again:
        await assert_isolated(agent, kinds.INPUTS, schedule=first.value.schedule)
    assert again.value.schedule == first.value.schedule
    assert again.value.objects == first.value.objects
    assert again.value.schedules_run == 1


async def test_a_replay_of_what_is_corrected_passes_or_says_that_it_diverged() -> None:
    with pytest.raises(ScheduleError) as leaky:
        await assert_isolated(kinds.class_list, kinds.INPUTS)
    seen = await assert_isolated(
        kinds.class_list_fixed, kinds.INPUTS, schedule=leaky.value.schedule
    )
    assert seen.schedules_run == 1
    with pytest.raises(ScheduleError, match="of other code: the replay diverged at decision"):
        await assert_isolated(kinds.shared_buffer, kinds.INPUTS, schedule=leaky.value.schedule)
