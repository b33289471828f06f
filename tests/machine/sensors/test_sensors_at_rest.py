"""Limits and groups that the user changes while nothing else happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from sensor_trees import NOW_UNIX_S, Tree, by_pid

from watchdog_app.base.linux.cgroups import Hierarchy, Layout
from watchdog_app.core.policy.cadence import LONGEST_S
from watchdog_app.machine.sensors.groups import GroupSensor
from watchdog_app.machine.sensors.machine import LinuxMachine

GIB = 1 << 30
SEEN_S = 5.0


@pytest.mark.parametrize(
    ("version", "name"),
    [(1, "memory.limit_in_bytes"), (2, "memory.max"), (2, "memory.high"), (2, "memory.swap.max")],
)
@pytest.mark.parametrize("place", ["user", "user/task"])
@pytest.mark.parametrize("interval_s", [0.1, 1.0, LONGEST_S])
def test_a_limit_set_by_hand_is_seen_within_five_seconds(
    tmp_path: Path, version: int, name: str, place: str, interval_s: float
):
    """This holds for a group without a limit before, for a parent group, and for any interval."""
    task = tmp_path / "user" / "task"
    task.mkdir(parents=True)
    for folder in (task, task.parent):
        usage = "memory.usage_in_bytes" if version == 1 else "memory.current"
        (folder / usage).write_text("1000\n")
        (folder / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
        (folder / name).write_text("9223372036854771712\n" if version == 1 else "max\n")
    reader = GroupSensor(Layout((Hierarchy(version, str(tmp_path)),)))
    now = 0.0

    def sample() -> list[int | None]:
        found = reader.read([str(task)], now)
        return [
            {"memory.high": each.high_bytes, "memory.swap.max": each.swap_limit_bytes}.get(
                name, each.limit_bytes
            )
            for each in found
        ]

    for _ in range(10):
        assert [] == sample()
        now += interval_s
    for limit in (GIB, GIB // 2):
        (tmp_path / place / name).write_text(f"{limit}\n")
        set_s = now - interval_s  # right after a sample
        while [limit] != sample():
            now += interval_s
            assert now - set_s <= SEEN_S
        now += interval_s
    reader.close()


def test_a_limit_is_read_at_once_where_somebody_asks(tmp_path: Path):
    """The engine does so for a growing task before it blames it."""
    (tmp_path / "memory.usage_in_bytes").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    limit = tmp_path / "memory.limit_in_bytes"
    limit.write_text("9223372036854771712\n")
    reader = GroupSensor(Layout((Hierarchy(1, str(tmp_path)),)))
    assert () == reader.read([str(tmp_path)], 0.0)

    limit.write_text(f"{GIB}\n")
    reader.review()
    asked = reader.read([str(tmp_path)], 0.2)
    reader.close()

    assert [GIB] == [group.limit_bytes for group in asked]


def grown(tree: Tree) -> LinuxMachine:
    """A machine watched for a minute: every process is old."""
    machine = tree.machine()
    machine.sample(0.0, NOW_UNIX_S)
    machine.sample(60.0, NOW_UNIX_S + 60)
    return machine


def test_a_process_moved_to_another_group_is_seen_by_the_next_sample(tree: Tree):
    """Within two seconds, the longest interval between samples."""
    machine = grown(tree)

    tree.enter_group(420, "4:memory:/batch")
    found = machine.sample(60.0 + LONGEST_S, NOW_UNIX_S + 60 + LONGEST_S)

    assert LONGEST_S <= 2.0
    assert f"{tree.groups}/memory/batch" == by_pid(found)[420].cgroup


@pytest.mark.parametrize(("busy", "seen_s"), [(True, 15.0), (False, 65.0)])
def test_a_limit_that_a_program_sets_itself_is_seen(tree: Tree, busy: bool, seen_s: float):
    """Soon for a busy program; an idle program has set none."""
    machine = grown(tree)
    before = {info.rlimit_as_bytes for info in machine.sample(62.0, NOW_UNIX_S + 62).infos.values()}
    assert GIB not in before
    tree.limit_space(420, GIB)

    now, found = 62.0, None
    while found != GIB and now <= 62.0 + seen_s:
        now += LONGEST_S
        if busy:
            tree.fault(420)
        found = by_pid(machine.sample(now, NOW_UNIX_S + now))[420].rlimit_as_bytes

    assert GIB == found
