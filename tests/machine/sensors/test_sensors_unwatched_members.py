"""The memory of unwatched processes in a group, read when the group fills up."""

from __future__ import annotations

import os

import pytest

from watchdog_app.core.model.machine import CgroupMemory
from watchdog_app.machine.sensors.groups import UnwatchedMembers

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def world(tmp_path):
    """A /proc and a tree of groups: 10 and 11 in the group, 12 below it."""
    sizes = {10: 500, 11: 30, 12: 7}
    for pid, size in sizes.items():
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        pages = size * MIB // PAGE
        (tmp_path / f"proc/{pid}/statm").write_text(f"{2 * pages} {pages} 1 1 0 1 0\n")
    (tmp_path / "g/below").mkdir(parents=True)
    (tmp_path / "g/cgroup.procs").write_text("10\n11\n")
    (tmp_path / "g/below/cgroup.procs").write_text("12\n")
    return tmp_path


def group(world, used: int = 600, limit: int | None = 1000, high: int | None = None):
    """The group; sizes in MiB."""
    return CgroupMemory(
        str(world / "g"), 2, used * MIB, 0, 0, None if limit is None else limit * MIB,
        None if high is None else high * MIB, None, None, None,
    )  # fmt: skip


def held(world, at: float = 0.0, *, watched=(10,), reader=None, **more) -> int | None:
    """MiB that unwatched processes hold."""
    reader = reader or UnwatchedMembers(str(world / "proc"), lambda: 0.0)
    (found,) = reader.add_unwatched((group(world, **more),), set(watched), at)
    return None if found.unwatched_bytes is None else found.unwatched_bytes // MIB


def test_who_is_not_watched_counts_also_below_the_group(world):
    """The group's own usage includes them too."""
    assert 37 == held(world)
    assert 0 == held(world, watched=(10, 11, 12))


@pytest.mark.parametrize(
    "more", [{"used": 400}, {"limit": None, "high": None}, {"limit": None, "high": 2000}]
)
def test_a_group_with_room_is_not_looked_through(world, more):
    """The answer is not needed."""
    assert held(world, **more) is None


def test_a_group_that_is_slowed_down_is_looked_through(world):
    """Its only limit is memory.high."""
    assert 37 == held(world, limit=None, high=1000)


@pytest.mark.parametrize("listed", ["10\n0\n", "\n".join(str(pid) for pid in range(1, 1200))])
def test_where_not_all_can_be_seen_nothing_is_said(world, listed):
    """A process of another namespace, or a too long list, makes the sum unknown."""
    (world / "g/cgroup.procs").write_text(listed)

    assert held(world) is None


def test_a_group_without_its_list_is_not_known(world):
    """A threaded group refuses to list its processes."""
    (world / "g/cgroup.procs").unlink()
    (world / "g/cgroup.procs").mkdir()

    assert held(world) is None


def test_a_process_that_ends_meanwhile_holds_nothing(world):
    """Its pid is still in the list."""
    (world / "g/cgroup.procs").write_text("10\n11\n4711\nx\n")

    assert 37 == held(world)


def test_a_look_is_repeated_after_two_seconds_and_when_it_is_dear_later(world):
    """It may use a thousandth of a core."""
    cheap = UnwatchedMembers(str(world / "proc"), lambda: 0.0)
    times = iter(range(100))
    dear = UnwatchedMembers(str(world / "proc"), lambda: next(times) * 0.01)
    for reader in (cheap, dear):
        held(world, 0.0, reader=reader)

    (world / "g/cgroup.procs").write_text("10\n")
    seen = [
        [held(world, at, reader=reader) for at in (1.9, 2.0, 9.9, 10.1)] for reader in (cheap, dear)
    ]

    assert [[37, 7, 7, 7], [37, 37, 37, 7]] == seen
