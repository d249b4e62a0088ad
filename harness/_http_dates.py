"""Read a date from an HTTP header.

The three forms of RFC 9110, section 5.6.7. By hand, since the standard library's readers either
load the whole of ``email``, which is felt in ``import harness``, or follow the program's locale.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]

_FORMS = (
    # Sun, 06 Nov 1994 08:49:37 GMT; and with dashes and a short year, as RFC 850 had it.
    r"[a-z]+, (?P<day>\d{1,2})[ -](?P<month>[a-z]{3})[ -](?P<year>\d{2}|\d{4}) "
    r"(?P<time>[\d:]+) (?:GMT|UTC|[+-]0000)",
    # Sun Nov  6 08:49:37 1994, as C's asctime() writes it.
    r"[a-z]{3} (?P<month>[a-z]{3}) +(?P<day>\d{1,2}) (?P<time>[\d:]+) (?P<year>\d{4})",
)
"""Compiled when first used, and kept by `re`: few programs meet a date."""


def http_date(text: str) -> float | None:
    """Return the seconds since the epoch that ``text`` names, or None if it is no HTTP date."""
    for form in _FORMS:
        found = re.fullmatch(form, text.strip(), re.IGNORECASE)
        if found is not None:
            try:
                year = int(found["year"])
                if year < 100:  # Of two digits: as POSIX reads them.
                    year += 2000 if year < 69 else 1900
                month = _MONTHS.index(found["month"].lower()) + 1
                hour, minute, second = map(int, found["time"].split(":"))
                # 60 is a leap second, which clocks here don't have.
                moment = datetime(
                    year, month, int(found["day"]), hour, minute, min(second, 59), tzinfo=UTC
                )
            except ValueError:
                return None
            return moment.timestamp()
    return None
