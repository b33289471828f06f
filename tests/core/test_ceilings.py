"""The resources that can run out, derived from one sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import records

from watchdog_app.core.model.machine import CgroupMemory, Gauge, Snapshot
from watchdog_app.core.model.readings import group_name, readings
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.tasks import group_processes
from watchdog_app.guard.cgroup import guard_group_name

GIB = 1 << 30
ROOT = "/sys/fs/cgroup"


def size(gib):
    """In bytes; None stays None."""
    return None if gib is None else int(gib * GIB)


def host(*, total=16, available=10, swap=0, swap_free=0, shm=None, shm_used=None):
    """A machine; sizes in GiB."""
    return records.host(
        total * GIB, available * GIB, swap_total_bytes=int(swap * GIB),
        swap_free_bytes=int(swap_free * GIB), shm_used_bytes=size(shm_used),
        shm_limit_bytes=size(shm),
    )  # fmt: skip


def cgroup(
    path, usage, limit, *, files=0.0, high=None, swap=None, swap_limit=None, stalled=None, version=2
):
    """A group; sizes in GiB."""
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
        oom_kills=None,
        stalled_percent=stalled,
    )


def process(pid, *, group_path=None, ppid=0, rlimit=None, vsize=None):
    """A process and its info."""
    sample = records.process(pid, ppid, start_time=pid, state="S", vsize_bytes=size(vsize))
    return sample, records.info(
        sample, name=f"p{pid}.py", cgroup=None if group_path is None else f"{ROOT}/{group_path}",
        rlimit_as_bytes=size(rlimit),
    )  # fmt: skip


def measure(machine, processes=(), cgroups=(), gauges=()):
    """Readings of a simulated machine."""
    samples = tuple(found for found, _ in processes)
    infos = {found.key: found for _, found in processes}
    snapshot = Snapshot(0.0, 0.0, machine, samples, tuple(cgroups), tuple(gauges), (), infos)
    return readings(snapshot, group_processes(samples, infos))


def disk(path, used, limit):
    """The disk sensor's gauge for the rescue folder."""
    return Gauge("disk", path, f"disk for rescues in {path}", used, limit)


def of_kind(found, kind):
    """The readings of one kind."""
    return [reading for reading in found if reading.key.kind is kind]


def pids(reading):
    """The pids that the resource can hit."""
    return [key.pid for key in reading.tasks]


def test_ram_without_swap_is_lethal():
    """RAM in use is the total less what is available."""
    (ram,) = measure(host(total=16, available=10), [process(1), process(2)])

    assert (ResourceKind.RAM, "", 6 * GIB, 16 * GIB, "bytes", True) == (
        ram.key.kind,
        ram.key.subject,
        ram.used,
        ram.limit,
        ram.unit,
        ram.fatal,
    )
    assert [1, 2] == pids(ram)


def test_with_swap_ram_slows_down_and_both_together_kill():
    """RAM plus swap is a separate resource."""
    ram, both = measure(host(total=16, available=1, swap=8, swap_free=5))

    assert (15 * GIB, False) == (ram.used, ram.fatal)
    assert (ResourceKind.RAM_SWAP, 18 * GIB, 24 * GIB, True) == (
        both.key.kind,
        both.used,
        both.limit,
        both.fatal,
    )


def test_more_available_than_there_is_uses_nothing():
    """The kernel reads its counters at different moments."""
    assert 0 == measure(host(total=16, available=17))[0].used


def test_group_counts_what_cannot_be_given_back():
    """The kernel drops file pages before it kills a process."""
    found = measure(
        host(), [process(1, group_path="train")], [cgroup("train", 5.0, 8.0, files=2.0)]
    )
    (limit,) = of_kind(found, ResourceKind.CGROUP)

    assert (f"{ROOT}/train", 3 * GIB, 8 * GIB, True, None) == (
        limit.key.subject,
        limit.used,
        limit.limit,
        limit.fatal,
        limit.note,
    )
    assert "memory limit of the group train" == limit.label


def test_every_limited_group_above_a_task_is_a_ceiling_the_tightest_last():
    """
    The tightest group has the least free memory, not the lowest limit: the outer one can be nearly
    full.
    """
    found = measure(
        host(),
        [process(1, group_path="outer/inner"), process(2, group_path="outer/other")],
        [cgroup("outer", 9.5, 10.0), cgroup("outer/inner", 1.0, 4.0)],
    )
    inner, outer = of_kind(found, ResourceKind.CGROUP)

    assert (f"{ROOT}/outer/inner", [1], None) == (inner.key.subject, pids(inner), inner.note)
    assert (f"{ROOT}/outer", [1, 2]) == (outer.key.subject, pids(outer))
    assert outer.note is None


