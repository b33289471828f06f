"""
Whether everyone in a frozen group stands still, those included who wait for memory.

A task that sleeps at the limit of its group (cgroup v1) cannot be frozen: it sleeps in the middle
of a page fault. It does nothing all the same, and is frozen on its way out. So the group's own
word for it, FREEZING, says too little; the threads are looked at one by one.

Source: proc(5), stat and wchan; kernel, mm/memcontrol-v1.c and kernel/cgroup/legacy_freezer.c.
"""

from __future__ import annotations

import os

from watchdog_app.base.linux.procfs import read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_STILL = (b"__refrigerator", b"mem_cgroup_oom_synchronize", b"do_freezer_trap", b"do_exit")
_SETTLED = "XZTt"  # dead, or stopped by somebody


def all_still(pids: Iterable[int], proc: str = "/proc") -> bool:
    """Whether no thread of these processes can run before somebody lets it."""
    return all(_still(f"{proc}/{pid}/task") for pid in pids)


def _still(folder: str) -> bool:
    try:
        threads = os.listdir(folder)
    except OSError:
        return True  # it is gone
    return all(_thread_still(f"{folder}/{thread}") for thread in threads)


def _thread_still(folder: str) -> bool:
    process, _, thread = folder.rpartition("/")
    stat = read_stat(thread, process)
    if stat is None or stat.state in _SETTLED:
        return True
    try:
        with open(f"{folder}/wchan", "rb") as file:
            return file.read(64) in _STILL
    except OSError:
        return True


def is_stopped(pid: int, proc: str = "/proc") -> bool:
    """Whether somebody has stopped it, as Ctrl-Z does."""
    stat = read_stat(pid, proc)
    return stat is not None and stat.state == "T"


def in_foreground(pid: int, proc: str = "/proc") -> bool:
    """Whether its terminal listens to it: not after Ctrl-Z, and again after fg."""
    stat = read_stat(pid, proc)
    return stat is not None and stat.pgrp == stat.tty_pgrp


def signals(pid: int, proc: str = "/proc") -> tuple[int, int]:
    """
    Signals that wait for a process, those of its threads included, as masks with bit N-1 for
    signal N: all of them, and those that a thread would take if it ran. 0 when it is gone.
    """
    waiting, taken = 0, 0
    try:
        for thread in os.listdir(f"{proc}/{pid}/task"):
            pending, blocked = 0, 0
            with open(f"{proc}/{pid}/task/{thread}/status", "rb") as file:
                for line in file:
                    if line.startswith((b"SigPnd:", b"ShdPnd:")):
                        pending |= int(line.split()[1], 16)
                    elif line.startswith(b"SigBlk:"):
                        blocked = int(line.split()[1], 16)
            waiting |= pending
            taken |= pending & ~blocked
    except (OSError, ValueError):
        pass
    return waiting, taken
