"""Control groups of a test, and the kernel's lock on all of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guest import PYTHON, until

ROOT = Path("/sys/fs/cgroup")
_RT_SHARE = Path("/proc/sys/kernel/sched_rt_runtime_us")
_STALLS_UNTOLD = Path("/sys/module/rcupdate/parameters/rcu_cpu_stall_suppress")
_BUSY = """
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
os.sched_setaffinity(0, {1})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
while time.monotonic() < end:
    pass
"""


@contextlib.contextmanager
def group(limit_bytes: int | None = None) -> Iterator[Path]:
    """A group outside of every session; its remaining processes are killed at the end."""
    folder = ROOT / f"test-{time.monotonic_ns()}"
    folder.mkdir()
    if limit_bytes is not None:
        (folder / "memory.max").write_text(str(limit_bytes))
    try:
        yield folder
    finally:
        (folder / "cgroup.kill").write_text("1")
        until(lambda: "populated 0" in (folder / "cgroup.events").read_text(), "it is empty")
        folder.rmdir()


def move(pid: int, folder: Path) -> None:
    """Move a process into another group; waits as long as the kernel does."""
    (folder / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def groups_locked() -> Iterator[Callable[[], bool]]:
    """
    Block all reads of /proc/PID/cgroup for two minutes at most; yields whether they still block.

    A move of a process holds the kernel's cgroup_mutex for a grace period of RCU. That period lasts
    as long as the kernel's RCU thread gets no processor time. The thread is bound to the second
    processor, which a real-time program uses up; the rest of the machine runs on the first.

    Source: kernel/cgroup/cgroup.c (percpu_down_write of cgroup_threadgroup_rwsem).
    """
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs a second processor: WATCHDOG_VM_CORES=2")
    grace = next(
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/comm")
        if path.read_text().strip() in ("rcu_preempt", "rcu_sched")
    )
    with contextlib.ExitStack() as undo:
        folder = undo.enter_context(group())
        moved = undo.enter_context(subprocess.Popen(["sleep", "3600"]))
        undo.callback(moved.kill)
        time.sleep(3)  # a move right after another one does not wait
        for path, text in ((_RT_SHARE, "-1"), (_STALLS_UNTOLD, "1")):
            undo.callback(path.write_text, path.read_text())
            path.write_text(text)
        undo.callback(os.sched_setaffinity, grace, os.sched_getaffinity(grace))
        os.sched_setaffinity(grace, {1})
        busy = undo.enter_context(subprocess.Popen([PYTHON, "-S", "-c", _BUSY, "120"]))
        until(lambda: os.sched_getscheduler(busy.pid) == os.SCHED_FIFO, "a processor is busy")
        mover = threading.Thread(target=move, args=(moved.pid, folder))
        reader = threading.Thread(target=Path("/proc/1/cgroup").read_text)
        for each in (mover, reader):
            each.start()
            undo.callback(each.join)
            time.sleep(1)
        undo.callback(busy.kill)
        yield reader.is_alive
