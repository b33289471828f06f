"""What every thread of a task does at one moment: plain frozen records, read by whoever can."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python stack. Never holds the value of a variable."""

    file: str
    line: int | None
    function: str

    @property
    def place(self) -> str:
        """`train.py:42 in step`; a path that says little has its folder before it."""
        folder, name = os.path.split(self.file)
        if name in ("__init__.py", "__main__.py", "core.py", "base.py"):
            name = os.path.join(os.path.basename(folder), name)
        at = "" if self.line is None else f":{self.line}"
        return f"{name}{at} in {self.function}"


@dataclass(frozen=True, slots=True)
class ThreadLook:
    """One thread. What could not be read is None or empty."""

    tid: int | None  # as the kernel numbers it; the first thread's is its process's pid
    name: str  # as Python knows it, else as the kernel does; untrusted
    state: str | None = None  # one letter as in /proc/PID/stat
    wchan: str | None = None  # where in the kernel it sleeps; None: not asleep there, or not told
    syscall: str | None = None  # "futex"; None: in none, unknown, or not told
    arguments: tuple[int, ...] = ()  # of the system call
    kernel: tuple[str, ...] = ()  # functions of the kernel's stack, innermost first
    frames: tuple[Frame, ...] = ()  # Python's stack, innermost first
    trains: bool = False  # it makes the steps of the training

    @property
    def waits(self) -> str | None:
        """Where it waits, as short as that can be said: `futex`, `pipe_read`; None: not known."""
        return self.wchan or self.syscall


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """One process of the task."""

    pid: int
    ppid: int
    name: str  # the kernel's; untrusted
    state: str  # one letter
    threads: tuple[ThreadLook, ...] = ()  # the first one first
    thread_count: int = 0  # of all, also where fewer were looked at
    major_faults: int | None = None  # pages read from a disk or from swap, ever
    has_agent: bool = False

    @property
    def main(self) -> ThreadLook | None:
        """The thread that makes the steps; where nobody says which, the first one."""
        for thread in self.threads:
            if thread.trains:
                return thread
        return self.threads[0] if self.threads else None


@dataclass(frozen=True, slots=True)
class Picture:
    """A task at one moment."""

    processes: tuple[ProcessLook, ...]  # the root first
    # Whether the agent has told the Python stacks: None, there is none; False, it was asked and is
    # connected, and its thread did not get to run.
    answered: bool | None = None
    last_seen: Frame | None = None  # where the training was when its agent last reported
    last_seen_s: float | None = None  # ... so long before
    major_faults_per_s: float | None = None

    @property
    def root(self) -> ProcessLook | None:
        """The program itself: where the agent is, else the task's first process."""
        for process in self.processes:
            if process.has_agent:
                return process
        return self.processes[0] if self.processes else None
