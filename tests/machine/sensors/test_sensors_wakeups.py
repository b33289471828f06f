"""What wakes the loop between two ticks."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from watchdog_app.airbag.memory_group import MemoryGroup, open_group
from watchdog_app.base.errors import ActionError
from watchdog_app.base.linux.cgroups import Layout
from watchdog_app.core.model.machine import CgroupMemory
from watchdog_app.machine.sensors.alarms import Wakeup
from watchdog_app.machine.sensors.groups import GroupSensor
from watchdog_app.machine.sensors.wakeups import Wakeups

EATER = """
import sys
kept = []
for line in sys.stdin:
    kept.append(b"x" * (int(line) << 20))
    print(flush=True)
"""


@pytest.fixture
def group():
    """A real group of 128 MiB."""
    try:
        found = open_group(f"watchdog-wakeups-{os.getpid()}", 128 << 20)
    except ActionError as error:
        pytest.skip(str(error))
    if found.path is None:
        pytest.skip("a systemd scope has no folder before its command runs")
    yield found
    found.close()


def read(group: MemoryGroup) -> CgroupMemory:
    """The group now."""
    with open("/proc/self/mountinfo", "rb") as file:
        reader = GroupSensor(Layout.discover(file.read(), "/sys/fs/cgroup"))
    found = reader.read([group.path], 0.0)[-1]
    reader.close()
    return found


def woken(wakeups: Wakeups, seconds: float) -> Wakeup | None:
    """The first true alarm within so many seconds, through a plain selector."""
    with selectors.DefaultSelector() as selector:
        for fd, mask in wakeups.fds():
            selector.register(fd, mask)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                found = wakeups.fired(key.fd)
                if found is not None:
                    return found
    return None


@pytest.mark.cgroup
def test_group_that_nears_its_limit_wakes_once_a_tick(group: MemoryGroup):
    """80 % of the limit is crossed between two looks; silent then until the next update."""
    wakeups = Wakeups()
    wakeups.update([read(group)])
    wakeups.settle(5.0)
    process = subprocess.Popen(
        group.command([sys.executable, "-c", EATER]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        early = woken(wakeups, 0.1)
        process.stdin.write(b"105\n")
        process.stdin.flush()
        process.stdout.readline()
        first = woken(wakeups, 5.0)
        again = woken(wakeups, 0.1)
    finally:
        process.kill()
        process.communicate()
        wakeups.close()

    assert early is None or early.source == "pressure"
    assert first is not None
    assert group.path == first.path
    assert again is None or again.source == "pressure"


@pytest.mark.cgroup
def test_death_in_a_group_wakes(group: MemoryGroup):
    """The kernel kills at the limit; the next look comes at once."""
    wakeups = Wakeups()
    process = subprocess.Popen(
        group.command([sys.executable, "-c", EATER]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    seen = set()
    try:
        wakeups.update([read(group)])
        wakeups.settle(5.0)
        process.stdin.write(b"200\n")
        process.stdin.flush()
        end = time.monotonic() + 10.0
        while not {"oom", "events"} & seen and time.monotonic() < end:
            found = woken(wakeups, 1.0)
            seen.add(found.source if found else None)
            wakeups.update([read(group)])
        status = process.wait(10)
    finally:
        process.kill()
        process.communicate()
        wakeups.close()

    assert -9 == status
    assert {"oom", "events"} & seen


@pytest.mark.cgroup
def test_group_that_is_removed_wakes_nobody(group: MemoryGroup):
    """The kernel signals its descriptors once more; that is no news of memory."""
    wakeups = Wakeups()
    wakeups.update([read(group)])
    wakeups.settle(5.0)
    group.close()

    found = woken(wakeups, 0.3)
    wakeups.update([])
    wakeups.settle(5.0)
    after = woken(wakeups, 0.1)
    wakeups.close()

    assert found is None or found.source == "pressure"
    assert after is None or after.source == "pressure"


@pytest.mark.cgroup
def test_changed_limit_moves_the_thresholds(group: MemoryGroup):
    """No descriptors are left behind by it."""
    wakeups = Wakeups()
    now = read(group)
    wakeups.update([now])
    wakeups.settle(5.0)
    open_now = len(os.listdir("/proc/self/fd"))

    for factor in range(2, 12):
        wakeups.update([replace(now, limit_bytes=factor << 27)])
        wakeups.settle(5.0)

    assert open_now == len(os.listdir("/proc/self/fd"))
    wakeups.update([])
    wakeups.settle(5.0)
    assert open_now > len(os.listdir("/proc/self/fd"))
    wakeups.close()


def test_closing_gives_every_descriptor_back():
    """Twice is once."""
    before = sorted(os.listdir("/proc/self/fd"))
    wakeups = Wakeups()

    wakeups.close()
    wakeups.close()

    assert before == sorted(os.listdir("/proc/self/fd"))
    assert [] == wakeups.fds()


def test_kernel_without_pressure_is_said_and_the_rest_goes_on(tmp_path):
    """A fault with a remedy; the descriptor for groups is still there."""
    wakeups = Wakeups(str(tmp_path / "missing"))

    assert ["wakeups.pressure"] == [fault.source for fault in wakeups.faults]
    assert wakeups.faults[0].remedy
    assert 1 == len(wakeups.fds())
    wakeups.close()


@pytest.mark.parametrize("version", [1, 2])
def test_group_that_cannot_be_armed_is_said_once(tmp_path, version: int):
    """Not permitted, or not that kind of folder: ticks have to do."""
    wakeups = Wakeups()
    found = [
        CgroupMemory(str(tmp_path), version, 1, 0, 0, limit, None, None, None, None, None)
        for limit in (1 << 30, 2 << 30)
    ]

    wakeups.update(found[:1])
    wakeups.settle(5.0)
    wakeups.update(found[1:])
    wakeups.settle(5.0)

    assert 1 == sum(fault.source == "wakeups.groups" for fault in wakeups.faults)
    wakeups.close()


def test_group_that_vanished_is_no_fault(tmp_path):
    """It ended between the look and the arming."""
    wakeups = Wakeups()
    gone = CgroupMemory(str(tmp_path / "g"), 1, 1, 0, 0, 1 << 30, None, None, None, None, None)

    wakeups.update([gone])
    wakeups.settle(5.0)

    assert [] == [fault for fault in wakeups.faults if fault.source == "wakeups.groups"]
    wakeups.close()


def test_no_look_waits_for_the_kernel_to_arm_a_group(tmp_path):
    """Each call takes it tens of milliseconds, and longer without a processor: here for ever."""
    os.mkfifo(tmp_path / "memory.usage_in_bytes")  # opening it waits for somebody to write
    (tmp_path / "cgroup.event_control").touch()
    wakeups = Wakeups()
    returned = threading.Event()
    in_time: list[bool] = []

    def release() -> None:
        in_time.append(returned.wait(5.0))
        end = time.monotonic() + 5.0
        while not done.is_set() and time.monotonic() < end:
            with suppress(OSError):
                os.close(os.open(tmp_path / "memory.usage_in_bytes", os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.01)

    done = threading.Event()
    releaser = threading.Thread(target=release)
    releaser.start()
    group = CgroupMemory(str(tmp_path), 1, 1, 0, 0, 1 << 30, None, None, None, None, None)

    wakeups.update([group])
    returned.set()
    wakeups.update([])

    wakeups.settle(5.0)
    done.set()
    releaser.join()
    wakeups.close()
    assert [True] == in_time


def test_foreign_descriptor_is_nothing():
    """A caller may ask for any of its own."""
    wakeups = Wakeups()

    assert wakeups.fired(0) is None
    wakeups.close()
