"""A save that starts when a real memory group is already at its limit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from daemon_stand_in import StandIn

from watchdog_app.guard.backends import create
from watchdog_app.guard.cgroup_v1 import CgroupV1
from watchdog_app.rescue.checkpoint.store import RescueStore

MIB = 1024 * 1024
PAGE = 4096

pytestmark = pytest.mark.cgroup

TRAINING = """
import mmap, os, sys, time
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.rescue.checkpoint.format import Capture
from watchdog_app.rescue.checkpoint.store import RescueStore

directory, socket_path, count, size = *sys.argv[1:3], *map(int, sys.argv[3:5])
held = []
for number in range(count):
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, 4096):
        memory[at] = number % 251
    held.append(memory)

def capture():
    return Capture(
        [TensorEntry(f"model/layer_{n}/kernel", "U8", (size,), size, lambda m=m: memoryview(m))
         for n, m in enumerate(held)],
        {"epoch": 3},
    )

link = Link("test", directory, socket_path=socket_path)
session = Session(RescueStore(directory), link, capture)
session.prepare()
step = 0
while step < 100 or not link.connected:
    session.boundary(step, epoch=3, batch=step)
    step += 1
    time.sleep(0.002)
os.write(1, b"ready")
if sys.argv[5] == "asked":
    while session.boundary(step, epoch=3, batch=step) is None:
        step += 1
        time.sleep(0.002)
else:
    os.read(0, 1)
    session.save_now("at the limit", step)
os.write(1, b"saved")
os.read(0, 1)
os._exit(0)
"""


class SqueezedGroup:
    """A group whose limit is lowered to the minimum that its processes need."""

    def __init__(self, group):
        self.group = group

    def _put(self, name, value):
        fd = os.open(f"{self.group.path}/{name}", os.O_WRONLY)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)

    def _get(self, name):
        with open(f"{self.group.path}/{name}") as file:
            return int(file.read())

    def squeeze(self, slack_bytes):
        """Lower the limit page by page until the kernel refuses: the page cache is then empty."""
        limit = self._get("memory.usage_in_bytes") // PAGE * PAGE
        step = MIB
        while step >= PAGE:
            try:
                self._put("memory.limit_in_bytes", limit - step)
                limit -= step
            except OSError:
                step //= 2
        self._put("memory.limit_in_bytes", limit + slack_bytes)

    def reset_peak(self):
        self._put("memory.max_usage_in_bytes", 0)
        return self._get("memory.usage_in_bytes")

    @property
    def peak_bytes(self):
        return self._get("memory.max_usage_in_bytes")


@pytest.fixture
def daemon(tmp_path):
    made = StandIn(str(tmp_path / "run" / "daemon.sock"))
    yield made
    made.close()


@pytest.fixture
def start(tmp_path, daemon):
    """Start a training of `count` tensors in a group of 1 GiB, at a step boundary."""
    if not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.R_OK) or os.geteuid() != 0:
        pytest.skip("needs root and a cgroup v1 memory hierarchy: the limit is lowered by hand")
    group = create(f"watchdog-test-agent-{os.getpid()}", 1024 * MIB)
    assert isinstance(group, CgroupV1)
    started = []

    def begin(count, size, how):
        arguments = [str(tmp_path / "r"), daemon.path, str(count), str(size), how]
        process = subprocess.Popen(
            group.command([sys.executable, "-c", TRAINING, *arguments]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout.read(5) == b"ready"
        return process, SqueezedGroup(group)

    yield begin
    for process in started:
        process.kill()
        process.communicate()
    group.close()


@pytest.mark.parametrize(("count", "size"), [(20, 5 * MIB), (1000, 100_000)])
def test_a_save_at_the_limit_needs_next_to_nothing(tmp_path, start, count, size):
    """
    The rescue is complete and no process was killed, with the 16 pages that any program needs to
    wake up.
    """
    process, group = start(count, size, "by-itself")
    group.squeeze(slack_bytes=16 * PAGE)

    process.stdin.write(b"g")
    process.stdin.flush()

    assert b"saved" == process.stdout.read(5)
    assert 0 == group.group.oom_kills()
    found = RescueStore(str(tmp_path / "r")).newest()
    assert count == len(found.tensors)


def test_a_request_at_the_limit_is_heard_and_answered(tmp_path, start, daemon):
    """The socket works with the little memory that any running program needs."""
    process, group = start(100, MIB, "asked")
    group.squeeze(slack_bytes=128 * 1024)

    daemon.ask("r1")

    assert b"saved" == process.stdout.read(5)
    assert 0 == group.group.oom_kills()
    assert (
        RescueStore(str(tmp_path / "r")).newest().path
        == daemon.wait_for("agent.saved")["rescue"]["path"]
    )


def test_a_save_adds_less_than_8_mib_to_its_group(tmp_path, start):
    """The kernel counts RSS and page cache together, without a tight limit."""
    process, group = start(100, 3 * MIB, "by-itself")
    before = group.reset_peak()

    process.stdin.write(b"g")
    process.stdin.flush()

    assert b"saved" == process.stdout.read(5)
    assert group.peak_bytes - before < 8 * MIB
