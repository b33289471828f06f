"""What can run out."""

from __future__ import annotations

import pytest

from watchdog_app.airbag.groups import name_of
from watchdog_app.core.ceilings import group_name, readings
from watchdog_app.core.outlook import CeilingKind
from watchdog_app.core.records import (
    CgroupMemory,
    DiskSpace,
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
    TaskKind,
)
from watchdog_app.core.tasks import group

GIB = 1 << 30
ROOT = "/sys/fs/cgroup"


def host(*, total=16, available=10, swap=0, swap_free=0, shm=None, shm_used=None):
    """A machine; sizes in GiB."""
    return HostMemory(
        total_bytes=int(total * GIB),
        available_bytes=int(available * GIB),
        swap_total_bytes=int(swap * GIB),
        swap_free_bytes=int(swap_free * GIB),
        swap_in_bytes=None,
        swap_out_bytes=None,
        shm_used_bytes=None if shm_used is None else int(shm_used * GIB),
        shm_limit_bytes=None if shm is None else int(shm * GIB),
        pressure=None,
    )


def cgroup(path, usage, limit, *, files=0.0, high=None, swap=None, swap_limit=None, version=2):
    """A group; sizes in GiB."""

    def size(value):
        return None if value is None else int(value * GIB)

    return CgroupMemory(
        path=f"{ROOT}/{path}" if path else ROOT,
        version=version,
        usage_bytes=int(usage * GIB),
        inactive_file_bytes=int(files * GIB),
        active_file_bytes=0,
        limit_bytes=size(limit),
        high_bytes=size(high),
        swap_usage_bytes=size(swap),
        swap_limit_bytes=size(swap_limit),
        oom_events=None,
        oom_kills=None,
    )


def process(pid, *, group_path=None, ppid=0, rlimit=None, vsize=None):
    """A process and its info."""
    key = ProcessKey(pid, pid)
    return (
        ProcessSample(key, ppid, "S", GIB, 0, 0, None if vsize is None else int(vsize * GIB), 0.0),
        ProcessInfo(
            key=key,
            ppid=ppid,
            uid=1,
            user=None,
            exe=None,
            argv=(),
            cwd=None,
            kind=TaskKind.SCRIPT,
            name=f"p{pid}.py",
            cgroup=None if group_path is None else f"{ROOT}/{group_path}",
            rlimit_as_bytes=None if rlimit is None else int(rlimit * GIB),
        ),
    )


def look(machine, processes=(), cgroups=(), disks=()):
    """Readings of a made-up machine."""
    samples = tuple(found for found, _ in processes)
    infos = {found.key: found for _, found in processes}
    snapshot = Snapshot(0.0, 0.0, machine, samples, tuple(cgroups), tuple(disks), (), infos)
    return readings(snapshot, group(samples, infos))


def of_kind(found, kind):
    """The readings of one kind."""
    return [reading for reading in found if reading.key.kind is kind]


def pids(reading):
    """Whom it can hit."""
    return [key.pid for key in reading.tasks]


def test_ram_without_swap_is_lethal():
    """Used is what is not available."""
    (ram,) = look(host(total=16, available=10), [process(1), process(2)])

    assert (CeilingKind.RAM, "", 6 * GIB, 16 * GIB, "bytes", True) == (
        ram.key.kind,
        ram.key.subject,
        ram.used,
        ram.limit,
        ram.unit,
        ram.lethal,
    )
    assert [1, 2] == pids(ram)


def test_with_swap_ram_slows_down_and_both_together_kill():
    """RAM and swap is a ceiling of its own."""
    ram, both = look(host(total=16, available=1, swap=8, swap_free=5))

    assert (15 * GIB, False) == (ram.used, ram.lethal)
    assert (CeilingKind.RAM_SWAP, 18 * GIB, 24 * GIB, True) == (
        both.key.kind,
        both.used,
        both.limit,
        both.lethal,
    )


def test_more_available_than_there_is_uses_nothing():
    """Counters of different moments."""
    assert 0 == look(host(total=16, available=17))[0].used


def test_group_counts_what_cannot_be_given_back():
    """File pages are dropped before anybody is killed."""
    found = look(host(), [process(1, group_path="train")], [cgroup("train", 5.0, 8.0, files=2.0)])
    (limit,) = of_kind(found, CeilingKind.CGROUP)

    assert (f"{ROOT}/train", 3 * GIB, 8 * GIB, True, None) == (
        limit.key.subject,
        limit.used,
        limit.limit,
        limit.lethal,
        limit.note,
    )
    assert "memory limit of the group train" == limit.label


