"""The example of a batch on a Ray cluster, with workers in this process."""

import pytest
import trio
from trio.testing import MockClock

from ray_cluster import classify
from tests.cluster.fake_workers import FakeCluster
from tests.examples.headers import promised_output


@pytest.mark.slow
def test_it_prints_what_its_header_promises(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify, "RayCluster", lambda address, **options: FakeCluster(**options))
    trio.run(classify.main, clock=MockClock(autojump_threshold=0))
    assert capsys.readouterr().out.splitlines() == promised_output(classify)
