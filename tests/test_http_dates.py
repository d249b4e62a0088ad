"""HTTP dates are read in the three forms of RFC 9110, and nothing else is taken for one."""

import email.utils

import hypothesis
import hypothesis.strategies as st
import pytest

from harness._http_dates import http_date

MOMENT = 784111777.0  # The example of RFC 9110, section 5.6.7.


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        " sun, 06 nov 1994 08:49:37 gmt ",
        "Sun, 06 Nov 1994 08:49:37 +0000",
    ],
)
def test_the_same_moment_is_read_in_every_form(text: str) -> None:
    assert http_date(text) == MOMENT


def test_a_leap_second_is_the_second_before_it() -> None:
    assert http_date("Sat, 31 Dec 2016 23:59:60 GMT") == http_date("Sat, 31 Dec 2016 23:59:59 GMT")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "120",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Foo 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 25:49:37 GMT",
        "Sun, 06 Nov 1994 08:49 GMT",
        "Sun, 06 Nov 1994 08:49:37 PST",
    ],
)
def test_anything_else_is_no_date(text: str) -> None:
    assert http_date(text) is None


@hypothesis.given(st.integers(min_value=0, max_value=4_102_444_799))
def test_what_the_standard_library_writes_is_read_back(moment: int) -> None:
    assert http_date(email.utils.formatdate(moment, usegmt=True)) == moment


@hypothesis.given(st.text(max_size=80))
def test_no_text_raises(text: str) -> None:
    http_date(text)
