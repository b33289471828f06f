"""Captured trees of /proc and of memory groups, copied so that a test may change them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from watchdog_app.core.model.machine import ProcessInfo, Snapshot
from watchdog_app.machine.sensors.machine import LinuxMachine

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
V2_MOUNTS = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
NOW_UNIX_S = 1_800_000_000.0


class Tree:
    """A machine on disk."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.groups = folder / "cgroup"
        self.shm = folder / "shm"
        self.machines: list[LinuxMachine] = []
        shutil.copytree(FIXTURES / "proc", self.proc)
        # A source distribution refuses links to absolute paths, so they are made here.
        for line in (FIXTURES / "proc_links.txt").read_text().splitlines():
            place, _, target = line.partition(" ")
            (self.proc / place).symlink_to(target)
        shutil.copytree(FIXTURES / "cgroup_v1", self.groups)
        self.shm.mkdir()

    def machine(self, own_uid: int | None = None) -> LinuxMachine:
        """The machine of this tree, closed with it. It asks no Jupyter servers."""
        machine = LinuxMachine(
            proc=str(self.proc),
            cgroup_root=str(self.groups),
            shm=str(self.shm),
            own_uid=os.getuid() if own_uid is None else own_uid,
        )
        self.machines.append(machine)
        return machine

    def write(self, path: str, text: str | bytes) -> None:
        """Replace a file below proc."""
        data = text.encode() if isinstance(text, str) else text
        target = self.proc / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def link(self, path: str, target: str) -> None:
        """Replace a symbolic link below proc."""
        link = self.proc / path
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def rewrite(self, path: str, old: str, new: str) -> None:
        """Replace text within a file below proc; the text must exist."""
        text = (self.proc / path).read_bytes()
        assert old.encode() in text
        (self.proc / path).write_bytes(text.replace(old.encode(), new.encode()))

    def fault(self, pid: int) -> None:
        """The process touches a page, which its stat shows: minflt, field 10."""
        head, _, rest = (self.proc / f"{pid}/stat").read_text().rpartition(")")
        fields = rest.split(" ")
        fields[8] = str(int(fields[8]) + 1)
        self.write(f"{pid}/stat", f"{head}){' '.join(fields)}")

    def compute(self, pid: int, ticks: int) -> None:
        """The process uses processor time: utime, field 14."""
        head, _, rest = (self.proc / f"{pid}/stat").read_text().rpartition(")")
        fields = rest.split(" ")
        fields[12] = str(int(fields[12]) + ticks)
        self.write(f"{pid}/stat", f"{head}){' '.join(fields)}")

    def limit_space(self, pid: int, limit: int) -> None:
        """The process sets the soft limit of its address space."""
        line = f"Max address space         {limit}           unlimited            bytes     \n"
        lines = (self.proc / f"{pid}/limits").read_text().splitlines(keepends=True)
        self.write(
            f"{pid}/limits", "".join(line if "address space" in old else old for old in lines)
        )

    def remove(self, pid: int) -> None:
        """End a process."""
        shutil.rmtree(self.proc / str(pid))

    def copy(self, source: int, pid: int, start: int) -> None:
        """Add a process like an existing one."""
        shutil.copytree(self.proc / str(source), self.proc / str(pid), symlinks=True)
        fields = (self.proc / f"{source}/stat").read_text()
        head, _, rest = fields.rpartition(")")
        parts = rest.split(" ")
        parts[20] = str(start)
        name = head.partition("(")[2]
        self.write(f"{pid}/stat", f"{pid} ({name}){' '.join(parts)}")

    def use_v2(self) -> None:
        """The same machine with cgroup v2."""
        shutil.rmtree(self.groups)
        shutil.copytree(FIXTURES / "cgroup_v2", self.groups)
        self.write("self/mountinfo", V2_MOUNTS)

    def enter_group(self, pid: int, line: str) -> None:
        """Move a process: replace its whole /proc/PID/cgroup."""
        self.write(f"{pid}/cgroup", f"{line}\n")


def by_pid(snapshot: Snapshot) -> dict[int, ProcessInfo]:
    """The infos of a snapshot by pid."""
    return {key.pid: info for key, info in snapshot.infos.items()}
