"""Read a date from an HTTP header.

The three forms of RFC 9110, section 5.6.7. By hand, since the standard library's readers either
load the whole of ``email``, which is felt in ``import harness``, or follow the program's locale.
Even ``datetime`` would be felt: it is loaded by `time.strptime`, when the first date is read.
"""

from __future__ import annotations

import re
import time

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
                second = min(second, 59)
                day = _day_of_the_epoch(year, month, int(found["day"]))
                checked = time.strptime(f"{hour}:{minute}:{second}", "%H:%M:%S")
            except ValueError:
                return None
            hours = 24 * day + checked.tm_hour
            return float(60 * (60 * hours + checked.tm_min) + checked.tm_sec)
    return None


def _day_of_the_epoch(year: int, month: int, day: int) -> int:
    """Return the number of a day, counted from that on which 1970 began.

    Raises:
      ValueError: if there was no such day.
    """
    day_of_year = time.strptime(f"{year:04}-{month}-{day}", "%Y-%m-%d").tm_yday
    before = year - 1
    leap_days = before // 4 - before // 100 + before // 400
    return 365 * before + leap_days + day_of_year - _DAYS_BEFORE_1970 - 1


_DAYS_BEFORE_1970 = 719_162
"""Days from the beginning of the year 1 to that of 1970."""
