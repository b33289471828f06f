"""Memory groups: their folders and their figures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from watchdog_app.base.errors import ActionError
from watchdog_app.base.linux.cgroups import (
    Hierarchy,
    Layout,
    flat_value,
    group_folder,
    parse_limit,
    parse_membership,
    parse_mountinfo,
)
from watchdog_app.guard.backends import create
from watchdog_app.machine.sensors.groups import GroupSensor

GIB = 1 << 30
SCOPE = "user.slice/user-1000.slice/user@1000.service/app.slice/train.scope"

V1 = b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2 = b"31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (V1, [(1, "/sys/fs/cgroup/memory", "/")]),
        (V2, [(2, "/sys/fs/cgroup", "/")]),
        (
            b"9 8 0:1 /docker/ab /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,cpu,memory\n",
            [(1, "/sys/fs/cgroup/memory", "/docker/ab")],
        ),
        (b"9 8 0:1 / /odd\\040place rw - cgroup2 none rw\n", [(2, "/odd place", "/")]),
        (b"9 8 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", []),
        (b"9 8 0:1 / /x rw - tmpfs memory rw,memory\n", []),
        (b"9 8 0:1 / /x rw - cgroup2\n", []),
        (b"garbage\n\n - \n", []),
    ],
)
def test_mounts_that_can_limit_memory(data, expected):
    """v1 only with the memory controller; incomplete lines are ignored."""
    found = parse_mountinfo(data)
    assert expected == [(each.version, each.mount_point, each.root) for each in found]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"4:memory:/a\n0::/b\n", {"memory": "/a", "": "/b"}),
        (b"4:cpu,memory:/a:b\n", {"cpu": "/a:b", "memory": "/a:b"}),
        (b"1:name=systemd:/x\n", {"name=systemd": "/x"}),
        (b"", {}),
        (b"broken\n4:memory\n", {}),
    ],
)
def test_groups_of_a_process(data, expected):
    """By controller; a path may contain colons."""
    assert expected == parse_membership(data)


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("/", "/", "/m"),
        ("/", "/a/b", "/m/a/b"),
        ("/", "/a (deleted)", "/m/a"),
        # A container without a cgroup namespace: the mount shows its group as the root.
        ("/docker/ab", "/docker/ab", "/m"),
        ("/docker/ab", "/docker/ab/child", "/m/child"),
        ("/docker/ab", "/docker/abc", None),
        ("/docker/ab", "/", None),
        # A process outside of this namespace.
        ("/", "/../other", None),
        # A mount that shows more than this namespace: its root is an ancestor of the process.
        ("/../..", "/", "/m"),
        ("/../..", "/a", "/m"),
        ("/../..", "/../sibling", "/m"),
        ("/..", "/../../elsewhere", None),
    ],
)
def test_folder_of_a_group(root, path, expected):
    """A folder that may not contain the process is never returned."""
    assert expected == group_folder(Hierarchy(1, "/m", root), path)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"max\n", None),
        (b"9223372036854771712\n", None),
        (b"9223372036854775807\n", None),
        (b"9223372036854710272\n", None),  # 64 KiB pages
        (b"2147483648\n", 2 * GIB),
        (b"0\n", 0),
        (b"", None),
        (b"-1\n", None),
    ],
)
def test_no_limit_has_many_spellings(data, expected):
    """`max` and v1's largest number, for every page size, mean no limit."""
    assert expected == parse_limit(data)


def test_flat_files_are_read_by_whole_labels():
    """`oom` is not `oom_kill`, `file` is not `inactive_file`."""
    data = b"oom_kill 3\noom 2\ninactive_file 5\nfile 7\nbad x\nlast 9"

    labels = (b"oom", b"oom_kill", b"file", b"bad", b"last", b"none")
    assert [2, 3, 7, None, 9, None] == [flat_value(data, label) for label in labels]