@pytest.mark.parametrize("name", [guard_group_name(4711, 99), "watchdog-guard-4711-99.scope"])
def test_guards_are_told_apart_by_the_program_that_was_started_in_them(name):
    """Without the pid, two guards would have the same label. A guard does not kill."""
    found = measure(host(), [process(4711, group_path=name)], [cgroup(name, 3.0, 4.0)])
    (limit,) = of_kind(found, ResourceKind.GUARD)

    assert "guard limit of pid 4711" == limit.label
    assert not limit.fatal


def test_worker_in_another_group_counts_for_its_task():
    """A launcher can put its children into groups."""
    found = measure(
        host(),
        [process(1, group_path="a"), process(2, ppid=1, group_path="b")],
        [cgroup("a", 1.0, 8.0), cgroup("b", 3.0, 4.0)],
    )

    assert [(f"{ROOT}/a", [1]), (f"{ROOT}/b", [1])] == [
        (limit.key.subject, pids(limit)) for limit in of_kind(found, ResourceKind.CGROUP)
    ]


@pytest.mark.parametrize(
    ("folder", "limit"), [("training", 4), ("train", 16), ("train", 17), ("train", 64)]
)
def test_a_group_of_others_and_a_limit_above_the_machine_are_no_ceiling(folder, limit):
    """`train` does not contain `training`; RAM fills before a limit above it."""
    found = measure(host(total=16), [process(1, group_path=folder)], [cgroup("train", 3.0, limit)])

    assert [] == of_kind(found, ResourceKind.CGROUP)


@pytest.mark.parametrize(
    ("swap", "swap_limit", "swap_free", "expected_used", "expected_limit"),
    [
        (None, None, 0, 3, 8),  # no swap on the machine
        (1, 2, 6, 4, 10),  # the group's own swap limit
        (1, 2, 0.5, 4, 9.5),  # the machine has less swap left than that
        (1, None, 6, 4, 15),  # all the swap that the machine has left
        (0, 0, 6, 3, 8),  # this group may not swap
    ],
)
def test_swap_of_a_group_counts(swap, swap_limit, swap_free, expected_used, expected_limit):
    """Swap counts in used and in limit; swap that other programs use does not count."""
    found = measure(
        host(total=16, swap=8, swap_free=swap_free),
        [process(1, group_path="g")],
        [cgroup("g", 3.0, 8.0, swap=swap, swap_limit=swap_limit)],
    )
    (limit,) = of_kind(found, ResourceKind.CGROUP)

    assert (expected_used * GIB, expected_limit * GIB) == (limit.used, limit.limit)
    assert ("counts swap" in (limit.note or "")) is (expected_limit != 8)


def test_memory_high_below_the_limit_is_the_ceiling_where_there_is_no_swap():
    """A group that cannot swap stalls above memory.high, long before memory.max kills."""
    found = measure(host(), [process(1, group_path="g")], [cgroup("g", 3.0, 8.0, high=6.0)])
    (limit,) = of_kind(found, ResourceKind.CGROUP)

    assert (6 * GIB, True) == (limit.limit, limit.fatal)
    assert "stalls above it (memory.high), killed at 8.00 GiB" == limit.note


@pytest.mark.parametrize(
    ("swap", "swap_limit", "swap_free", "expected"),
    [
        (0.0, 2.0, 4.0, 8.0),  # memory.swap.max of the group
        (0.5, 2.0, 4.0, 8.0),  # the group uses some of it already
        (0.5, None, 4.0, 10.5),  # all the swap that the machine has left
        (0.5, 2.0, 0.25, 6.75),  # ... which is less than the group's limit
        (1.5, None, 0.0, 7.5),  # swap is full
        (2.0, 2.0, 4.0, 8.0),  # the group has used its share of swap
        (2.0, 1.0, 4.0, 8.0),  # ... and its swap limit was lowered since
        (0.0, 0.0, 4.0, 6.0),  # the group may not swap
    ],
)
def test_a_group_stands_still_at_memory_high_and_what_can_be_in_swap(
    swap, swap_limit, swap_free, expected
):
    found = measure(
        host(swap=4.0, swap_free=swap_free),
        [process(1, group_path="g")],
        [cgroup("g", 3, 8, high=6, swap=swap, swap_limit=swap_limit)],
    )
    (limit,) = of_kind(found, ResourceKind.CGROUP)

    assert (expected * GIB, (3.0 + swap) * GIB, True) == (limit.limit, limit.used, limit.fatal)
    assert "stalls above it (memory.high)" in str(limit.note)


