"""Evidence of how a process ended: OOM counters, kernel log, crash report, OOM daemons."""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import field
from typing import Any, NamedTuple

from watchdog_app.base.durable import open_nonblocking
from watchdog_app.base.linux import cgroups, process
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import redact
from watchdog_app.core.diagnosis.evidence import kills_elsewhere, lines_about_exit, signal_of
from watchdog_app.core.model.exits import ExitFacts, LastError
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind
from watchdog_app.machine.sensors.kernel_events import KernelEvents

# under memory pressure the kernel takes up to a minute to tear down a large process
_KEEP_S = 120.0
_MAX_KILLS = 1000
_RECENT_S = 15.0
_DYING_S = 1.0  # a sample may still show a process alive that the kernel has just killed

# _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info): version 0 of the struct has 64 bytes.
_INFO_BYTES = 64
_PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3


class Span(NamedTuple):
    """A counter's values when a process was last seen alive and now; None: unknown."""

    before: int | None
    after: int | None
    elsewhere: int = 0  # kills in that time whose victims are known
    begin_mono_s: float | None = None


@dataclass(slots=True)
class _Kill:
    """One kill that a counter showed."""

    mono_s: float  # of the reading that showed it
    claimed: bool = False  # the victim is known


@dataclass(slots=True)
class Counter:
    """A kill counter of the kernel, and its kills of the last minutes."""

    value: int | None
    since_mono_s: float = field(default_factory=time.monotonic)  # when the counter became readable
    _kills: deque[_Kill] = field(default_factory=lambda: deque(maxlen=_MAX_KILLS))

    def update(self, value: int | None) -> bool:
        """Store the current value; return whether it is higher than before."""
        now = time.monotonic()
        rose = value is not None and self.value is not None and value > self.value
        if rose and value is not None and self.value is not None:
            self._kills.extend(_Kill(now) for _ in range(min(_MAX_KILLS, value - self.value)))
        while self._kills and now - self._kills[0].mono_s > _KEEP_S:
            self._kills.popleft()
        if self.value is None and value is not None:
            self.since_mono_s = now
        self.value = value
        return rose

    def recent(self) -> bool:
        """Return whether the counter rose within the last 15 s."""
        return bool(self._kills) and time.monotonic() - self._kills[-1].mono_s < _RECENT_S

    def span(self, alive_mono_s: float) -> Span:
        """Return the counter's values since a process was last seen alive."""
        if self.value is None:
            return Span(None, None)
        begin_mono_s = alive_mono_s - _DYING_S
        rises = [each for each in self._kills if each.mono_s > begin_mono_s]
        if not rises and self.since_mono_s > begin_mono_s and len(self._kills) != self.value:
            return Span(None, self.value)  # some kills may be from just before the first reading
        known = sum(each.claimed for each in rises)
        return Span(self.value - len(rises), self.value, known, self.since_mono_s)

    def claim(self, alive_mono_s: float) -> None:
        """Mark one kill since then as explained, so that no later death counts as its victim."""
        for each in self._kills:
            if each.mono_s > alive_mono_s - _DYING_S and not each.claimed:
                each.claimed = True
                return


