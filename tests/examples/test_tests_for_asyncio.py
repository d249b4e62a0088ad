"""The example of tests for somebody else's asyncio code."""

import asyncio

import pytest

import tests_for_asyncio
from tests.examples.headers import promised_output

TESTS = (
    tests_for_asyncio.test_letters_are_answered_in_order,
    tests_for_asyncio.test_what_was_handed_in_is_answered,
    tests_for_asyncio.test_four_letters_are_typed,
)


@pytest.mark.slow
def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    for test in TESTS:
        tests_for_asyncio.show(test)
    assert capsys.readouterr().out.splitlines() == promised_output(tests_for_asyncio)


def test_each_of_them_passes_when_it_is_run_once() -> None:
    for test in TESTS:
        asyncio.run(test.__wrapped__())  # type: ignore[attr-defined]
