"""The limits that are written into a group of version 2, with plain files for the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog_app.guard.cgroup_v2 import CgroupV2

MIB = 1 << 20


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A group's files; the writable ones start empty."""
    for name in ("memory.high", "memory.max", "memory.swap.max", "memory.current"):
        (tmp_path / name).touch()
    return tmp_path


def limits(group: Path) -> tuple[int, int]:
    """The values of memory.high and memory.max."""
    return int((group / "memory.high").read_text()), int((group / "memory.max").read_text())


@pytest.mark.parametrize(
    ("wanted", "used", "killing"),
    [
        (200, 100, 264),  # room: a margin above the limit
        (200, 200, 264),
        (200, 390, 454),  # the reserve was used and is taken back, or the user lowers the limit
        (6400, 100, 6800),  # a sixteenth of a large limit
        (3200, 6400, 6800),
    ],
)
def test_the_limit_that_kills_lies_above_what_is_used(group, wanted, used, killing):
    """The kernel kills as soon as memory.max is below the usage, frozen or not."""
    (group / "memory.current").write_text(str(used * MIB))
    guard = CgroupV2(str(group), wanted * MIB)

    guard.enforce_limit()

    assert (wanted * MIB, killing * MIB) == limits(group)
    assert wanted * MIB == guard.limit_bytes
    assert (group / "memory.swap.max").read_text() == "0"


def test_limits_that_somebody_else_has_taken_away_are_written_again(group):
    """A reload of systemd removes them; the rewrite must not kill what grew meanwhile."""
    guard = CgroupV2(str(group), 200 * MIB)
    guard.enforce_limit()
    for name in ("memory.high", "memory.max"):
        (group / name).write_text("max\n")
    (group / "memory.current").write_text(str(390 * MIB))

    guard.rewrite_limit()

    assert (200 * MIB, 454 * MIB) == limits(group)


def test_a_guard_that_was_opened_has_no_limit_to_write_again(group):
    """Its supervisor released it, so memory.high is "max" by its own request."""
    guard = CgroupV2(str(group), 200 * MIB)
    guard.enforce_limit()
    guard.lift_limit()
    (group / "memory.high").write_text("max\n")

    guard.rewrite_limit()

    assert "max\n" == (group / "memory.high").read_text()


def test_a_group_whose_usage_cannot_be_read_has_the_limit_and_its_guard(group):
    """A group that has just been removed reads as empty: no wrong limit results."""
    guard = CgroupV2(str(group), 200 * MIB)

    guard.enforce_limit()

    assert (200 * MIB, 264 * MIB) == limits(group)
