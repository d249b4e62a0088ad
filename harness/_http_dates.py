"""Read a date from an HTTP header.

The three forms of RFC 9110, section 5.6.7. Written by hand, because the standard library's readers
either load the whole of ``email``, which slows down ``import harness``, or follow the program's
locale. Even ``datetime`` would slow it down: `time.strptime` loads it when the first date is read.
"""

from __future__ import annotations

import re
import time

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]

_FORMS = (
    # Sun, 06 Nov 1994 08:49:37 GMT; or with dashes and a short year, as in RFC 850.
    r"[a-z]+, (?P<day>\d{1,2})[ -](?P<month>[a-z]{3})[ -](?P<year>\d{2}|\d{4}) "
    r"(?P<time>[\d:]+) (?:GMT|UTC|[+-]0000)",
    # Sun Nov  6 08:49:37 1994, as C's asctime() writes it.
    r"[a-z]{3} (?P<month>[a-z]{3}) +(?P<day>\d{1,2}) (?P<time>[\d:]+) (?P<year>\d{4})",
)
"""Compiled when first used, and cached by `re`: few programs meet a date."""


def http_date(text: str) -> float | None:
    """Return the seconds since the epoch that ``text`` names, or None if it isn't an HTTP date."""
    for form in _FORMS:
        found = re.fullmatch(form, text.strip(), re.IGNORECASE)
        if found is not None:
            try:
                year = int(found["year"])
                if year < 100:  # Two digits, read as POSIX does.
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
    """Return the number of a day, counted from the first day of 1970.

    Raises:
      ValueError: if there was no such day.
    """
    day_of_year = time.strptime(f"{year:04}-{month}-{day}", "%Y-%m-%d").tm_yday
    before = year - 1
    leap_days = before // 4 - before // 100 + before // 400
    return 365 * before + leap_days + day_of_year - _DAYS_BEFORE_1970 - 1


_DAYS_BEFORE_1970 = 719_162
"""Days from the beginning of the year 1 to the beginning of 1970."""
