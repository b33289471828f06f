"""
The watched processes of a Linux machine, found incrementally.

A process is read in full once, when its pid is new. One that is no Python is
remembered by its pid alone and asked again for its executable: often while it
is young (a shell becomes Python by exec), seldom later; that also finds a pid
which another process has taken over.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from watchdog_app.core.records import (
    Fault,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    TaskKind,
)
from watchdog_app.errors import Gone, SensorError
from watchdog_app.sensors import procfs
from watchdog_app.sensors.ancestry import nearest
from watchdog_app.sensors.command_line import identify
from watchdog_app.sensors.files import KeptFile
from watchdog_app.sensors.forks import Forks
from watchdog_app.sensors.kernels import Witnesses
from watchdog_app.sensors.process_files import (
    ProcessFiles,
    embeds_python,
    is_python,
    read_argv,
    read_exe,
    read_owner,
    read_stat,
)
from watchdog_app.sensors.process_info import Describer, Description

_SOURCE = "processes"
# A newcomer is looked at closely for so long: launchers exec, enter a memory group and set
# limits within their first moments.
_YOUNG_S = 5.0
_YOUNG_EVERY_S = 0.5
# Everything else is asked again this often: limits set by the program itself, late execs.
_REVIEW_EVERY_S = 10.0
_OTHERS_EVERY_S = 20.0
_LIST_EVERY_S = 5.0
# Two descriptors a process; the rest of the daemon needs some too.
_KEPT_SHARE = 4
_MAX_PLAIN = 1000


class _Watched:
    """A process that is sampled each tick."""

    __slots__ = ("description", "files", "review_due_mono_s", "seen", "since_mono_s")

    def __init__(self, files: ProcessFiles, description: Description, now_mono_s: float) -> None:
        self.files = files
        self.description = description
        self.since_mono_s = now_mono_s
        self.review_due_mono_s = now_mono_s + _YOUNG_EVERY_S
        self.seen = files.stat  # when it was last described or reviewed


class _Other:
    """A process that is not watched: no Python, another user's, or watchdog itself."""

    __slots__ = ("asked_mono_s", "map_read", "since_mono_s")

    def __init__(self, now_mono_s: float) -> None:
        self.since_mono_s = now_mono_s
        self.asked_mono_s = now_mono_s
        self.map_read = False


