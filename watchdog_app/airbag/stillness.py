"""
Whether everyone in a frozen group stands still, those included who wait for memory.

A task that sleeps at the limit of its group (cgroup v1) cannot be frozen: it sleeps in the middle
of a page fault. It does nothing all the same, and is frozen on its way out. So the group's own
word for it, FREEZING, says too little; the threads are looked at one by one.

Source: proc(5), stat and wchan; kernel, mm/memcontrol-v1.c and kernel/cgroup/legacy_freezer.c.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_STILL = (b"__refrigerator", b"mem_cgroup_oom_synchronize", b"do_freezer_trap", b"do_exit")
_SETTLED = b"XZTt"  # dead, or stopped by somebody


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
    try:
        with open(f"{folder}/stat", "rb") as file:
            data = file.read(512)
        state = data[data.rfind(b")") + 2 : data.rfind(b")") + 3]
        if state in _SETTLED:
            return True
        with open(f"{folder}/wchan", "rb") as file:
            return file.read(64) in _STILL
    except OSError:
        return True


def start_time(pid: int, proc: str = "/proc") -> int | None:
    """When a process began, in ticks since boot; None: it has ended, or nobody has that pid."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b") ")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def is_stopped(pid: int, proc: str = "/proc") -> bool:
    """Whether somebody has stopped it, as Ctrl-Z does."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return file.read(4096).rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False


def in_foreground(pid: int, proc: str = "/proc") -> bool:
    """Whether its terminal listens to it: not after Ctrl-Z, and again after fg."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b") ")[2].split()
        return fields[2] == fields[5]  # its process group, and the terminal's
    except (OSError, IndexError):
        return False


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
