"""Values as table cells: long and compact forms, and unknown values."""

from __future__ import annotations

import pytest

from watchdog_app.base.text import quantities
from watchdog_app.core.model.status import Task

MIB = 1024**2
GIB = 1024**3


@pytest.mark.parametrize(
    ("full", "compact", "value"),
    [
        ("11.2 GiB", "11.2G", 11.2 * GIB),
        ("812 MiB", "812M", 812 * MIB),
        ("0 B", "0", 0),
        ("N/A", "N/A", None),
        ("N/A", "N/A", "12"),
        ("N/A", "N/A", True),
        ("N/A", "N/A", float("nan")),
        ("1.00 GiB", "1.00G", 1023.9 * MIB),
    ],
)
def test_sizes(full, compact, value):
    """A size has three digits. A value that is not a number is unknown, never zero."""
    assert full == quantities.format_bytes(value)
    assert compact == quantities.format_bytes(value, compact=True)


@pytest.mark.parametrize(
    ("full", "compact", "value"),
    [
        ("+21.0 MiB/s", "+21M/s", 21 * MIB),
        ("+9.54 MiB/s", "+9.5M/s", 9.54 * MIB),
        ("-3.20 MiB/s", "-3.2M/s", -3.2 * MIB),
        ("0", "0", 1000),
        ("0", "0", -0.0),
        ("N/A", "N/A", None),
    ],
)
def test_rates(full, compact, value):
    """Less than a KiB per second does not count as a trend."""
    assert full == quantities.format_rate(value)
    assert compact == quantities.format_rate(value, compact=True)


@pytest.mark.parametrize(
    ("full", "compact", "eta", "low", "high"),
    [
        ("4 min (3-7 min)", "4m (3-7m)", 240, 180, 420),
        ("43 s (31-70 s)", "43s (31-70s)", 43, 31, 70),
        ("90 s (40 s-3 min)", "90s (40s-3m)", 90, 40, 180),
        ("2 h (1-5 h)", "2h (1-5h)", 7300, 5990, 18000),
        ("3 d (2-9 d)", "3d (2-9d)", 259200, 172800, 777600),
        ("4 min (3+ min)", "4m (3+m)", 240, 180, None),
        ("<1 s (<1-2 s)", "<1s (<1-2s)", 0.2, 0.0, 2),
        ("5 min", "5m", 300, None, None),
        (">3 min", ">3m", None, 180, None),
        ("-", "-", None, None, None),
        ("-", "-", float("inf"), None, None),
    ],
)
def test_times_to_exhaustion(full, compact, eta, low, high):
    """A time has two digits and a range; a dash means that none is forecast."""
    holder = Task.read({"eta_s": eta, "eta_low_s": low, "eta_high_s": high})
    times = holder.eta_s, holder.eta_low_s, holder.eta_high_s

    assert full == quantities.eta(*times)
    assert compact == quantities.eta(*times, compact=True)


@pytest.mark.parametrize(
    ("text", "used", "limit", "unit"),
    [
        ("6.10 of 7.00 GiB", 6.1 * GIB, 7 * GIB, "bytes"),
        ("512 MiB of 7.00 GiB", 512 * MIB, 7 * GIB, "bytes"),
        ("N/A of 7.00 GiB", None, 7 * GIB, "bytes"),
        ("71 of 90 °C", 71.2, 90, "celsius"),
        ("180 of 250 W", 180, 250, "watts"),
        ("65 % left", 0.35, 1.0, "ratio"),
    ],
)
def test_a_figure_and_its_limit(text, used, limit, unit):
    """Both use one unit if they share it, otherwise each its own."""
    assert text == quantities.of_limit(used, limit, unit)


@pytest.mark.parametrize(("text", "value"), [("99 %", 0.9999), ("100 %", 1.0), ("N/A", None)])
def test_a_ratio_is_full_only_when_it_is(text, value):
    """Percentages are rounded down."""
    assert text == quantities.ratio(value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("now", 0.4), ("now", -50), ("12 s ago", 12.3), ("1 min 35 s ago", 95), ("1 s ago", 1.2)],
)
def test_ages(text, seconds):
    """Ages are whole seconds; a negative age after a clock change shows as now."""
    assert text == quantities.age(seconds)


def test_an_end_within_the_second_has_no_range():
    """`<1 s (<1-<1 s)` tells the user nothing."""
    assert "<1 s" == quantities.eta(0.2, 0.1, 0.6)
