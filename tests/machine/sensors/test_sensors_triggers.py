"""Events that wake the loop between two ticks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from watchdog_app.base.errors import ActionError
from watchdog_app.base.linux.cgroups import Layout
from watchdog_app.core.model.machine import CgroupMemory
from watchdog_app.daemon.poller import Poller
from watchdog_app.guard.backends import create
from watchdog_app.guard.cgroup import Cgroup
from watchdog_app.machine.sensors.groups import GroupSensor
from watchdog_app.machine.sensors.triggers import Triggers, Wakeup

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
        found = create(f"watchdog-wakeups-{os.getpid()}", 128 << 20)
    except ActionError as error:
        pytest.skip(str(error))
    if found.path is None:
        pytest.skip("a systemd scope has no folder before its command runs")
    yield found
    found.close()


def read(group: Cgroup) -> CgroupMemory:
    """Read the group now."""
    with open("/proc/self/mountinfo", "rb") as file:
        reader = GroupSensor(Layout.discover(file.read(), "/sys/fs/cgroup"))
    found = reader.read([group.path], 0.0)[-1]
    reader.close()
    return found


def failed(error: Exception) -> None:
    """Re-raise, because callbacks must not raise."""
    raise error


@pytest.fixture
def poller():
    """The poller of the loop."""
    found = Poller(failed)
    yield found
    found.close()


@pytest.fixture
def triggers_of(poller: Poller):
    """Make triggers for this poller."""
    return partial(Triggers, poller, lambda: None)


def woken(triggers: Triggers, poller: Poller, seconds: float) -> Wakeup | None:
    """The first wake-up within so many seconds."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        poller.wait(left)
        found = triggers.pop_wakeup()
        if found is not None:
            return found
    return None


@pytest.mark.cgroup
def test_group_that_nears_its_limit_wakes_once_a_tick(group: Cgroup, triggers_of, poller):
    """80 % of the limit is crossed between two samples; then it is silent until the next update."""
    triggers = triggers_of()
    triggers.update([read(group)])
    triggers.wait_until_armed(5.0)
    process = subprocess.Popen(
        group.command([sys.executable, "-c", EATER]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        early = woken(triggers, poller, 0.1)
        process.stdin.write(b"105\n")
        process.stdin.flush()
        process.stdout.readline()
        first = woken(triggers, poller, 5.0)
        again = woken(triggers, poller, 0.1)
    finally:
        process.kill()
        process.communicate()
        triggers.close()

    assert early is None or early.source == "pressure"
    assert first is not None
    assert group.path == first.path
    assert again is None or again.source == "pressure"


@pytest.mark.cgroup
def test_death_in_a_group_wakes(group: Cgroup, triggers_of, poller):
    """The kernel kills at the limit; the next sample comes at once."""
    triggers = triggers_of()
    process = subprocess.Popen(
        group.command([sys.executable, "-c", EATER]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    seen = set()
    try:
        triggers.update([read(group)])
        triggers.wait_until_armed(5.0)
        process.stdin.write(b"200\n")
        process.stdin.flush()
        end = time.monotonic() + 10.0
        while not {"oom", "events"} & seen and time.monotonic() < end:
            found = woken(triggers, poller, 1.0)
            seen.add(found.source if found else None)
            triggers.update([read(group)])
        status = process.wait(10)
    finally:
        process.kill()
        process.communicate()
        triggers.close()

    assert -9 == status
    assert {"oom", "events"} & seen


@pytest.mark.cgroup
def test_group_that_is_removed_wakes_nobody(group: Cgroup, triggers_of, poller):
    """The kernel signals its descriptors once more; that is not an event of memory."""
    triggers = triggers_of()
    triggers.update([read(group)])
    triggers.wait_until_armed(5.0)
    group.close()

    found = woken(triggers, poller, 0.3)
    triggers.update([])
    triggers.wait_until_armed(5.0)
    after = woken(triggers, poller, 0.1)
    triggers.close()

    assert found is None or found.source == "pressure"
    assert after is None or after.source == "pressure"


@pytest.mark.cgroup
def test_changed_limit_moves_the_thresholds(group: Cgroup, triggers_of):
    """No descriptors are left open."""
    triggers = triggers_of()
    now = read(group)
    triggers.update([now])
    triggers.wait_until_armed(5.0)
    open_now = len(os.listdir("/proc/self/fd"))

    for factor in range(2, 12):
        triggers.update([replace(now, limit_bytes=factor << 27)])
        triggers.wait_until_armed(5.0)

    assert open_now == len(os.listdir("/proc/self/fd"))
    triggers.update([])
    triggers.wait_until_armed(5.0)
    assert open_now > len(os.listdir("/proc/self/fd"))
    triggers.close()


def test_closing_gives_every_descriptor_back(triggers_of):
    """A second close does nothing."""
    before = sorted(os.listdir("/proc/self/fd"))
    triggers = triggers_of()

    triggers.close()
    triggers.close()

    assert before == sorted(os.listdir("/proc/self/fd"))


def test_kernel_without_pressure_is_said_and_the_rest_goes_on(tmp_path, triggers_of):
    """The fault has a remedy."""
    triggers = triggers_of(str(tmp_path / "missing"))

    assert ["wakeups.pressure"] == [fault.source for fault in triggers.faults]
    assert triggers.faults[0].remedy
    triggers.close()


@pytest.mark.parametrize("version", [1, 2])
def test_group_that_cannot_be_armed_is_said_once(tmp_path, version: int, triggers_of):
    """Not permitted, or not that kind of folder: regular ticks must suffice."""
    triggers = triggers_of()
    found = [
        CgroupMemory(str(tmp_path), version, 1, 0, 0, limit, None, None, None, None)
        for limit in (1 << 30, 2 << 30)
    ]

    triggers.update(found[:1])
    triggers.wait_until_armed(5.0)
    triggers.update(found[1:])
    triggers.wait_until_armed(5.0)

    assert 1 == sum(fault.source == "wakeups.groups" for fault in triggers.faults)
    triggers.close()


def test_group_that_vanished_is_no_fault(tmp_path, triggers_of):
    """It ended between the sample and the arming."""
    triggers = triggers_of()
    gone = CgroupMemory(str(tmp_path / "g"), 1, 1, 0, 0, 1 << 30, None, None, None, None)

    triggers.update([gone])
    triggers.wait_until_armed(5.0)

    assert [] == [fault for fault in triggers.faults if fault.source == "wakeups.groups"]
    triggers.close()


def test_no_look_waits_for_the_kernel_to_arm_a_group(tmp_path, triggers_of):
    """Each call takes the kernel tens of milliseconds or more: here for ever."""
    os.mkfifo(tmp_path / "memory.usage_in_bytes")  # opening it waits for a writer
    (tmp_path / "cgroup.event_control").touch()
    triggers = triggers_of()
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
    group = CgroupMemory(str(tmp_path), 1, 1, 0, 0, 1 << 30, None, None, None, None)

    triggers.update([group])
    returned.set()
    triggers.update([])

    triggers.wait_until_armed(5.0)
    done.set()
    releaser.join()
    triggers.close()
    assert [True] == in_time