def test_captured_v1_group_and_its_parent(tree):
    """Usage without page cache, limits, swap; each group once; the unlimited root left out."""
    locator = Layout.discover(V1, str(tree.groups))
    leaf = f"{tree.groups}/memory/jupyter/train"
    reader = GroupSensor(locator)

    outer, inner = reader.read([leaf, leaf], 0.0)

    assert (f"{tree.groups}/memory/jupyter", 4 * GIB) == (outer.path, outer.limit_bytes)
    assert (leaf, 1, 2 * GIB, GIB) == (
        inner.path,
        inner.version,
        inner.limit_bytes,
        inner.swap_limit_bytes,
    )
    assert 299905024 - 16384 - 83869696 == inner.unreclaimable_bytes
    assert (0, 0) == (inner.swap_usage_bytes, inner.oom_kills)
    reader.close()


def test_captured_v2_group(tree):
    """The scope and the slice above it; groups without a limit are left out."""
    tree.use_v2()
    locator = Layout.discover(V2, str(tree.groups))
    reader = GroupSensor(locator)

    slice_, scope = reader.read([f"{tree.groups}/{SCOPE}"], 0.0)

    assert (f"{tree.groups}/user.slice/user-1000.slice", 12 * GIB) == (
        slice_.path,
        slice_.limit_bytes,
    )
    assert (2, 8 * GIB, 7 * GIB, GIB, 512 << 20) == (
        scope.version,
        scope.limit_bytes,
        scope.high_bytes,
        scope.swap_limit_bytes,
        scope.swap_usage_bytes,
    )
    assert 1 == scope.oom_kills
    assert 6675234816 - 786432000 - 262144000 == scope.unreclaimable_bytes
    reader.close()


def test_limits_of_swap_alone_are_read(tree):
    """They bound how much the groups below can swap out."""
    tree.use_v2()
    app, scope = f"{tree.groups}/{os.path.dirname(SCOPE)}", f"{tree.groups}/{SCOPE}"
    tree.groups.joinpath(os.path.dirname(SCOPE), "memory.swap.max").write_text(f"{GIB}\n")
    reader = GroupSensor(Layout.discover(V2, str(tree.groups)))

    found = {group.path: group for group in reader.read([scope], 0.0)}

    assert (GIB, None, None) == (
        found[app].swap_limit_bytes,
        found[app].limit_bytes,
        found[app].high_bytes,
    )
    assert GIB == found[scope].swap_limit_bytes
    reader.close()


