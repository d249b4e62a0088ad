"""The example of documents that go through a pipeline."""

import re

import pytest
import trio
from trio.testing import MockClock

import document_pipeline
from tests.examples.headers import promised_output


def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(document_pipeline.main, clock=MockClock(autojump_threshold=0))
    assert capsys.readouterr().out.splitlines() == promised_output(document_pipeline)


@pytest.mark.slow
def test_it_reads_no_further_ahead_if_there_are_more_documents(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_pipeline, "DOCUMENTS", 2_000)
    trio.run(document_pipeline.main, clock=MockClock(autojump_threshold=0))
    ahead = re.search(r"(\d+) read ahead at most", capsys.readouterr().out)
    assert ahead is not None
    assert 60 < int(ahead[1]) < 100  # Not always the same: who wakes first is left to chance.