class ProcessTable:
    """Who is watched, and what they use."""

    def __init__(self, proc: str, describer: Describer, own_uid: int, own_pid: int) -> None:
        self._proc = proc
        self._describer = describer
        self._own_uid = own_uid
        self._own_pid = own_pid
        self._watched: dict[str, _Watched] = {}  # by pid as listed
        self._others: dict[str, _Other] = {}
        self._young: set[str] = set()  # of the others
        self._plain: set[str] = set()  # programs that were found to hold no interpreter
        self._queue: deque[str] = deque()  # of the others, the longest unasked first
        self._asked_mono_s: float | None = None
        # The figure in /proc/loadavg is that of our own pid namespace: no use for another /proc.
        self._loadavg = KeptFile("/proc/loadavg") if proc == "/proc" else None
        self._last_pid: int | None = None
        self._listed_mono_s: float | None = None
        self._infos: Mapping[ProcessKey, ProcessInfo] = MappingProxyType({})
        self._changed = False
        self._kept = _descriptor_limit() // (2 * _KEPT_SHARE)
        self._forks = Forks(proc, self._program_of)
        self.faults: dict[str, Fault] = {}

    @property
    def infos(self) -> Mapping[ProcessKey, ProcessInfo]:
        """The watched processes; the same object until something changes."""
        if self._changed:
            self._infos = MappingProxyType(
                {watched.files.key: watched.description.info for watched in self._watched.values()}
            )
            self._changed = False
        return self._infos

    @property
    def kernels(self) -> list[Witnesses]:
        """What is known of every kernel."""
        return [
            watched.description.kernel
            for watched in self._watched.values()
            if watched.description.kernel is not None
        ]

    def rename(self) -> None:
        """Give every kernel the name that it has now."""
        for watched in self._watched.values():
            info = self._describer.renamed(watched.description)
            if info != watched.description.info:
                watched.description = replace(watched.description, info=info)
                self._changed = True

    def update(self, now_mono_s: float, now_unix_s: float) -> None:
        """Find who is new, drop who is gone, look again at who may have changed."""
        if self._must_list(now_mono_s):
            self._list(now_mono_s, now_unix_s)
        self._ask_others(now_mono_s, now_unix_s)

    def sample(
        self, now_mono_s: float, now_unix_s: float, *, swap_in_use: bool
    ) -> tuple[ProcessSample, ...]:
        """All watched processes now. One that ends while it is read is dropped: that is normal."""
        samples = []
        keep = len(self._watched) <= self._kept
        for name, watched in list(self._watched.items()):
            files = watched.files
            try:
                sample = files.sample(swap_in_use=swap_in_use)
            except SensorError:
                self._drop(name)
                continue
            if not keep:
                files.close()
            seen, stat = watched.seen, files.stat
            if (
                now_mono_s >= watched.review_due_mono_s
                or stat.start_stack != seen.start_stack
                or stat.comm != seen.comm
                or stat.ppid != seen.ppid
            ) and not self._review(name, watched, now_mono_s, now_unix_s):
                continue
            samples.append(sample)
        return self._forks.complete(samples, now_mono_s)

    def read(self, key: ProcessKey, *, swap_in_use: bool) -> ProcessSample:
        """
        One process now, watched or not.

        Raises:
            Gone: it has ended, or its pid belongs to another process.
            Denied, Unsupported: it cannot be read now.
        """
        watched = self._watched.get(str(key.pid))
        if watched is not None and watched.files.key == key:
            return watched.files.read(swap_in_use=swap_in_use)
        files = ProcessFiles(self._proc, key, read_stat(self._proc, key.pid))
        try:
            return files.read(swap_in_use=swap_in_use)
        finally:
            files.close()

    def close(self) -> None:
        """Give the descriptors back."""
        for watched in self._watched.values():
            watched.files.close()
        if self._loadavg is not None:
            self._loadavg.close()

    def _must_list(self, now_mono_s: float) -> bool:
        """
        Whether a process may have begun since the last listing.

        Listing 300 processes costs 0.1 ms, one look at the pid that was given out last 1 us.
        """
        last_pid = None
        if self._loadavg is not None:
            with suppress(SensorError):
                last_pid = procfs.parse_last_pid(self._loadavg.read(128))
        overdue = self._listed_mono_s is None or now_mono_s - self._listed_mono_s >= _LIST_EVERY_S
        if overdue or last_pid is None or last_pid != self._last_pid:
            self._last_pid = last_pid
            self._listed_mono_s = now_mono_s
            return True
        return False

    def _list(self, now_mono_s: float, now_unix_s: float) -> None:
        try:
            listed = set(os.listdir(self._proc))
        except OSError as error:
            self.faults[_SOURCE] = Fault(
                _SOURCE,
                f"Processes are not watched: {self._proc} cannot be listed ({error.strerror}). "
                "The machine's memory is still watched.",
                "Mount the proc file system there.",
            )
            return
        self.faults.pop(_SOURCE, None)
        for name in self._watched.keys() - listed:
            self._drop(name)
        for name in self._others.keys() - listed:
            self._forget(name)
        found = False
        new = listed - self._watched.keys() - self._others.keys()
        for name in sorted((name for name in new if name.isascii() and name.isdigit()), key=int):
            found |= self._examine(name, now_mono_s, now_unix_s)
        if found:
            self._find_ancestors()

    def _examine(self, name: str, now_mono_s: float, now_unix_s: float) -> bool:
        """Look at a pid that is not watched; whether it is from now on."""
        pid = int(name)
        try:
            # Root may ask anyone at once; others are refused all but the owner of foreign ones.
            foreign = self._own_uid != 0 and read_owner(self._proc, pid) != self._own_uid
            if pid != self._own_pid and not foreign and self._holds_python(name):
                uid = read_owner(self._proc, pid)
                stat = read_stat(self._proc, pid)
                description = self._describer.describe(pid, stat, uid, now_unix_s)
                if not description.own:
                    files = ProcessFiles(self._proc, description.info.key, stat)
                    self._forget(name)
                    self._watched[name] = _Watched(files, description, now_mono_s)
                    self._changed = True
                    return True
        except Gone:
            self._forget(name)
            return False
        except SensorError:
            pass  # not for us to read: not for us to watch
        other = self._others.get(name)
        if other is None:
            self._others[name] = _Other(now_mono_s)
            self._young.add(name)
            self._queue.append(name)
        else:
            other.asked_mono_s = now_mono_s
        return False

    def _holds_python(self, name: str) -> bool:
        pid = int(name)
        if is_python(self._proc, pid):
            return True
        other = self._others.get(name)
        # Not in the first look: most newcomers are gone before their map would be read.
        if other is None or other.map_read or name in self._young:
            return False
        other.map_read = True
        exe = read_exe(self._proc, pid)
        if exe is None or exe in self._plain:
            return False
        if embeds_python(self._proc, pid, exe):
            return True
        if len(self._plain) >= _MAX_PLAIN:
            self._plain.clear()
        self._plain.add(exe)  # a browser has fifty processes of one program
        return False

    def _ask_others(self, now_mono_s: float, now_unix_s: float) -> None:
        """Ask the young again, and of the rest as many as are due since the last tick."""
        found = False
        for name in list(self._young):
            other = self._others[name]
            if now_mono_s - other.since_mono_s >= _YOUNG_S:
                self._young.discard(name)
            elif now_mono_s - other.asked_mono_s >= _YOUNG_EVERY_S:
                found |= self._examine(name, now_mono_s, now_unix_s)
        elapsed_s = 0.0 if self._asked_mono_s is None else now_mono_s - self._asked_mono_s
        # At least one a tick, so that the round is never stuck; all of them after a suspend.
        due = min(len(self._queue), 1 + int(len(self._queue) * elapsed_s / _OTHERS_EVERY_S))
        self._asked_mono_s = now_mono_s
        for _ in range(due):
            name = self._queue.popleft()
            if name not in self._others:
                continue  # gone since
            if name in self._young:
                self._queue.append(name)
                continue
            found |= self._examine(name, now_mono_s, now_unix_s)
            if name in self._others:
                self._queue.append(name)
        if found:
            self._find_ancestors()

    def _review(self, name: str, watched: _Watched, now_mono_s: float, now_unix_s: float) -> bool:
        """Look again at a watched process; False: it is no Python any more."""
        stat, info = watched.files.stat, watched.description.info
        pid = info.key.pid
        young = now_mono_s - watched.since_mono_s < _YOUNG_S
        # Spread by the pid, or all that were found together would be reviewed in one tick.
        every_s = _YOUNG_EVERY_S if young else _REVIEW_EVERY_S * (0.75 + (pid % 16) / 32)
        watched.review_due_mono_s = now_mono_s + every_s
        exe = read_exe(self._proc, pid)
        if stat.start_stack != watched.seen.start_stack or exe not in (None, info.exe):
            # Another program in the same process. (None: it cannot be read for a moment.)
            self._drop(name)
            self._examine(name, now_mono_s, now_unix_s)
            self._find_ancestors()
            return name in self._watched
        renewed = replace(
            info,
            ppid=stat.ppid,
            cgroup=self._describer.group(pid),
            rlimit_as_bytes=self._describer.rlimit_as(pid),
        )
        if info.kind is TaskKind.PYTHON and (young or stat.comm != watched.seen.comm):
            # Workers say in their title what they do: ray::IDLE becomes ray::train. Only then is
            # the command line read again: it can wait for the lock of a memory map that swaps.
            argv = read_argv(self._proc, pid)
            if argv and argv != info.argv:
                renewed = replace(renewed, argv=argv, name=identify(argv, info.exe).name)
        if renewed != info:
            watched.description = replace(watched.description, info=renewed)
            self._changed = True
        moved = stat.ppid != watched.seen.ppid
        watched.seen = stat
        if moved:
            self._find_ancestors()
        return True

    def _find_ancestors(self) -> None:
        """Tell each watched process which watched one it belongs to, through shells."""
        for watched in self._watched.values():
            info = watched.description.info
            ancestor = nearest(self._proc, info, watched.files.stat.ppid, self._info_of)
            if ancestor != info.ancestor:
                renewed = replace(info, ancestor=ancestor)
                watched.description = replace(watched.description, info=renewed)
                self._changed = True

    def _info_of(self, pid: int) -> ProcessInfo | None:
        watched = self._watched.get(str(pid))
        return watched.description.info if watched is not None else None

    def _program_of(self, pid: int) -> tuple[int, str | None] | None:
        watched = self._watched.get(str(pid))
        if watched is None or not watched.seen.start_stack:
            return None
        return watched.seen.start_stack, watched.description.info.exe

    def _drop(self, name: str) -> None:
        self._watched.pop(name).files.close()
        self._changed = True

    def _forget(self, name: str) -> None:
        self._others.pop(name, None)
        self._young.discard(name)


def _descriptor_limit() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if 0 < soft < 1 << 20 else 1 << 20
