"""
Kernel log lines about ends of processes: OOM kills, crashes, bad memory, overheating.

Lines are those of mm/oom_kill.c (3.10 to 6.x), arch/x86/mm/fault.c and kernel/traps (segfault,
traps), mm/memory-failure.c, kernel/hung_task.c and drivers/thermal/thermal_core.c. The kernel logs
a fault or a kill before it sends the signal. So the lines exist once a process has ended.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from watchdog_app.base.linux.files import KERNEL_LOG, KernelLog, parse_log_record
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.exits import KernelEvent, KernelLogLine
from watchdog_app.machine.gpu.events import parse_line

_MAX_RECORDS_A_READ = 20_000  # the kernel keeps about as many
_MAX_LINES = 400
_MAX_ROWS = 4000  # of one table, of which the largest few are kept
_KEPT_ROWS = 8
_KEEP_S = 60.0
_LONGEST = 300
# Every line about an end contains one of these; the search comes before any decoding.
_MARKS = (b"oom", b"memory", b"ill", b"fault", b"trap", b"blocked for", b"critical", b"NVRM", b"[")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # kernel, include/linux/proc_ns.h: PROC_PID_INIT_INO

_LIBRARY = r"(?:.*? in (?P<library>\S[^\[]{0,200}?)\[[0-9a-fA-F,+x]+\])?"
_HEADER = re.compile(r"^\[\s*pid\s*\]\s+uid\s+tgid\s+(.*\bname)$")
_ROW = re.compile(r"^\[\s*(\d{1,20})\]\s+(\d{1,20})\s+(\d{1,20})\s+(.*)$")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """
    One form of a line about an end.

    Its groups are named as fields of `KernelLogLine`. `anon` and `file` are parts of `rss_bytes`,
    in KiB.
    """

    kind: KernelEvent
    form: re.Pattern[str]
    constraint: str | None = None


def _pattern(kind: KernelEvent, *forms: str, constraint: str | None = None) -> _Pattern:
    return _Pattern(kind, re.compile("".join(forms)), constraint)


# Numbers have at most 64 bits; the kernel does not write longer ones. Forms start at the beginning
# of the line or with the kernel's own words, since a device or disk may have any name.
_PATTERNS = (
    _pattern(
        KernelEvent.OOM_KILL,
        r"^(?:(?:Memory (?P<group>cgroup) out|Out) of memory[^:]{0,60}: )?",
        r"(?:Killed process|OOM-killed process) (?P<pid>\d{1,20}),? \((?P<name>.{0,64}?)\)",
        r"(?:.*?\banon-rss:(?P<anon>\d{1,20})kB)?(?:.*?\bfile-rss:(?P<file>\d{1,20})kB)?",
    ),
    _pattern(
        KernelEvent.OOM_REPORT,
        r"^oom-kill:constraint=(?P<constraint>\w+)(?:.*?\boom_memcg=(?P<group>[^,]*))?",
        r"(?:.*\btask=(?P<name>.{0,64}),pid=(?P<pid>\d{1,20}),uid=\d{1,20}$)?",
    ),
    _pattern(  # before Linux 5.0
        KernelEvent.OOM_REPORT,
        r"^Task in \S+ killed as a result of limit of (?P<group>\S+)$",
        constraint="CONSTRAINT_MEMCG",
    ),
    _pattern(
        KernelEvent.CRASH,
        r"^traps: (?P<name>.{1,64})\[(?P<pid>\d{1,20})\] ",
        r"(?:general protection(?: fault)?|trap [a-z ]+?|[a-z ]*error|invalid opcode)",
        r"(?: fault)? (?:rip|ip):",
        _LIBRARY,
    ),
    _pattern(
        # Match the longest possible name: a program may call itself `a[42] segfault`.
        KernelEvent.CRASH,
        r"^(?P<name>.{1,64})\[(?P<pid>\d{1,20})\]:? ",
        r"(?:segfault|bad frame|unhandled \S.*?|User process fault)",
        r"(?: at (?P<address>[0-9a-fA-Fx]+))?",
        _LIBRARY,
    ),
    _pattern(
        KernelEvent.BAD_MEMORY,
        r"(?:Killing|Sending SIGBUS to) (?P<name>.{1,64}?):(?P<pid>\d{1,20}) ",
        r"due to hardware memory corruption",
    ),
    _pattern(
        KernelEvent.HUNG,
        r"^INFO: task (?P<name>.{1,64}?):(?P<pid>\d{1,20}) blocked for more than \d{1,20} seconds",
    ),
    _pattern(KernelEvent.HOT, r"critical temperature reached"),
)


def parse(message: str, mono_s: float) -> KernelLogLine | None:
    """
    Parse one line about an end; None: about something else. `OomTable` parses rows of tables.

    Args:
        message: of the kernel log, without its head.
        mono_s: when it was written, in seconds since boot.
    """
    for pattern in _PATTERNS:
        found = pattern.form.search(message)
        if found is not None:
            return _build_line(pattern, found.groupdict(), clean(message, _LONGEST), mono_s)
    line = parse_line(message, mono_s)
    if line is not None:
        return KernelLogLine(KernelEvent.XID, mono_s, clean(message, _LONGEST), line.pid)
    return None


def _build_line(
    pattern: _Pattern, found: Mapping[str, str | None], text: str, mono_s: float
) -> KernelLogLine:
    words = {
        field: None if found.get(field) is None else clean(str(found[field]), _LONGEST)
        for field in ("name", "group", "library")
    }
    pid, anon, files = found.get("pid"), found.get("anon"), found.get("file")
    return KernelLogLine(
        pattern.kind,
        mono_s,
        text,
        None if pid is None else int(pid),
        constraint=found.get("constraint") or pattern.constraint,
        rss_bytes=None if anon is None else 1024 * (int(anon) + int(files or 0)),
        address=found.get("address"),
        **words,
    )


class OomTable:
    """The largest rows of the table of processes that the kernel logs before an OOM kill."""

    def __init__(self) -> None:
        self._columns = 0
        self._rss_at = 0
        self._rows: list[KernelLogLine] = []

    def add_line(self, message: str, mono_s: float) -> bool:
        """
        Add a line to the table; return False if it is not part of a table.

        Args:
            message: of the kernel log, without its head.
            mono_s: when it was written, in seconds since boot.
        """
        header = _HEADER.match(message)
        if header:
            names = header[1].split()
            self._columns, self._rows = len(names), []
            self._rss_at = names.index("rss") if "rss" in names else 0
            return True
        row = _ROW.match(message) if self._columns else None
        if row is None:
            return False
        # The name comes last and may contain blanks.
        fields = row[4].split(None, self._columns - 1)
        if len(fields) == self._columns and len(self._rows) < _MAX_ROWS:
            with suppress(ValueError):
                rss = int(fields[self._rss_at]) * os.sysconf("SC_PAGE_SIZE")
                name, pid = clean(fields[-1], _LONGEST), int(row[3])
                self._rows.append(
                    KernelLogLine(KernelEvent.OOM_TASK, mono_s, name, pid, name, rss_bytes=rss)
                )
        return True

    def finish(self) -> list[KernelLogLine]:
        """Return the largest rows and clear the table."""
        rows = sorted(self._rows, key=lambda row: -(row.rss_bytes or 0))[:_KEPT_ROWS]
        self._columns, self._rows = 0, []
        return rows


class KernelEvents:
    """
    Finds ends of processes in the kernel log; reads nothing before the first request.

    Args:
        path: of the device.
        namespace: inode of this process's pid namespace; None: read it from /proc. Outside the
            initial namespace the log's pids mean other processes, so the log is not read.
    """

    def __init__(self, path: str = KERNEL_LOG, namespace: int | None = None) -> None:
        self._records = KernelLog(path, _MAX_RECORDS_A_READ)
        self._ours = sys.platform == "linux" and _in_first_namespace(namespace)
        self._lines: deque[KernelLogLine] = deque(maxlen=_MAX_LINES)
        self._table = OomTable()

    @property
    def readable(self) -> bool:
        """Return whether the log is readable and its pids are valid in our namespace."""
        return self._ours and self._records.readable

    def recent(self, now_mono_s: float | None = None) -> tuple[KernelLogLine, ...]:
        """Return the lines of the last minute, oldest first."""
        if not self._ours:
            return ()
        # Kernel timestamps leave out the time that the machine was suspended, as this clock does.
        now = time.clock_gettime(time.CLOCK_MONOTONIC) if now_mono_s is None else now_mono_s
        for record in self._records.read():
            if any(mark in record for mark in _MARKS):
                found = parse_log_record(record)
                if found is not None:
                    self._add_message(*found)
        while self._lines and now - self._lines[0].mono_s > _KEEP_S:
            self._lines.popleft()
        return tuple(self._lines)

    def close(self) -> None:
        """Close the descriptor."""
        self._records.close()

    def _add_message(self, message: str, mono_s: float) -> None:
        if self._table.add_line(message, mono_s):
            return
        word = parse(message, mono_s)
        if word is None:
            return
        if word.kind in (KernelEvent.OOM_REPORT, KernelEvent.OOM_KILL):
            self._lines.extend(self._table.finish())
        self._lines.append(word)


def _in_first_namespace(namespace: int | None) -> bool:
    if namespace is None:
        try:
            namespace = os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            return False
    return namespace == _FIRST_PID_NAMESPACE
