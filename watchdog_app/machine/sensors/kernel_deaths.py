"""
What the kernel log says of the ends of processes: kills for memory, crashes, broken memory, heat.

Lines are those of mm/oom_kill.c (3.10 to 6.x), arch/x86/mm/fault.c and kernel/traps (segfault,
traps), mm/memory-failure.c, kernel/hung_task.c and drivers/thermal/thermal_core.c. A fault and a
kill are written before the signal is sent: when a process has ended, its lines are there.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from contextlib import suppress

from watchdog_app.base.linux.kernel_log import PATH, KernelLog, message_of
from watchdog_app.core.model.exits import KernelEvent, KernelLogLine
from watchdog_app.machine.gpu.events import LogKind, parse_line

_MOST_A_LOOK = 20_000  # the kernel keeps about as many
_MOST_WORDS = 400
_MOST_ROWS = 4000  # of one table; the largest few are kept
_KEPT_ROWS = 8
_KEEP_S = 60.0
_LONGEST = 300
# One of these is in every line about an end: looked for before anything is decoded.
_MARKS = (b"oom", b"memory", b"ill", b"fault", b"trap", b"blocked for", b"critical", b"NVRM", b"[")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # kernel, include/linux/proc_ns.h: PROC_PID_INIT_INO

# Numbers of at most 64 bits: what has more digits was not written by the kernel.
_KILLED = re.compile(
    # At the beginning, or after the kernel's own words: a device or a disk may be called so too.
    r"^(?:(?:Memory cgroup out|Out) of memory[^:]{0,60}: )?"
    r"(?:Killed process|OOM-killed process) (\d{1,20}),? \((.{0,64}?)\)"
    r"(?:.*?\banon-rss:(\d{1,20})kB)?(?:.*?\bfile-rss:(\d{1,20})kB)?"
)
_CONSTRAINT = re.compile(r"^oom-kill:constraint=(\w+)")
_OOM_GROUP = re.compile(r"\boom_memcg=([^,]*)")
_VICTIM = re.compile(r"\btask=(.{0,64}),pid=(\d{1,20}),uid=\d{1,20}$")
_OLD_GROUP = re.compile(r"^Task in (\S+) killed as a result of limit of (\S+)$")
_REAPED = re.compile(r"^oom_reaper: reaped process (\d{1,20}) \((.{0,64}?)\)")
_SEGFAULT = re.compile(
    # As much of the name as there is: a program may call itself `a[42] segfault`.
    r"^(?P<name>.{1,64})\[(?P<pid>\d{1,20})\]:? "
    r"(?:segfault|bad frame|unhandled \S.*?|User process fault)(?: at (?P<at>[0-9a-fA-Fx]+))?"
)
_TRAP = re.compile(
    r"^traps: (?P<name>.{1,64})\[(?P<pid>\d{1,20})\] "
    r"(?P<what>general protection(?: fault)?|trap [a-z ]+?|[a-z ]*error|invalid opcode)"
    r"(?: fault)? (?:rip|ip):"
)
_LIBRARY = re.compile(r" in (\S[^\[]{0,200}?)\[[0-9a-fA-F,+x]+\]")
_BAD = re.compile(
    r"(?:Killing|Sending SIGBUS to) (.{1,64}?):(\d{1,20}) due to hardware memory corruption"
)
_HUNG = re.compile(r"^INFO: task (.{1,64}?):(\d{1,20}) blocked for more than \d{1,20} seconds")
_HOT = re.compile(r"critical temperature reached")
_HEADER = re.compile(r"^\[\s*pid\s*\]\s+uid\s+tgid\s+(.*\bname)$")
_ROW = re.compile(r"^\[\s*(\d{1,20})\]\s+(\d{1,20})\s+(\d{1,20})\s+(.*)$")


def parse(message: str, mono_s: float) -> KernelLogLine | None:
    """What one line says of an end; None: nothing. Rows of tables are `Table`'s."""
    text = _plain(message)
    found = _KILLED.search(message)
    if found:
        pid, name, anon, files = found.groups()
        rss = None if anon is None else 1024 * (int(anon) + int(files or 0))
        group = "cgroup" if message.startswith("Memory cgroup") else None
        return KernelLogLine(
            KernelEvent.OOM_KILL, mono_s, text, int(pid), _plain(name), group=group, rss_bytes=rss
        )
    found = _CONSTRAINT.search(message)
    if found:
        group_found, victim = _OOM_GROUP.search(message), _VICTIM.search(message)
        return KernelLogLine(
            KernelEvent.OOM_REPORT,
            mono_s,
            text,
            int(victim[2]) if victim else None,
            _plain(victim[1]) if victim else None,
            constraint=found[1],
            group=_plain(group_found[1]) if group_found else None,
        )
    found = _OLD_GROUP.search(message)  # before Linux 5.0
    if found:
        return KernelLogLine(
            KernelEvent.OOM_REPORT,
            mono_s,
            text,
            constraint="CONSTRAINT_MEMCG",
            group=_plain(found[2]),
        )
    found = _REAPED.search(message)
    if found:
        return KernelLogLine(KernelEvent.OOM_REAPED, mono_s, text, int(found[1]), _plain(found[2]))
    found = _TRAP.search(message) or _SEGFAULT.search(message)
    if found:
        library = _LIBRARY.search(message)
        return KernelLogLine(
            KernelEvent.CRASH,
            mono_s,
            text,
            int(found["pid"]),
            _plain(found["name"]),
            library=_plain(library[1]) if library else None,
            address=found.groupdict().get("at"),
        )
    for kind, pattern in ((KernelEvent.BAD_MEMORY, _BAD), (KernelEvent.HUNG, _HUNG)):
        found = pattern.search(message)
        if found:
            return KernelLogLine(kind, mono_s, text, int(found[2]), _plain(found[1]))
    if _HOT.search(message):
        return KernelLogLine(KernelEvent.HOT, mono_s, text)
    line = parse_line(message, mono_s)
    if line is not None and line.kind is LogKind.XID:
        return KernelLogLine(KernelEvent.XID, mono_s, text, line.pid)
    return None


