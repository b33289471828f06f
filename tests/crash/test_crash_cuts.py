"""
Killed, without power, or refused by the disk, at any write: samples; all of them by `make crash`.

The record of one run is played onto a folder as far as each of its operations, with any loss that
a disk may have; and the program is killed for real in the place of an operation.
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
    """A folder in memory where there is one: thousands of files are made."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    ) as folder:
        yield Bench(Path(folder))


@pytest.mark.parametrize("name", OURS)
def test_whatever_is_lost_with_the_power_no_promise_is_broken(bench, name):
    """After a sample of operations: what was promised is there, what is there is whole."""
    record = bench.record(name)

    count, problems = bench.power(record, name, chances=1, every=1 + len(record) // 12)

    assert [] == problems
    assert count > 4


@pytest.mark.parametrize("name", sorted({*OURS} - {"first-rescue"}))
def test_killed_in_the_place_of_an_operation_nothing_is_lost_or_left_over(bench, name):
    """kill -9 for real, at a sample of operations; the next process goes on and tidies up."""
    record = bench.record(name)
    # How many operations there are depends on the threads: the last ones may not come.
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
    """From a sample of operations on: what was there stands, and works when the disk does."""
    places = [2, 5] if name in ("config", "pauses") else [2 + number % 7, 24 + number % 5]

    assert [] == bench.refused(name, number, places)


def test_the_test_disk_finds_out_who_syncs_nothing(bench):
    """A file that is written and renamed without a sync: lost, and half of it."""
    record = bench.record("careless")

    _, problems = bench.power(record, "careless", chances=3, every=1)

    assert any("gone" in each for each in problems)
    assert any("not whole" in each for each in problems)
    assert not any("killed" in each for each in problems)
