"""Costs of a process, read from outside: processor time, wake-ups, memory, system calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

TRACE_S = 20


def cpu(pid: int) -> float:
    """
    Return the processor time of all threads in s, in ns resolution if the kernel has schedstat.
    """
    try:
        total = 0
        for thread in os.listdir(f"/proc/{pid}/task"):
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    except (OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total / 1e9


def switches(pid: int) -> int:
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        for line in Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def syscalls(pids: dict[str, int]) -> dict[str, float | None]:
    """Return system calls a minute, from a short run of strace; None: strace is not installed."""
    if shutil.which("strace") is None:
        return dict.fromkeys(pids)
    command = ["timeout", "-s", "INT", str(TRACE_S), "strace", "-c", "-f", "-p"]
    traces = {
        name: subprocess.Popen([*command, str(pid)], stderr=subprocess.PIPE, text=True)
        for name, pid in pids.items()
    }
    found: dict[str, float | None] = {}
    for name, trace in traces.items():
        said = trace.communicate()[1]
        total = re.search(r"^100\.00 +\S+ +(?:\d+ +)?(\d+) .*total$", said, re.MULTILINE)
        found[name] = int(total[1]) * 60 / TRACE_S if total else None
    return found