ONE, TWO = {1: "a/b"}, {1: "a/b", 2: "a/c"}
NO_SWAP_BELOW = cgroup("a/b", 3.0, None, swap=0.0, swap_limit=0.0)


@pytest.mark.parametrize(
    ("swap", "swap_free", "members", "groups", "expected"),
    [
        pytest.param(
            4, 4, {1: "g"}, [cgroup("g", 3.0, 6.0, high=6.0, swap=0.0)],
            [("g", 3, 10, True, False, "counts swap")],
            id="memory.high is not below memory.max",
        ),
        pytest.param(
            2, 1, {1: "g"}, [cgroup("g", 3.0, None, high=6.0, swap=0.5)],
            [("g", 3.5, 7.5, False, True, "counts swap, stalls above it (memory.high)")],
            id="memory.high alone kills nobody",
        ),
        pytest.param(
            8, 8, ONE,
            [cgroup("a", 3.0, None, swap=0.75, swap_limit=1.0),
             cgroup("a/b", 3.0, 8.0, high=6.0, swap=0.5)],
            [("a/b", 3.5, 6.75, True, True,
              "counts swap, stalls above it (memory.high), killed at 8.75 GiB")],
            id="a limit of swap of a slice above, which has none of memory",
        ),
        pytest.param(
            2, 1, ONE,
            [cgroup("a", 4.0, None, high=5.0, swap=1.0), cgroup("a/b", 3.0, 12.0, swap=0.5)],
            [("a", 5, 7, False, True, "counts swap, stalls above it (memory.high)"),
             ("a/b", 3.5, 13.5, True, False, "counts swap")],
            id="memory.high of a slice, and what the slice can swap",
        ),
        pytest.param(
            8, 8, ONE, [cgroup("a", 3.0, None, high=5.0, swap=0.0), NO_SWAP_BELOW],
            [("a", 3, 5, False, True, "stalls above it (memory.high)")],
            id="a slice whose groups below may not swap",
        ),
        pytest.param(
            8, 8, ONE, [cgroup("a", 3.5, None, high=5.0, swap=0.0), NO_SWAP_BELOW],
            [("a", 3.5, 5.5, False, True,
              "counts swap, stalls above it (memory.high)")],
            id="the same with half a GiB that can be swapped out",
        ),
        pytest.param(
            8, 8, TWO, [cgroup("a", 3.0, None, high=5.0, swap=0.0), NO_SWAP_BELOW],
            [("a", 3, 13, False, True,
              "counts swap, stalls above it (memory.high)")],
            id="the same where one of its tasks may swap",
        ),
    ],
)  # fmt: skip
def test_memory_of_a_group_ends_where_it_stalls_or_is_killed(
    swap, swap_free, members, groups, expected
):
    """The limits of the group, and of the groups above and below it, decide for memory and swap."""
    processes = [process(pid, group_path=path) for pid, path in members.items()]

    found = measure(host(swap=swap, swap_free=swap_free), processes, groups)

    assert expected == [
        (
            one.key.subject.removeprefix(f"{ROOT}/"), one.used / GIB, one.limit / GIB, one.fatal,
            one.throttles, one.note,
        )
        for one in of_kind(found, ResourceKind.CGROUP)
    ]  # fmt: skip


@pytest.mark.parametrize(("percent", "expected"), [(None, False), (10.0, False), (70.0, True)])
def test_a_group_stands_still_where_its_pressure_says_so(percent, expected):
    groups = [cgroup("g", 5.9, 8.0, high=6.0, stalled=percent)]
    (limit,) = of_kind(measure(host(), [process(1, group_path="g")], groups), ResourceKind.CGROUP)

    assert expected is limit.stalled


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
    """A user does not recognise sixty-four hexadecimal digits."""
    assert expected == group_name(path)