class Table:
    """The table of who holds how much, which comes before a kill: its largest rows."""

    def __init__(self) -> None:
        self._columns = 0
        self._rss_at = 0
        self._rows: list[KernelLogLine] = []

    def take(self, message: str, mono_s: float) -> bool:
        """Take in a line; False: it is no part of a table."""
        header = _HEADER.match(message)
        if header:
            names = header[1].split()
            self._columns, self._rows = len(names), []
            self._rss_at = names.index("rss") if "rss" in names else 0
            return True
        row = _ROW.match(message) if self._columns else None
        if row is None:
            return False
        # The name is last and may hold blanks.
        fields = row[4].split(None, self._columns - 1)
        if len(fields) == self._columns and len(self._rows) < _MOST_ROWS:
            with suppress(ValueError):
                rss = int(fields[self._rss_at]) * os.sysconf("SC_PAGE_SIZE")
                name, pid = _plain(fields[-1]), int(row[3])
                self._rows.append(
                    KernelLogLine(KernelEvent.OOM_TASK, mono_s, name, pid, name, rss_bytes=rss)
                )
        return True

    def end(self) -> list[KernelLogLine]:
        """The largest rows, and the table is over."""
        rows = sorted(self._rows, key=lambda row: -(row.rss_bytes or 0))[:_KEPT_ROWS]
        self._columns, self._rows = 0, []
        return rows


class KernelDeaths:
    """
    The kernel log as a witness of ends. Nothing is read until somebody asks.

    Args:
        path: of the device.
        namespace: of this process's pids; None: as the system says. In another than the first
            one pids of the log mean other processes, and it is not read.
    """

    def __init__(self, path: str = PATH, namespace: int | None = None) -> None:
        self._records = KernelLog(path, _MOST_A_LOOK)
        self._ours = sys.platform == "linux" and _first(namespace)
        self._words: deque[KernelLogLine] = deque(maxlen=_MOST_WORDS)
        self._table = Table()

    @property
    def readable(self) -> bool:
        """Whether it can be read, and speaks of pids as we do."""
        return self._ours and self._records.readable

    def recent(self, now_mono_s: float | None = None) -> tuple[KernelLogLine, ...]:
        """What it said in the last minute, oldest first."""
        if not self._ours:
            return ()
        # The kernel counts without the time that the machine slept, as this clock does.
        now = time.clock_gettime(time.CLOCK_MONOTONIC) if now_mono_s is None else now_mono_s
        for record in self._records.read():
            if any(mark in record for mark in _MARKS):
                found = message_of(record)
                if found is not None:
                    self._take(*found)
        while self._words and now - self._words[0].mono_s > _KEEP_S:
            self._words.popleft()
        return tuple(self._words)

    def close(self) -> None:
        """Give the descriptor back."""
        self._records.close()

    def _take(self, message: str, mono_s: float) -> None:
        if self._table.take(message, mono_s):
            return
        word = parse(message, mono_s)
        if word is None:
            return
        if word.kind in (KernelEvent.OOM_REPORT, KernelEvent.OOM_KILL):
            self._words.extend(self._table.end())
        self._words.append(word)


def _first(namespace: int | None) -> bool:
    if namespace is None:
        try:
            namespace = os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            return False
    return namespace == _FIRST_PID_NAMESPACE


def _plain(text: str) -> str:
    kept = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(kept.split())[:_LONGEST]