def test_every_limited_group_above_a_task_is_a_ceiling_the_tightest_last():
    """By headroom and not by limit: the outer one can be nearly full."""
    found = look(
        host(),
        [process(1, group_path="outer/inner"), process(2, group_path="outer/other")],
        [cgroup("outer", 9.5, 10.0), cgroup("outer/inner", 1.0, 4.0)],
    )
    inner, outer = of_kind(found, CeilingKind.CGROUP)

    assert (f"{ROOT}/outer/inner", [1], None) == (inner.key.subject, pids(inner), inner.note)
    assert (f"{ROOT}/outer", [1, 2]) == (outer.key.subject, pids(outer))
    assert "1 group up" in outer.note


def test_the_same_groups_are_ceilings_whichever_is_the_tightest():
    """Which one that is changes with what a neighbour uses; a forecast needs its history."""

    def ceilings(outer_usage):
        found = look(
            host(),
            [process(1, group_path="outer/inner"), process(2, group_path="outer")],
            [cgroup("outer", outer_usage, 10.0), cgroup("outer/inner", 3.0, 4.0)],
        )
        return {limit.key.subject: pids(limit) for limit in of_kind(found, CeilingKind.CGROUP)}

    expected = {f"{ROOT}/outer": [1, 2], f"{ROOT}/outer/inner": [1]}
    assert [expected, expected] == [ceilings(5.0), ceilings(9.8)]


@pytest.mark.parametrize("name", [name_of(4711, 99), "watchdog-bag-4711-99.scope"])
def test_airbags_are_told_apart_by_the_program_that_was_started_in_them(name):
    """Two at once would else be two rows of the same words. Nobody is killed there."""
    found = look(host(), [process(4711, group_path=name)], [cgroup(name, 3.0, 4.0)])
    (limit,) = of_kind(found, CeilingKind.CGROUP)

    assert "airbag limit of pid 4711" == limit.label
    assert not limit.lethal


def test_group_with_a_similar_name_is_not_above():
    """`train` does not hold `training`."""
    found = look(host(), [process(1, group_path="training")], [cgroup("train", 3.0, 4.0)])

    assert [] == of_kind(found, CeilingKind.CGROUP)


def test_worker_in_another_group_counts_for_its_task():
    """A launcher that puts its children into groups."""
    found = look(
        host(),
        [process(1, group_path="a"), process(2, ppid=1, group_path="b")],
        [cgroup("a", 1.0, 8.0), cgroup("b", 3.0, 4.0)],
    )

    assert [(f"{ROOT}/a", [1]), (f"{ROOT}/b", [1])] == [
        (limit.key.subject, pids(limit)) for limit in of_kind(found, CeilingKind.CGROUP)
    ]


@pytest.mark.parametrize("limit", [16, 17, 64])
def test_limit_above_the_machine_is_no_ceiling(limit):
    """RAM ends first."""
    found = look(host(total=16), [process(1, group_path="g")], [cgroup("g", 3.0, limit)])

    assert [] == of_kind(found, CeilingKind.CGROUP)


@pytest.mark.parametrize(
    ("swap", "swap_limit", "swap_free", "expected_used", "expected_limit"),
    [
        (None, None, 0, 3, 8),  # no swap anywhere
        (1, 2, 6, 4, 10),  # its own limit
        (1, 2, 0.5, 4, 9.5),  # the machine has less left than that
        (1, None, 6, 4, 15),  # as much as the machine has left
        (0, 0, 6, 3, 8),  # none for this group
    ],
)
def test_swap_of_a_group_counts(swap, swap_limit, swap_free, expected_used, expected_limit):
    """Used and limit grow by it; what others took of the machine's swap is gone."""
    found = look(
        host(total=16, swap=8, swap_free=swap_free),
        [process(1, group_path="g")],
        [cgroup("g", 3.0, 8.0, swap=swap, swap_limit=swap_limit)],
    )
    (limit,) = of_kind(found, CeilingKind.CGROUP)

    assert (expected_used * GIB, expected_limit * GIB) == (limit.used, limit.limit)
    assert ("counts swap" in (limit.note or "")) is (expected_limit != 8)


