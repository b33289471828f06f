"""Which times of day are quiet."""

from __future__ import annotations

import pytest

from watchdog_app.core.model.settings import span_of_day
from watchdog_app.daemon.notify.dispatcher import quiet_at


@pytest.mark.parametrize(
    ("text", "times", "quiet"),
    [
        ("22:00-07:00", ["22:00", "23:59", "00:00", "06:59"], True),
        ("22:00-07:00", ["21:59", "07:00", "12:00"], False),
        ("12:30-13:15", ["12:30", "13:14"], True),
        ("12:30-13:15", ["12:29", "13:15", "00:30"], False),
        ("00:00-24:00", ["00:00", "12:00", "23:59"], True),
        ("7:05-8:00", ["07:05"], True),
        (" 22:00 - 24:00 ", ["23:59"], True),
        ("22:00-24:00", ["00:00"], False),
        ("23:59-00:00", ["23:59"], True),
        ("23:59-00:00", ["00:00", "23:58"], False),
    ],
)
def test_hours_include_their_begin_and_not_their_end(text, times, quiet):
    """Over midnight as within a day."""
    for time in times:
        hour, minute = map(int, time.split(":"))
        assert (text if quiet else None) == quiet_at([text], hour, minute)


def test_of_several_hours_any_counts():
    """The one that holds is named."""
    assert "12:00-13:00" == quiet_at(["22:00-07:00", "12:00-13:00"], 12, 30)
    assert quiet_at([], 12, 30) is None


@pytest.mark.parametrize(
    "text",
    ["", "22:00", "22-07", "22:00-22:00", "24:00-07:00", "24:01-07:00", "25:00-07:00",
     "22:60-07:00", "22:00-07:00-08:00", "-1:00-07:00", "22:00-", "\uff12\uff12:00-07:00",
     "22.00-07.00", "10pm-7am"],
)  # fmt: skip
def test_what_is_no_span_of_hours_is_refused(text):
    """One that begins where it ends could mean nothing, or the whole day."""
    with pytest.raises(ValueError, match=r".+"):
        span_of_day(text)
