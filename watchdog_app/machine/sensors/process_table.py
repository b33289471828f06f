"""
The watched processes of a Linux machine, found incrementally.

A process is read in full once, when its pid is new. One that is no Python is
remembered by its pid alone and asked again for its executable: often while it
is young (a shell becomes Python by exec), seldom later; that also finds a pid
which another process has taken over.

What has to wait for the process itself is read beside the loop. Who keeps us waiting is described
at a later look, and watched without a name when that takes long.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from dataclasses import replace
from types import MappingProxyType

from watchdog_app.base.errors import Gone, SensorError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import descriptor_limit
from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.machine import Fault, ProcessInfo, ProcessKey, ProcessSample, TaskKind
from watchdog_app.machine.sensors import ancestry, shown_kernels
from watchdog_app.machine.sensors.command_line import identify
from watchdog_app.machine.sensors.discovery import Discovery
from watchdog_app.machine.sensors.groups import MEMBERSHIPS, Memberships
from watchdog_app.machine.sensors.kernels import Witnesses
from watchdog_app.machine.sensors.process_files import (
    ProcessFiles,
    read_argv,
    read_exe,
    read_owner,
    read_stat,
)
from watchdog_app.machine.sensors.process_info import Describer, Description
from watchdog_app.machine.sensors.shared_pages import SharedPages
from watchdog_app.machine.sensors.watched import YOUNG_EVERY_S, YOUNG_S, Watched

_SOURCE = "processes"
# Everything else is asked again this often: limits set by the program itself, late execs.
_REVIEW_EVERY_S = 10.0
# Later than that for a process that has done nothing: it has changed nothing of itself.
_IDLE_SLACK_S = 20.0
_NEW_S = 0.03  # of a processor, for the new processes of one sample; some 50 Pythons
# Nobody grows unseen for longer, whatever the kernel makes us wait for.
_NAMELESS_AFTER_S = 2.0
# Two descriptors a process, at rest a third; the rest of the daemon needs some too.
_KEPT_SHARE = 4


class ProcessTable:
    """Who is watched, and what they use."""

    def __init__(
        self,
        proc: str,
        describer: Describer,
        own_uid: int,
        own_pid: int,
        patience_s: float | None = None,
    ) -> None:
        self._proc = proc
        self._background = Background(patience_s)
        self._describer = describer
        self._own_uid = own_uid
        self._own_pid = own_pid
        self._watched: dict[int, Watched] = {}  # by pid
        self._discovery = Discovery(proc, self._watched, self._background)
        # Pythons of which it is not known yet what they are, since when; watched or not.
        self._asked: dict[int, float] = {}
        self._memberships = Memberships(proc, patience_s)
        self._infos: Mapping[ProcessKey, ProcessInfo] = MappingProxyType({})
        self._changed = False
        self._kept = descriptor_limit() // (2 * _KEPT_SHARE)
        self._shared_pages = SharedPages(proc, self._program_of, background=self._background)
        self._find_again = False
        self._is_first = True
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
        return shown_kernels.known(self._watched.values())

    @property
    def notebooks(self) -> set[str]:
        """Paths that kernels are shown by now."""
        return shown_kernels.notebooks(self._watched.values())

    def rename(self, moved: Mapping[str, str]) -> None:
        """See `shown_kernels.rename`."""
        self._changed |= shown_kernels.rename(self._watched.values(), self._describer, moved)

    def update(self, now_mono_s: float, now_unix_s: float) -> None:
        """Find who is new, drop who is gone, look again at who may have changed."""
        changes = self._discovery.look(now_mono_s)
        if changes.there is not None:
            self._keep(changes.there)
        _show(self.faults, _SOURCE, self._discovery.fault)
        found, self._find_again = self._find_again, False
        for pid in (*self._asked, *changes.again):
            found |= self._examine(pid, now_mono_s, now_unix_s)
        # The first sample takes what it takes: there is nothing to miss yet.
        spend_s = float("inf") if self._is_first else _NEW_S
        self._is_first = False
        end_s = time.thread_time() + spend_s
        begun = self._discovery.begun
        while begun and time.thread_time() <= end_s and not self._background.spent:
            found |= self._examine(begun.popleft(), now_mono_s, now_unix_s)
        if found:
            self._find_ancestors()

    def review(self, key: ProcessKey) -> None:
        """At the next update it is asked anew for its memory group and its limits."""
        watched = self._watched.get(key.pid)
        if watched is not None and watched.files.key == key:
            watched.review_due_mono_s = float("-inf")
            self._memberships.review()

    def sample(
        self, now_mono_s: float, now_unix_s: float, *, swap_in_use: bool
    ) -> tuple[ProcessSample, ...]:
        """All watched processes now. One that ends while it is read is dropped: that is normal."""
        samples = []
        keep = len(self._watched) <= self._kept
        self._regroup(now_mono_s)
        for pid, watched in list(self._watched.items()):
            files = watched.files
            try:
                sample = files.sample(swap_in_use=swap_in_use)
            except SensorError:
                self._drop(pid)
                self._discovery.begun.append(pid)  # its pid may be another process's by now
                continue
            if not keep:
                files.close()
            seen, stat = watched.seen, files.stat
            idle = sample is watched.last and now_mono_s - watched.since_mono_s >= YOUNG_S
            slack_s = _IDLE_SLACK_S if idle else 0.0
            watched.last = sample
            if (
                now_mono_s >= watched.review_due_mono_s + slack_s
                or stat.start_stack != seen.start_stack
                or stat.comm != seen.comm
                or stat.ppid != seen.ppid
            ) and not self._review(watched, now_mono_s, now_unix_s):
                continue
            samples.append(sample)
        completed = self._shared_pages.complete(samples, now_mono_s)
        self._background.over()
        return completed

    def read(self, key: ProcessKey, *, swap_in_use: bool) -> ProcessSample:
        """
        One process now, watched or not.

        Raises:
            Gone: it has ended, or its pid belongs to another process.
            Denied, Unsupported: it cannot be read now.
        """
        watched = self._watched.get(key.pid)
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
            watched.close()
        self._discovery.close()
        self._memberships.close()

    def _keep(self, there: Container[int]) -> None:
        """Drop whoever is not among these."""
        self._background.keep(there)
        for pid in [pid for pid in self._asked if pid not in there]:
            del self._asked[pid]
        for pid in [pid for pid in self._watched if pid not in there]:
            self._drop(pid)

    def _examine(self, pid: int, now_mono_s: float, now_unix_s: float) -> bool:
        """Look at a pid of which it is not known what it is; whether it is watched from now on."""
        asked_mono_s = self._asked.pop(pid, None)
        try:
            # Root may ask anyone at once; others are refused all but the owner of foreign ones.
            foreign = self._own_uid != 0 and read_owner(self._proc, pid) != self._own_uid
            if pid != self._own_pid and not foreign and self._discovery.holds_python(pid):
                uid = read_owner(self._proc, pid)
                stat = read_stat(self._proc, pid)
                description = self._described(pid, stat, uid)
                if description is None:
                    self._discovery.forget(pid)
                    self._asked[pid] = now_mono_s if asked_mono_s is None else asked_mono_s
                    if pid in self._watched or now_mono_s - self._asked[pid] < _NAMELESS_AFTER_S:
                        return False
                    description = self._describer.outside(pid, stat, uid)
                if not description.own:
                    description = self._describer.placed(description, stat, now_unix_s)
                    self._watch(pid, stat, description, now_mono_s)
                    return True
        except Gone:
            self._discovery.forget(pid)
            self._background.forget(pid)
            return False
        except SensorError:
            pass  # not for us to read: not for us to watch
        if pid in self._watched:
            self._drop(pid)
        return False

    def _described(self, pid: int, stat: process.Stat, uid: int) -> Description | None:
        """What a process is; None: that has to wait for it."""
        # Of this program in this process: what is said of the one before an exec is not its own.
        question = Question(pid, "all", (stat.start_ticks, stat.start_stack))
        return self._background.ask(question, lambda: self._describer.describe(pid, stat, uid))

    def _watch(
        self, pid: int, stat: process.Stat, description: Description, now_mono_s: float
    ) -> None:
        self._discovery.forget(pid)
        self._changed = True
        watched = self._watched.get(pid)
        if watched is not None and watched.files.key == description.info.key:
            watched.description = description  # watched without a name until now
            self._place(watched, watched.membership)
            return
        if watched is not None:
            watched.close()
        files = ProcessFiles(self._proc, description.info.key, stat)
        self._watched[pid] = Watched(files, description, now_mono_s)

    def _review(self, watched: Watched, now_mono_s: float, now_unix_s: float) -> bool:
        """Look again at a watched process; False: it is no Python any more."""
        stat, info = watched.files.stat, watched.description.info
        pid = info.key.pid
        young = now_mono_s - watched.since_mono_s < YOUNG_S
        # Spread by the pid, or all that were found together would be reviewed in one tick.
        every_s = YOUNG_EVERY_S if young else _REVIEW_EVERY_S * (0.75 + (pid % 16) / 32)
        watched.review_due_mono_s = now_mono_s + every_s
        exe = read_exe(self._proc, pid)
        if stat.start_stack != watched.seen.start_stack or exe not in (None, info.exe):
            # Another program in the same process. (None: it cannot be read for a moment.)
            self._drop(pid)
            self._examine(pid, now_mono_s, now_unix_s)
            self._find_ancestors()
            renewed_one = self._watched.get(pid)
            if renewed_one is not None and renewed_one.files.key == watched.files.key:
                self._place(renewed_one, watched.membership)
            return pid in self._watched
        renewed = replace(
            info,
            # Pid 1 inherits orphans. Who started them tells them from its workers.
            ppid=info.ppid if stat.ppid == 1 else stat.ppid,
            cgroup=self._group_of(watched),
            started_unix_s=self._describer.started(stat, now_unix_s, info.started_unix_s),
            rlimit_as_bytes=self._describer.rlimit_as(pid),
        )
        if info.kind is TaskKind.PYTHON and (young or stat.comm != watched.seen.comm):
            # Workers say in their title what they do: ray::IDLE becomes ray::train. Only then is
            # the command line read again: it can wait for the lock of a memory map that swaps.
            argv = self._argv_of(pid)
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

    def _regroup(self, now_mono_s: float) -> None:
        """Take in which groups they are in now."""
        for pid, membership in self._memberships.read(self._watched, now_mono_s).items():
            watched = self._watched[pid]
            if membership != watched.membership:
                self._place(watched, membership)
        _show(self.faults, MEMBERSHIPS, self._memberships.fault)

    def _place(self, watched: Watched, membership: bytes | None) -> None:
        watched.membership = membership
        info = watched.description.info
        group = self._group_of(watched)
        if group != info.cgroup:
            watched.description = replace(watched.description, info=replace(info, cgroup=group))
            self._changed = True

    def _group_of(self, watched: Watched) -> str | None:
        """Folder of its group as far as that is known: it can have been made since."""
        if watched.membership is None:
            return watched.description.info.cgroup
        return self._describer.group(watched.membership)

    def _find_ancestors(self) -> None:
        """Tell each watched process which watched one it belongs to, through shells."""
        self._changed |= ancestry.tell(
            self._proc, self._watched.values(), self._info_of, self._argv_of_shell
        )

    def _argv_of(self, pid: int) -> tuple[str, ...] | None:
        """Command line of a process; None: that has to wait for it."""
        return self._background.ask(Question(pid, "words"), lambda: read_argv(self._proc, pid))

    def _argv_of_shell(self, pid: int) -> tuple[str, ...] | None:
        argv = self._argv_of(pid)
        self._find_again |= argv is None
        return argv

    def _info_of(self, pid: int) -> ProcessInfo | None:
        watched = self._watched.get(pid)
        return watched.description.info if watched is not None else None

    def _program_of(self, pid: int) -> tuple[int, str | None] | None:
        watched = self._watched.get(pid)
        if watched is None or not watched.seen.start_stack:
            return None
        return watched.seen.start_stack, watched.description.info.exe

    def _drop(self, pid: int) -> None:
        self._watched.pop(pid).close()
        self._background.forget(pid)
        self._changed = True


def _show(faults: dict[str, Fault], source: str, fault: Fault | None) -> None:
    if fault is None:
        faults.pop(source, None)
    else:
        faults[source] = fault
