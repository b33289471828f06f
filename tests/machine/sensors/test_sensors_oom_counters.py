"""The kernel's kill counters for one end: of its own group, in its own time span."""

from __future__ import annotations

import time

import pytest

from watchdog_app.machine.sensors.exits import OomCounters


class Kernel:
    """A machine with one counter, and one for each group, as files on disk."""

    def __init__(self, folder) -> None:
        self.folder = folder
        (folder / "proc").mkdir()
        self.host(0)

    def host(self, kills: int) -> None:
        (self.folder / "proc" / "vmstat").write_text(f"nr_free 1\noom_kill {kills}\n")

    def group(self, name: str, kills: int, file: str = "memory.oom_control") -> str:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / file).write_text(f"oom 0\noom_kill {kills}\noom_group_kill 0\n")
        return str(folder)

    def counts(self) -> OomCounters:
        return OomCounters(str(self.folder / "proc"))

    def tracked(self, file: str = "memory.oom_control") -> tuple[str, OomCounters]:
        """The group `a` without a kill, and the counters that count in it."""
        group, counts = self.group("a", 0, file), self.counts()
        counts.track([group], [])
        return group, counts


@pytest.fixture
def kernel(tmp_path):
    return Kernel(tmp_path)


V1, V2, LOCAL = "memory.oom_control", "memory.events", "memory.events.local"


@pytest.mark.parametrize("file", [V1, V2, LOCAL])
def test_a_kill_since_it_was_seen_alive_is_counted(kernel, file):
    """This works in v1 and in v2."""
    group, counts = kernel.tracked(file)
    alive = time.monotonic()
    kernel.group("a", 1, file)
    kernel.host(1)

    counts.update()

    assert (0, 1, 0) == counts.span(group, alive)[:3]
    assert (0, 1, 0) == counts.span(None, alive)[:3]


def test_a_kill_in_a_group_below_or_above_is_not_its_own(kernel):
    """memory.events of v2 includes all groups below; memory.events.local does not."""
    kernel.group("a", 0, V2)
    group, counts = kernel.tracked(LOCAL)
    kernel.group("a", 1, V2)  # of a child
    kernel.host(1)

    counts.update()

    assert (0, 0, 0) == counts.span(group, time.monotonic())[:3]


def test_a_kill_from_before_it_was_last_seen_alive_is_not_its_end(kernel):
    """The process was alive after that kill."""
    group, counts = kernel.tracked()
    kernel.group("a", 1)
    kernel.host(1)
    counts.update()

    later = time.monotonic() + 5.0  # a sample that still shows it

    assert (1, 1, 0) == counts.span(group, later)[:3]


def test_one_kill_has_one_victim(kernel):
    """The next process that ends in the group was not killed by the kernel."""
    group, counts = kernel.tracked()
    alive = time.monotonic()
    kernel.group("a", 1)
    kernel.host(1)
    counts.update()

    counts.claim(group, alive)

    assert (0, 1, 1) == counts.span(group, alive)[:3]
    assert (0, 1, 1) == counts.span(None, alive)[:3]


def test_memory_oom_group_kills_several_at_once(kernel):
    """Each of them uses up one of the count."""
    group, counts = kernel.tracked(LOCAL)
    alive = time.monotonic()
    kernel.group("a", 3, LOCAL)
    kernel.host(3)
    counts.update()
    counts.claim(group, alive)
    counts.claim(group, alive)

    assert (0, 3, 2) == counts.span(group, alive)[:3]


def test_what_was_counted_before_anybody_looked_is_not_known(kernel):
    """The first reading of the group comes after the process was seen alive, with kills already."""
    group = kernel.group("a", 4)
    counts = kernel.counts()
    alive = time.monotonic()
    counts.track([group], [])

    assert (None, 4) == counts.span(group, alive)[:2]

    kernel.group("a", 5)
    kernel.host(1)
    counts.update()
    assert (4, 5, 0) == counts.span(group, alive)[:3]  # the fifth kill came after that reading


@pytest.mark.parametrize("gone", ["group", "machine"])
def test_a_counter_that_cannot_be_read_says_nothing(kernel, gone):
    """Unknown is not zero."""
    group, counts = kernel.tracked()
    kernel.host(1)
    (kernel.folder / ("a/memory.oom_control" if gone == "group" else "proc/vmstat")).unlink()

    counts.update()

    asked = group if gone == "group" else None
    assert (None, None) == counts.span(asked, time.monotonic())[:2]
    assert (None, None) == counts.span(str(kernel.folder / "unknown"), time.monotonic())[:2]


def test_the_time_that_is_covered_begins_with_the_reading_before(kernel):
    """Neither with the first reading ever nor with the last sample."""
    counts = kernel.counts()
    first = time.monotonic()
    time.sleep(0.05)
    counts.update()

    begin = counts.span(None, time.monotonic() + 1.5).begin_mono_s

    assert first < begin <= time.monotonic()