def test_memory_high_below_the_limit_is_the_ceiling_where_there_is_no_swap():
    """Above it a group with nothing to swap stands still, long before the limit kills."""
    found = look(host(), [process(1, group_path="g")], [cgroup("g", 3.0, 8.0, high=6.0)])
    (limit,) = of_kind(found, CeilingKind.CGROUP)

    assert (6 * GIB, True) == (limit.limit, limit.lethal)
    assert "stands still above it (memory.high), killed at 8.00 GiB" == limit.note


def test_memory_high_below_the_limit_is_in_the_note_where_there_is_swap():
    """It slows down, and what is in the way goes to swap; the limit counts."""
    found = look(
        host(swap=4.0, swap_free=4.0),
        [process(1, group_path="g")],
        [cgroup("g", 3.0, 8.0, high=6.0, swap=0.0, swap_limit=2.0)],
    )
    (limit,) = of_kind(found, CeilingKind.CGROUP)

    assert 10 * GIB == limit.limit
    assert "slowed down above 6.00 GiB (memory.high)" in str(limit.note)


def test_group_with_memory_high_alone_slows_down_and_does_not_kill():
    """A ceiling that is not lethal."""
    found = look(host(), [process(1, group_path="g")], [cgroup("g", 3.0, None, high=6.0)])
    (limit,) = of_kind(found, CeilingKind.CGROUP)

    assert (3 * GIB, 6 * GIB, False, [1]) == (limit.used, limit.limit, limit.lethal, pids(limit))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"{ROOT}/memory/jupyter/train", "the group train"),
        (f"{ROOT}/user.slice/session-2.scope", "the group session-2.scope"),
        (f"{ROOT}/memory/docker/{'3f2a1b9c8d7e' + 'a' * 52}", "the container 3f2a1b9c8d7e"),
        (f"{ROOT}/docker-{'3f2a1b9c8d7e' + 'b' * 52}.scope", "the container 3f2a1b9c8d7e"),
        (f"{ROOT}/cri-containerd-{'3f2a1b9c8d7e' + '0' * 52}.scope", "the container 3f2a1b9c8d7e"),
        (
            f"{ROOT}/kubepods.slice/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice",
            "the pod",
        ),
        (ROOT, "this container"),
        (f"{ROOT}/memory", "this container"),
    ],
)
def test_groups_are_named_in_human_words(path, expected):
    """Nobody knows sixty-four hexadecimal digits."""
    assert expected == group_name(path)


def test_address_space_of_each_process_with_a_limit():
    """RLIMIT_AS is a process's own."""
    found = look(
        host(),
        [process(1, rlimit=8, vsize=5), process(2, ppid=1, rlimit=8, vsize=3), process(3, vsize=9)],
    )

    limits = of_kind(found, CeilingKind.RLIMIT_AS)

    assert [("1", 5 * GIB, 8 * GIB, [1]), ("2", 3 * GIB, 8 * GIB, [1])] == [
        (limit.key.subject, limit.used, limit.limit, pids(limit)) for limit in limits
    ]
    assert "address space of p1.py (worker 2)" == limits[1].label


def test_shared_memory_is_a_ceiling_where_it_has_a_limit():
    """A write to a full one is a bus error."""
    (shm,) = of_kind(look(host(shm=8, shm_used=2), [process(1)]), CeilingKind.SHM)

    assert (2 * GIB, 8 * GIB, True, [1]) == (shm.used, shm.limit, shm.lethal, pids(shm))
    assert [] == of_kind(look(host()), CeilingKind.SHM)


def test_disk_of_the_rescues_is_a_ceiling_that_does_not_kill():
    """What only root may use is not free."""
    found = look(
        host(), disks=[DiskSpace("/data/rescues", 2 * GIB, 10 * GIB), DiskSpace("/x", 0, 0)]
    )
    (disk,) = of_kind(found, CeilingKind.DISK)

    assert ("/data/rescues", 8 * GIB, 10 * GIB, False) == (
        disk.key.subject,
        disk.used,
        disk.limit,
        disk.lethal,
    )


def test_every_ceiling_has_a_key_of_its_own():
    """Series are kept by it."""
    found = look(
        host(swap=8, swap_free=8, shm=8, shm_used=1),
        [
            process(1, group_path="a/b", rlimit=8, vsize=1),
            process(2, group_path="a", rlimit=8, vsize=1),
        ],
        [cgroup("a", 1.0, 8.0, high=7.0), cgroup("a/b", 1.0, 4.0, high=3.0)],
        [DiskSpace("/x", 1, 2), DiskSpace("/y", 1, 2)],
    )

    keys = [reading.key for reading in found]

    assert len(set(keys)) == len(keys)