def test_address_space_of_each_process_with_a_limit():
    """RLIMIT_AS applies to each process separately."""
    found = measure(
        host(),
        [process(1, rlimit=8, vsize=5), process(2, ppid=1, rlimit=8, vsize=3), process(3, vsize=9)],
    )

    limits = of_kind(found, ResourceKind.RLIMIT_AS)

    assert [("1", 5 * GIB, 8 * GIB, [1]), ("2", 3 * GIB, 8 * GIB, [1])] == [
        (limit.key.subject, limit.used, limit.limit, pids(limit)) for limit in limits
    ]
    assert "address space of p1.py (worker 2)" == limits[1].label


def test_shared_memory_is_a_ceiling_where_it_has_a_limit():
    """A write to a full /dev/shm raises SIGBUS."""
    (shm,) = of_kind(measure(host(shm=8, shm_used=2), [process(1)]), ResourceKind.SHM)

    assert (2 * GIB, 8 * GIB, True, [1]) == (shm.used, shm.limit, shm.fatal, pids(shm))
    assert [] == of_kind(measure(host()), ResourceKind.SHM)


def test_disk_of_the_rescues_is_a_ceiling_that_does_not_kill():
    """Space reserved for root does not count as free."""
    found = measure(host(), gauges=[disk("/data/rescues", 8 * GIB, 10 * GIB), disk("/x", 0, 0)])
    (reading,) = of_kind(found, ResourceKind.DISK)

    assert ("/data/rescues", 8 * GIB, 10 * GIB, False) == (
        reading.key.subject,
        reading.used,
        reading.limit,
        reading.fatal,
    )


def test_a_gauge_of_any_kind_becomes_a_reading_as_it_is():
    """A new kind of resource needs only a table row and a sensor."""
    gauges = [Gauge(kind, "x", f"a {kind}", 3.0, 4.0) for kind in ResourceKind]

    found = measure(host(), [process(1)], gauges=gauges)[-len(gauges) :]

    assert gauges == [
        Gauge(each.key.kind, each.key.subject, each.label, each.used, each.limit) for each in found
    ]


def zram(machine, *, total, used, ram):
    """A machine with swap on zram; sizes in GiB."""
    return replace(
        machine,
        zram_total_bytes=int(total * GIB),
        zram_used_bytes=int(used * GIB),
        zram_ram_bytes=int(ram * GIB),
    )


def room(machine):
    """GiB left of RAM and swap together."""
    (both,) = of_kind(measure(machine, [process(1)]), ResourceKind.RAM_SWAP)
    return (both.limit - both.used) / GIB


def test_swap_on_zram_is_room_only_as_far_as_compression_gains():
    """Pages in zram occupy RAM: they do not count twice, and free zram alone is not memory."""
    empty = zram(host(total=16, available=4, swap=8, swap_free=8), total=8, used=0, ram=0)
    dense = zram(host(total=16, available=1, swap=8, swap_free=4), total=8, used=4, ram=4.1)
    half = zram(host(total=16, available=1, swap=8, swap_free=4), total=8, used=4, ram=2)
    mixed = zram(host(total=16, available=1, swap=12, swap_free=8), total=8, used=4, ram=2)

    assert room(empty) == pytest.approx(4)
    assert room(dense) == pytest.approx(1)
    assert room(half) == pytest.approx(1 + 4 / 2)
    assert room(mixed) == pytest.approx(1 + 4 / 2 + 4)
    assert room(host(total=16, available=1, swap=8, swap_free=4)) == pytest.approx(5)


@pytest.mark.parametrize(
    ("machine", "stalled"),
    [
        (host(total=16, available=0), [True]),
        (host(total=16, available=0.1), [True]),
        (host(total=16, available=0.5), [False]),
        (host(total=16, available=0, swap=8, swap_free=4), [True, False]),
        (host(total=16, available=0, swap=8, swap_free=0), [True, True]),
        (
            zram(host(total=16, available=0, swap=8, swap_free=4), total=8, used=4, ram=4),
            [True, True],
        ),
    ],
)
def test_a_machine_with_next_to_nothing_left_stands_still(machine, stalled):
    """Free zram does not matter; while swap is left, only RAM has run out."""
    found = measure(machine, [process(1)])

    assert stalled == [
        one.stalled for one in found if one.key.kind in (ResourceKind.RAM, ResourceKind.RAM_SWAP)
    ]