class OomCounters:
    """The machine's kill counter and those of the watched processes' groups."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._groups: dict[str, Counter] = {}
        self._read_mono_s: deque[float] = deque(maxlen=_MAX_KILLS)  # times of the readings
        self.host = Counter(cgroups.host_oom_kills(proc))
        self._read_mono_s.append(time.monotonic())

    def update(self) -> None:
        """Read the machine's counter, and the groups' counters if it rose."""
        rose = self.host.update(cgroups.host_oom_kills(self._proc))
        for group, counter in self._groups.items():
            if rose or self.host.value is None:
                counter.update(cgroups.group_oom_kills(group))
        self._read_mono_s.append(time.monotonic())

    def track(self, groups: Collection[str], needed: Collection[str | None]) -> None:
        """
        Count in these groups from now on.

        Args:
            groups: groups of the watched processes.
            needed: groups whose counters must stay for now.
        """
        for gone in self._groups.keys() - set(groups) - set(needed):
            if not self._groups[gone].recent():
                del self._groups[gone]
        for new in set(groups) - self._groups.keys():
            self._groups[new] = Counter(cgroups.group_oom_kills(new))

    def span(self, group: str | None, alive_mono_s: float) -> Span:
        """
        Return the values of a counter since a process was last seen alive.

        Args:
            group: folder of the memory group; None: the whole machine.
            alive_mono_s: when the process was last seen alive.
        """
        counter = self.host if group is None else self._groups.get(group)
        if counter is None:
            return Span(None, None)
        span = counter.span(alive_mono_s)
        if span.begin_mono_s is None:
            return span
        # The span begins at the last reading before the process was last seen alive.
        times = list(self._read_mono_s)
        begin = times[max(0, bisect_right(times, alive_mono_s - _DYING_S) - 1)]
        return span._replace(begin_mono_s=max(begin, span.begin_mono_s))

    def claim(self, group: str | None, alive_mono_s: float) -> None:
        """
        Mark one kill of a group and of the machine as explained by a process's end.

        Args:
            group: folder of its memory group; None: it was in none.
            alive_mono_s: when it was last seen alive.
        """
        for counter in (self.host, self._groups.get(group or "")):
            if counter is not None:
                counter.claim(alive_mono_s)

    def rose_recently(self, group: str | None) -> bool:
        """Return whether a process of that group was killed within the last 15 s."""
        counter = self._groups.get(group) if group else None
        return counter is not None and counter.recent()


KERNELS = (TaskKind.NOTEBOOK, TaskKind.KERNEL)
_OOM_DAEMONS = ("bustd", "earlyoom", "nohang", "oomd", "systemd-oomd")
_LOG_CLOCK_DRIFT_S = 2.0  # the kernel log uses another clock
_DAEMONS_S = 10.0  # finding OOM daemons reads every process on the machine


class ExitEvidence:
    """
    Collects the evidence about one end from all sources.

    Args:
        folder: state folder with the crash reports; None: without crash reports.
        proc: where proc is mounted.
    """

    def __init__(self, folder: str | None, proc: str = "/proc") -> None:
        self._folder = folder
        self._proc = proc
        self.counts = OomCounters(proc)  # the caller of `collect` updates them first
        self._log = KernelEvents()
        self._oom_daemons: tuple[str, ...] = ()
        self._asked_mono_s = float("-inf")

    def collect(
        self,
        key: ProcessKey,
        task: Task | None,
        handle: int | None,
        *,
        group: str | None,
        alive_mono_s: float,
        root: bool = True,
        **more: Any,
    ) -> ExitFacts:
        """
        Collect all evidence about an end, right after it.

        Args:
            key: of the process.
            task: the task that the process was, or was a part of.
            handle: pidfd of the process, opened before its end.
            group: its memory group.
            alive_mono_s: when it was last seen alive.
            root: it was the task's root process, not a worker.
            more: fields of `ExitFacts` that were known before the end.
        """
        status = exit_status(key.pid, key.start_time, handle, self._proc)
        own = self.counts.span(group, alive_mono_s) if group is not None else Span(None, None)
        host = self.counts.span(None, alive_mono_s)
        counted = own if own.begin_mono_s is not None else host
        words = self._log.recent()
        # OOM daemons send SIGKILL or SIGTERM. After a crash or an error they need no search.
        guarded = signal_of(status) in (None, signal.SIGKILL, signal.SIGTERM) and status != 0
        notebook = root and task is not None and task.kind in KERNELS
        return ExitFacts(
            wait_status=status,
            group=group,
            group_kills_before=own.before,
            group_kills_after=own.after,
            group_kills_elsewhere=own.elsewhere,
            host_kills_before=host.before,
            host_kills_after=host.after,
            host_kills_elsewhere=max(
                host.elsewhere, kills_elsewhere(words, key.pid, alive_mono_s - _LOG_CLOCK_DRIFT_S)
            ),
            counted=_format_since(counted.begin_mono_s),
            pid=key.pid,
            kernel=lines_about_exit(
                words,
                key.pid,
                time.monotonic(),
                alive_mono_s=alive_mono_s,
                counted_mono_s=counted.begin_mono_s,
                group=group,
            ),
            kernel_log_readable=self._log.readable,
            words=None if self._folder is None else read_crash_report(self._folder, key),
            notebook=notebook,
            parent=self._parent(task) if notebook and task is not None else None,
            oom_daemons=self._find_oom_daemons() if guarded else (),
            oomd_kills=cgroups.oomd_kills(group) if guarded and group else None,
            **more,
        )

    def logged_pids(self) -> frozenset[int]:
        """Pids in the recent lines of the kernel log."""
        return frozenset(word.pid for word in self._log.recent() if word.pid is not None)

    def close(self) -> None:
        """Close the kernel log."""
        self._log.close()

    def _find_oom_daemons(self) -> tuple[str, ...]:
        now_mono_s = time.monotonic()
        # five hundred processes can end at one moment
        if now_mono_s - self._asked_mono_s >= _DAEMONS_S:
            self._asked_mono_s = now_mono_s
            names = {process.read_comm(pid, self._proc) for pid in process.pids(self._proc)}
            self._oom_daemons = tuple(name for name in _OOM_DAEMONS if name in names)
        return self._oom_daemons

    def _parent(self, task: Task) -> str | None:
        """Return the parent of a kernel if it still lives; if it has ended, pid 1 is the parent."""
        ppid = task.members[0].ppid
        return None if ppid <= 1 else process.read_comm(ppid, self._proc)


def _format_since(begin_mono_s: float | None) -> str | None:
    """Format `between 10:03:01 and 10:03:05`: from `begin_mono_s` until now."""
    if begin_mono_s is None:
        return None
    now_unix_s = time.time()
    begin = now_unix_s - (time.monotonic() - begin_mono_s)
    times = (time.strftime("%H:%M:%S", time.localtime(at)) for at in (begin, now_unix_s))
    return f"between {' and '.join(times)}"


# Reports that crashing Python processes leave (see agent/runtime/crash_report.py). Each is read
# once, then removed. The failing program wrote it, so limit its size, and use it only for facts
# about that program.

_CRASH_FOLDER = "crash-reports"
_MAX_REPORT_BYTES = 16 * 1024
_MAX_FRAMES = 8
_LONGEST_MESSAGE = 200
_FATAL = re.compile(r"^(Fatal Python error: [^\n]{1,200})", re.M)
_UNCAUGHT = re.compile(r"^Uncaught ([^\n:]{1,200}): ?([^\n]*)$", re.M)
_CURRENT = re.compile(r"^Current thread [^\n]*:\n((?:  [^\n]*\n?)*)", re.M)
_FRAME = re.compile(r'^  File "([^"\n]{1,4000})", line (\d+) in ([^\n]{1,200})$', re.M)
# Frames outside the user's code: the standard library and installed packages.
_FOREIGN = re.compile(r"(?:^<|/lib(?:64)?/python\d|/site-packages/|/dist-packages/)")


def read_crash_report(folder: str, key: ProcessKey) -> LastError | None:
    """
    Read and remove the crash report of a process; None: it left none.

    Args:
        folder: state folder, which also holds the journal.
    """
    path = os.path.join(folder, _CRASH_FOLDER, f"{key.pid}-{key.start_time}")
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid():
                return None
            data = file.read(_MAX_REPORT_BYTES)
    except OSError:
        return None
    with suppress(OSError):
        os.unlink(path)
    return parse_crash_report(data.decode("utf-8", "replace"))


def parse_crash_report(text: str) -> LastError | None:
    """Parse a crash report; None: not understood."""
    fatal = _FATAL.search(text)
    if fatal is not None:
        current = _CURRENT.search(text, fatal.end())
        return LastError(fatal=fatal[1], frames=_frames(current[1] if current else ""))
    uncaught = _UNCAUGHT.search(text)
    if uncaught is None:
        return None
    return LastError(
        error=uncaught[1].strip(),
        message=redact(uncaught[2].strip()[:_LONGEST_MESSAGE]) or None,
        frames=_frames(text[uncaught.end() :]),
    )


def _frames(text: str) -> tuple[str, ...]:
    frames = _FRAME.findall(text)[:_MAX_FRAMES]
    return tuple(f"{_frame_file(path)}:{line} in {name.strip()}" for path, line, name in frames)


def _frame_file(path: str) -> str:
    """Return the file's name; for a file outside the user's code, package and name in brackets."""
    base = os.path.basename(path)
    if not _FOREIGN.search(path):
        return base
    package = os.path.basename(os.path.dirname(path))
    return f"<{package}/{base}>" if package else f"<{base}>"


def exit_status(pid: int, start_time: int, pidfd: int | None, proc: str = "/proc") -> int | None:
    """
    The exit status of an ended process as from wait(2); None: no longer known.

    /proc has the status until the parent reaps the process. Since Linux 6.15 a pidfd has it after
    that.

    Source: include/uapi/linux/pidfd.h.

    Args:
        pid: pid of the process.
        start_time: field 22 of its stat, because another process may have the pid by now.
        pidfd: result of `open_pidfd` while the process lived.
        proc: mount point of the proc file system.
    """
    found = process.read_stat(pid, proc)
    same = found is not None and found.has_ended and found.start_ticks == start_time
    if found is not None and same and found.wait_status is not None:
        return found.wait_status
    # In this order: /proc has the status before the parent reaps the process, the pidfd after it.
    return _pidfd_exit_status(pidfd)


def _pidfd_exit_status(pidfd: int | None) -> int | None:
    """The exit status from a pidfd of a reaped process; None: not reaped, or unsupported."""
    if pidfd is None:
        return None
    import fcntl
    import struct

    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    with suppress(OSError):
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info, True)
        if struct.unpack_from("=Q", info)[0] & _PIDFD_INFO_EXIT:
            return int(struct.unpack_from("=i", info, 60)[0])
    return None
