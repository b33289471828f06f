"""What happens to limits and groups while the machine is only glanced at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sensor_trees import NOW_UNIX_S, Tree, by_pid

from watchdog_app.base.linux.cgroups import Hierarchy, Layout
from watchdog_app.machine.sensors.bystanders import Bystanders
from watchdog_app.machine.sensors.cgroups import GroupReader
from watchdog_app.machine.sensors.limit_changes import LimitChanges
from watchdog_app.machine.sensors.process_table import ProcessTable

GIB = 1 << 30


def reader_of(folder: Path, version: int) -> GroupReader:
    return GroupReader(Layout((Hierarchy(version, str(folder)),)))


@pytest.fixture(params=[True, False], ids=["told by the kernel", "asked for"])
def told(request, monkeypatch) -> bool:
    """Whether files can be followed; a user may follow only so many."""
    if not request.param:
        monkeypatch.setattr("sys.platform", "elsewhere")
    return request.param


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (1, "memory.limit_in_bytes"),
        (2, "memory.max"),
        (2, "memory.high"),
        (2, "memory.swap.max"),
        (2, "memory.swap.high"),
    ],
)
@pytest.mark.parametrize("place", ["user", "user/task"])
def test_a_limit_set_at_rest_is_noticed_at_the_next_glance(
    tmp_path: Path, told: bool, version: int, name: str, place: str
):
    """Also of a group that had none, and of one above; once."""
    task = tmp_path / "user" / "task"
    task.mkdir(parents=True)
    for folder in (task, task.parent):
        usage = "memory.usage_in_bytes" if version == 1 else "memory.current"
        (folder / usage).write_text("1000\n")
        (folder / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
        (folder / name).write_text("9223372036854771712\n" if version == 1 else "max\n")
    reader = reader_of(tmp_path, version)
    assert () == reader.read([str(task)], 0.0)
    assert not reader.limits_changed(10.0)

    (tmp_path / place / name).write_text(f"{GIB}\n")

    assert reader.limits_changed(10.0)
    (found,) = reader.read([str(task)], 10.1)
    seen = {
        "memory.high": found.high_bytes,
        "memory.swap.max": found.swap_limit_bytes,
        "memory.swap.high": found.swap_high_bytes,
    }
    assert GIB == seen.get(name, found.limit_bytes)
    assert not reader.limits_changed(13.0)

    (tmp_path / place / name).write_text(f"{GIB // 2}\n")
    assert reader.limits_changed(20.0)
    reader.close()
    assert told is reader._changes.complete


def test_a_limit_set_between_two_looks_is_seen_by_the_next(tmp_path: Path, told: bool):
    """Where the kernel tells of it, within no time; else where somebody asks, as who grows does."""
    (tmp_path / "memory.usage_in_bytes").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    limit = tmp_path / "memory.limit_in_bytes"
    limit.write_text("9223372036854771712\n")
    reader = reader_of(tmp_path, 1)
    assert () == reader.read([str(tmp_path)], 0.0)

    limit.write_text(f"{GIB}\n")
    at_once = reader.read([str(tmp_path)], 0.1)
    reader.review()
    asked = reader.read([str(tmp_path)], 0.2)
    reader.close()

    assert ([GIB] if told else []) == [group.limit_bytes for group in at_once]
    assert [GIB] == [group.limit_bytes for group in asked]


def test_without_descriptors_limits_are_read(tmp_path: Path):
    """An editor and some containers have used up what one user may have of inotify."""
    program = (
        "import resource\n"
        "from watchdog_app.machine.sensors.limit_changes import LimitChanges\n"
        "import select, ctypes\n"
        "ctypes.CDLL(None)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "changes = LimitChanges()\n"
        "changes.follow(['/proc/self/stat'])\n"
        "assert not changes.complete and changes.pending() and not changes.any()\n"
        "changes.close()\n"
        "print('read')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "read\n" == done.stdout, done.stderr


def test_groups_that_are_followed_no_longer_are_silent(tmp_path: Path):
    """And the descriptor is given back."""
    before = os.listdir("/proc/self/fd")
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
    changes = LimitChanges()
    changes.follow([str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "none")])
    assert changes.complete
    changes.follow([str(tmp_path / "b")])
    assert not changes.any()  # that one is followed no longer is no news

    (tmp_path / "a").write_text("2")
    assert not changes.any()
    for _ in range(1000):
        (tmp_path / "b").write_text("2")
    assert changes.any()
    assert not changes.any()

    changes.close()
    assert not changes.any()
    assert before == os.listdir("/proc/self/fd")


@pytest.mark.cgroup
def test_the_kernel_tells_of_a_limit_that_is_set():
    """Files of groups are files: of the kernel at hand."""
    root = Path("/sys/fs/cgroup/memory")
    name = "memory.limit_in_bytes"
    if not (root / name).exists():
        root, name = Path("/sys/fs/cgroup"), "memory.max"
    folder = root / f"watchdog-test-rest-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be made here: {error}")
    changes = LimitChanges()
    try:
        if not (folder / name).exists():
            pytest.skip("the memory controller is not handed down")
        changes.follow([str(folder / name)])
        assert not changes.any()

        (folder / name).write_text(str(GIB))

        assert changes.any()
    finally:
        changes.close()
        folder.rmdir()


def table_of(tree: Tree) -> ProcessTable:
    machine = tree.machine()
    machine.sample(0.0, NOW_UNIX_S)
    machine.sample(60.0, NOW_UNIX_S + 60)  # nobody is young any more
    return machine._processes


def test_a_process_moved_to_another_group_at_rest_is_noticed(tree: Tree):
    """By the next glance, however many are watched."""
    table = table_of(tree)
    count = len(table.infos)
    assert not any(table.changed(61.0 + at) for at in range(4 * count))

    tree.enter_group(420, "4:memory:/batch")

    assert table.changed(100.0 + 4 * count)
    table.glance(61.0)
    table.stirred()
    machine = tree.machines[0]
    found = machine.sample(62.0, NOW_UNIX_S + 62)
    assert f"{tree.groups}/memory/batch" == by_pid(found)[420].cgroup


@pytest.mark.parametrize(
    ("busy", "stirred", "seen"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_limits_of_idle_processes_alone_wait_at_rest(
    tree: Tree, busy: bool, stirred: bool, seen: bool
):
    """Who computes may have set one, and while memory moves nothing waits."""
    table = table_of(tree)
    before = {info.rlimit_as_bytes for info in table.infos.values()}
    assert GIB not in before
    tree.limit_space(420, GIB)

    table.glance(79.0)
    if busy:
        tree.fault(420)
    if stirred:
        table.stirred()
    found = tree.machines[0].sample(80.0, NOW_UNIX_S + 80)

    assert seen is (by_pid(found)[420].rlimit_as_bytes == GIB)


@pytest.mark.parametrize(
    ("computes", "ticks", "changed"),
    [
        (True, 200, True),
        (True, 10, True),
        (True, 200, False),
        (False, 200, True),  # the next look sees it
    ],
)
def test_who_computes_at_rest_is_asked_four_times_a_minute(
    tree: Tree, computes: bool, ticks: int, changed: bool
):
    """For its limits, without a look at everybody; who does not compute has set none."""
    table, machine = table_of(tree), tree.machines[0]
    tree.compute(420, 100 * computes)
    machine.sample(62.0, NOW_UNIX_S + 62)
    assert not table.changed(76.0)
    assert not table.changed(77.0)
    tree.compute(420, ticks)
    if changed:
        tree.limit_space(420, GIB)

    assert not table.changed(91.0)
    found = table.changed(92.0)

    assert (changed and computes and ticks == 200) is found
    assert not table.changed(107.0)
    if found:
        assert GIB == by_pid(machine.sample(108.0, NOW_UNIX_S + 108))[420].rlimit_as_bytes


def test_who_is_asked_at_rest_keeps_no_more_descriptors_than_there_are_to_keep(tree: Tree):
    """With thousands of watched processes their files are opened for each look."""
    table = table_of(tree)
    table._kept = 1
    tree.compute(420, 200)
    table.sample(61.0, NOW_UNIX_S + 61, swap_in_use=False)
    before = len(os.listdir("/proc/self/fd"))

    table.changed(76.0)

    assert before == len(os.listdir("/proc/self/fd"))


def test_a_pid_that_is_used_again_is_asked_once_a_round(tmp_path: Path):
    """Names that come and go for weeks leave nothing behind."""
    others = Bystanders(str(tmp_path))
    for second in range(0, 3000, 10):
        for pid in (5, 6):
            others.note(pid, float(second))
        list(others.due(second + 6.0, at_rest=True))
        for pid in (5, 6):
            others.forget(pid)
    others.note(5, 3000.0)
    list(others.due(3006.0, at_rest=False))

    assert [5] == list(others.due(3010.0, at_rest=False))
    assert sum(map(len, others._due.values())) <= 20


def test_an_hour_of_rest_makes_no_look_ask_everybody_at_once(tree: Tree):
    """5,000 processes asked in one go would delay the very look that was hurried for."""
    others = table_of(tree)._others
    for pid in range(1000, 3000):
        others._known.drop(pid)
        others.note(pid, 60.0)
    list(others.due(70.0, at_rest=True))
    asked = list(others.due(3670.0, at_rest=False))

    assert 0 < len(asked) <= 500
