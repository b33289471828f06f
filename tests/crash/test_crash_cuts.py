"""
Writers killed, without power, or refused by the disk at any write; `make crash` tests all points.

The tests replay the record of one run up to each operation, with any possible loss. They also kill
the program at an operation.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from crash.crash_judge import BROKEN, NO_SPACE, READ_ONLY, Bench
from crash.crash_workloads import WORKLOADS

OURS = sorted(set(WORKLOADS) - {"careless"})


@pytest.fixture
def bench(tmp_path):
    """A folder in memory if possible, because the tests create thousands of files."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    ) as folder:
        yield Bench(Path(folder))


@pytest.mark.parametrize("name", OURS)
def test_whatever_is_lost_with_the_power_no_promise_is_broken(bench, name):
    """After a sample of operations every promised file exists and every file is complete."""
    record = bench.record(name)

    count, problems = bench.power(record, name, chances=1, every=1 + len(record) // 12)

    assert [] == problems
    assert count > 4


@pytest.mark.parametrize("name", sorted({*OURS} - {"first-rescue"}))
def test_killed_in_the_place_of_an_operation_nothing_is_lost_or_left_over(bench, name):
    """
    A real kill -9 at a sample of operations; the next process continues and removes leftovers.
    """
    record = bench.record(name)
    # The number of operations depends on the threads: the last ones may be missing.
    places = list(range(1, max(2, len(record) * 3 // 4), 1 + len(record) // 8))

    killed, problems = bench.kills(name, places)

    assert [] == problems
    assert killed == len(places)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, NO_SPACE) for name in OURS if name != "first-rescue"),
        *((name, number) for name in ("rescues", "journal") for number in (BROKEN, READ_ONLY)),
    ],
)
def test_a_disk_that_refuses_ends_nothing_and_spoils_nothing(bench, name, number):
    """
    From a sample of operations on the disk refuses writes.

    Old data stays, and later writes work.
    """
    places = [2, 5] if name in ("config", "pauses") else [2 + number % 7, 24 + number % 5]

    assert [] == bench.refused(name, number, places)


def test_the_test_disk_finds_out_who_syncs_nothing(bench):
    """A file renamed without a sync can be lost or half written."""
    record = bench.record("careless")

    _, problems = bench.power(record, "careless", chances=3, every=1)

    assert any("gone" in each for each in problems)
    assert any("not whole" in each for each in problems)
    assert not any("killed" in each for each in problems)
