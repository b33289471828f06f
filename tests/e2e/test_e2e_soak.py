"""A short soak: the load of `make soak`, three times as fast, for some seconds."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from support.finished import finished

SOAK = Path(__file__).parents[2] / "bench" / "soak.py"


@pytest.fixture(scope="module")
def soaked(tmp_path_factory):
    """The measurements of six seconds of load."""
    found = tmp_path_factory.mktemp("soak") / "soak.json"
    done = finished(
        [sys.executable, str(SOAK), "--minutes", "0.1", "--pace", "3", "--json", str(found)],
        stdin=subprocess.DEVNULL,
    )
    assert found.exists(), done.stdout + done.stderr
    return json.loads(found.read_text())


def test_all_descriptors_and_threads_are_given_back_after_churn(soaked):
    """Hundreds of processes, agents and clients leave no open descriptor."""
    before, after = soaked["figures"]["descriptors_before_after"]
    busiest = max(row["descriptors"] for row in soaked["rows"])

    assert busiest > before + 10, "there was churn"
    assert after <= before + 4
    assert [] == [each for each in soaked["figures"]["wrong"] if "left" in each]


def test_memory_does_not_grow_without_bound_in_churn(soaked):
    """Seconds show large leaks; an hour of `make soak` shows small ones."""
    figures = soaked["figures"]

    assert figures["rss_highest_bytes"] < 2 * figures["rss_first_bytes"]
    assert [] == [each for each in figures["wrong"] if "grew" in each]


def test_the_daemon_goes_on_looking_and_ends_in_good_order(soaked):
    """The daemon always answers, no part fails, and after SIGTERM the exit code is 0."""
    figures = soaked["figures"]
    seconds = [row["ticks"] for row in soaked["rows"]]

    assert 6 == len(seconds)
    assert figures["looks"] > 0
    assert all(now >= before for before, now in pairwise(seconds))
    assert [] == [each for each in figures["wrong"] if "daemon" in each or "churn" in each]


@pytest.fixture
def figures(monkeypatch):
    """Return the input of the soak's verdict."""
    monkeypatch.syspath_prepend(str(SOAK.parent))
    return importlib.import_module("soak_figures")


def rows(figures, count: int, **last):
    """Return rows of this many idle seconds; the last row may have other values."""
    quiet = dict.fromkeys(figures.Row.__dataclass_fields__, 0)
    quiet |= {"rss_bytes": 26_000_000, "descriptors": 30, "threads": 5}
    found = [figures.Row(**{**quiet, "t_s": float(second)}) for second in range(count)]
    return [*found[:-1], figures.Row(**{**quiet, "t_s": float(count), **last})]


def test_samples_that_were_missed_are_reported_and_are_no_fault(figures):
    """The machine may have had no processor time for them."""
    seconds = rows(figures, 60, missed=271)

    found = figures.verdict(seconds, seconds[0], seconds[0])

    assert ([], 271) == (found["wrong"], found["missed_looks"])


def test_memory_that_grows_by_three_megabytes_an_hour_is_a_leak(figures):
    """The soak must be long enough, and the verdict skips the first quarter."""
    flat = rows(figures, 3600)
    grown = [replace(row, rss_bytes=26_000_000 + int(3e6 * row.t_s / 3600)) for row in flat]
    filled = [replace(row, rss_bytes=int(26e6 + 8e6 * min(1, row.t_s / 800))) for row in flat]

    found = [figures.verdict(each, each[0], each[-1])["wrong"] for each in (flat, grown, filled)]

    assert [[], ["RSS grows by 3.0 MB an hour"], []] == found