@pytest.mark.parametrize(
    ("used", "pressure", "expected"),
    [
        (7 * GIB, b"some avg10=99.00 avg60=0 avg300=0 total=1\nfull avg10=81.50 total=1\n", 81.5),
        (7 * GIB, None, None),  # a kernel without PSI
        (7 * GIB, b"", None),
        # far below memory.high
        (6 * GIB, b"some avg10=99.00 total=1\nfull avg10=81.50 total=1\n", None),
    ],
)
def test_pressure_of_a_group_is_read_near_its_memory_high(tree, used, pressure, expected):
    tree.use_v2()
    scope = tree.groups / SCOPE
    (scope / "memory.current").write_text(f"{used}\n")
    (scope / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    (scope / "memory.pressure").unlink(missing_ok=True)
    if pressure is not None:
        (scope / "memory.pressure").write_bytes(pressure)
    reader = GroupSensor(Layout.discover(V2, str(tree.groups)))

    group = reader.read([str(scope)], 0.0)[-1]

    assert expected == group.stalled_percent
    reader.close()


def test_group_that_is_removed_is_left_out(tree):
    """There is no error, and the others are still read."""
    locator = Layout.discover(V1, str(tree.groups))
    reader = GroupSensor(locator)
    leaf = f"{tree.groups}/memory/jupyter/train"
    reader.read([leaf], 0.0)
    shutil.rmtree(leaf)

    found = reader.read([f"{tree.groups}/memory/jupyter"], 100.0)

    assert [f"{tree.groups}/memory/jupyter"] == [group.path for group in found]
    reader.close()


def test_group_without_swap_accounting_has_unknown_swap(tree):
    """The values are None, not zero."""
    tree.use_v2()
    os.unlink(f"{tree.groups}/{SCOPE}/memory.swap.current")
    os.unlink(f"{tree.groups}/{SCOPE}/memory.swap.max")
    reader = GroupSensor(Layout.discover(V2, str(tree.groups)))

    group = reader.read([f"{tree.groups}/{SCOPE}"], 0.0)[-1]

    assert (None, None) == (group.swap_usage_bytes, group.swap_limit_bytes)
    reader.close()


@pytest.mark.parametrize(
    ("membership", "expected"),
    [
        (b"4:memory:/jupyter/train\n0::/\n", "memory/jupyter/train"),
        (b"4:memory:/gone\n0::/\n", None),
        (b"4:memory:/\n", "memory"),
        (b"0::/\n", None),  # this unified tree has no memory controller
        (b"", None),
    ],
)
def test_group_of_a_process_is_found_in_a_hybrid_layout(tree, membership, expected):
    """The memory controller is in v1 although cgroup2 is mounted too."""
    mounts = V1 + b"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    locator = Layout.discover(mounts, str(tree.groups))

    found = locator.locate(membership)

    assert (f"{tree.groups}/{expected}" if expected else None) == found


def test_layout_is_told_without_mountinfo(tree):
    """The folders themselves show it."""
    assert [1] == [found.version for found in Layout.discover(b"", str(tree.groups)).hierarchies]
    tree.use_v2()
    assert [2] == [found.version for found in Layout.discover(b"", str(tree.groups)).hierarchies]


def test_ancestors_end_at_the_mount(tree):
    """Nearest first; a folder outside the mount has none."""
    locator = Layout.discover(V1, str(tree.groups))

    chain = locator.ancestors(f"{tree.groups}/memory/jupyter/train")

    assert ["train", "jupyter", "memory"] == [os.path.basename(path) for path, _ in chain]
    assert [] == locator.ancestors("/elsewhere")


@pytest.mark.cgroup
def test_real_group_fills_as_its_process_does():
    """64 MiB that a process of the group writes are 64 MiB of unreclaimable memory."""
    try:
        group = create(f"watchdog-test-{os.getpid()}", 256 << 20)
    except ActionError as error:
        pytest.skip(str(error))
    if group.path is None:
        pytest.skip("a systemd scope has no folder before its command runs")
    with open("/proc/self/mountinfo", "rb") as file:
        reader = GroupSensor(Layout.discover(file.read(), "/sys/fs/cgroup"))
    code = "import sys; b = bytearray(b'x' * (64 << 20)); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        group.command([sys.executable, "-c", code]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        process.stdout.readline()
        full = reader.read([group.path], 0.0)[-1]
        process.communicate()
        path = group.path
        group.close()
        gone = reader.read([path], 100.0)
    finally:
        process.kill()
        process.communicate()
        group.close()
        reader.close()

    assert (256 << 20, path) == (full.limit_bytes, full.path)
    assert 64 << 20 <= full.unreclaimable_bytes < 96 << 20
    assert path not in [found.path for found in gone]


def test_reading_groups_again_costs_no_descriptors(tree):
    """Each file is opened once, and closed at the end."""
    before = len(os.listdir("/proc/self/fd"))
    reader = GroupSensor(Layout.discover(V1, str(tree.groups)))
    leaf = f"{tree.groups}/memory/jupyter/train"
    reader.read([leaf], 0.0)
    open_now = len(os.listdir("/proc/self/fd"))

    for second in range(1, 30):
        reader.read([leaf], float(second))

    assert open_now == len(os.listdir("/proc/self/fd"))
    reader.close()
    assert before == len(os.listdir("/proc/self/fd"))
