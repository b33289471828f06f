"""
The watched processes of a Linux machine: found, sampled, reviewed.

A process is read in full once, when its pid is new. Reads that may block on the process run in a
thread. A process that does not answer in time is described at a later sample. After 2 s it is
watched without a name.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from watchdog_app.base.errors import Gone, SensorError, Unsupported
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import KeptFile, descriptor_limit, read_or_empty
from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.machine import Fault, ProcessInfo, ProcessKey, ProcessSample, TaskKind
from watchdog_app.machine.sensors.command_line import identify
from watchdog_app.machine.sensors.discovery import Discovery
from watchdog_app.machine.sensors.groups import Memberships
from watchdog_app.machine.sensors.identity import (
    MOST_READS,
    TICKS_PER_S,
    Describer,
    LoadedReader,
    read_argv,
    read_exe,
    read_loaded,
    read_owner,
)
from watchdog_app.machine.sensors.notebooks import Description, KernelFacts
from watchdog_app.machine.sensors.shared_pages import SharedPages

_YOUNG_S = 5.0
_YOUNG_EVERY_S = 0.5
# Properties that a sample does not show are read again this often: limits that the program sets
# itself, late execs.
_REVIEW_EVERY_S = 10.0
# Extra delay for an idle process: it has not changed its own properties.
_IDLE_SLACK_S = 50.0
_NEW_BUDGET_S = 0.03  # of CPU time for the new processes of one sample: some 50 Pythons
# After this time watch a process without a name, so that its growth is seen even if the kernel
# blocks the reads.
_UNNAMED_AFTER_S = 2.0
# Use at most a quarter of the descriptor limit, two per process; the rest of the daemon needs some
# too.
_KEPT_OPEN_SHARE = 4
_MAX_DEPTH = 64  # a longer chain is a loop of reused pids
# Change of the shared size after which the status file is read again. It splits shared pages by
# type, but costs 10 us: ten times as much as statm, which has the total.
_SHARED_STEP_BYTES = 4 << 20


class ProcessFiles:
    """
    The files of one process that each sample reads: /proc/PID/stat and statm.

    They stay open. A read of an open file fails once its process has ended, even if the pid is in
    use again.

    Args:
        proc: where the proc file system is mounted.
        key: of the process.
    """

    def __init__(self, proc: str, key: ProcessKey) -> None:
        self.key = key
        self.stat: process.Stat | None = None  # as last read
        self._status = f"{proc}/{key.pid}/status"
        self._stat = KeptFile(f"{proc}/{key.pid}/stat")
        self._statm = KeptFile(f"{proc}/{key.pid}/statm")
        self._last: ProcessSample | None = None
        self._data = (b"", False)  # stat line and swap_in_use that `_last` was made from
        self._shmem: int | None = None
        self._shared = 0  # shared bytes when `_shmem` was read

    def sample(self, *, swap_in_use: bool) -> ProcessSample:
        """
        Read the process; return the last sample if it cannot be read for a moment.

        Args:
            swap_in_use: whether the machine has anything in swap; if not, no process has.

        Raises:
            Gone: it has ended, or its pid belongs to another process.
            Denied, Unsupported: it cannot be read, and never was.
        """
        try:
            # An idle process shows exactly the same line, which includes faults, pages and ticks.
            # So its other values have not changed either.
            data = (self._stat.read(2048), swap_in_use)
            if data != self._data or self._last is None:
                self._last = self._parse(data[0], swap_in_use=swap_in_use)
                self._data = data
        except Gone:
            self.close()
            raise
        except SensorError:
            # A temporary error, such as a lack of descriptors or a half-written line: the process
            # has not ended.
            if self._last is None:
                raise
        return self._last

    def read(self, *, swap_in_use: bool) -> ProcessSample:
        """
        Read the process now, without a fallback to an older sample, as actions need it.

        Raises:
            Gone, Denied, Unsupported: it has ended, or cannot be read.
        """
        return self._parse(self._stat.read(2048), swap_in_use=swap_in_use)

    def close(self) -> None:
        """Close the descriptors; the next sample opens them again."""
        self._stat.close()
        self._statm.close()

    def _parse(self, data: bytes, *, swap_in_use: bool) -> ProcessSample:
        pid = self.key.pid
        try:
            stat = process.Stat(data)
            # If only the main thread has ended, the state is Z, but the process lives.
            is_zombie = stat.has_ended and stat.threads <= 1
            if stat.start_ticks != self.key.start_time or is_zombie:
                raise Gone(f"process {pid} has ended")
            statm = process.Statm(self._statm.read(256))
        except ValueError as error:
            raise Unsupported(
                f"the files of process {pid} cannot be understood: {error}"
            ) from error
        self.stat = stat
        status = b""
        if swap_in_use or abs(statm.shared_bytes - self._shared) >= _SHARED_STEP_BYTES:
            status = read_or_empty(self._status)
        if status:
            self._shmem = process.status_bytes(status, b"RssShmem")
            self._shared = statm.shared_bytes
        return ProcessSample(
            self.key,
            stat.ppid,
            stat.state,
            statm.resident_bytes,
            statm.shared_bytes,
            process.status_bytes(status, b"VmSwap") if swap_in_use else 0,
            stat.vsize_bytes,
            stat.cpu_ticks / TICKS_PER_S,
            shmem_bytes=self._shmem,
        )


class _Watched:
    """A process that is sampled."""

    def __init__(
        self, proc: str, stat: process.Stat, description: Description, now_mono_s: float
    ) -> None:
        self.info = description.info
        self.kernel = description.kernel
        self.files = ProcessFiles(proc, self.info.key)
        self.stat = stat  # of the last sample
        self.reviewed = stat  # of the last review
        self.since_mono_s = now_mono_s
        self.review_due_mono_s = now_mono_s + _YOUNG_EVERY_S
        self.last: ProcessSample | None = None  # the same object while the process is idle
        self.membership: bytes | None = None  # contents of its cgroup file; None: not read yet
        self.loaded = LoadedReader()

    def update(self, **changes: Any) -> bool:
        """Set fields of `info`; return whether any of them changed."""
        info = replace(self.info, **changes)
        changed = info != self.info
        self.info = info
        return changed

    def is_young(self, now_mono_s: float) -> bool:
        return now_mono_s - self.since_mono_s < _YOUNG_S

    def is_due(self, now_mono_s: float, *, idle: bool) -> bool:
        """
        Return whether the process must be reviewed.

        Args:
            now_mono_s: of the sample.
            idle: it has done nothing since the previous sample.
        """
        stat, reviewed = self.stat, self.reviewed
        slack_s = _IDLE_SLACK_S if idle and not self.is_young(now_mono_s) else 0.0
        return (
            now_mono_s >= self.review_due_mono_s + slack_s
            or stat.start_stack != reviewed.start_stack
            or stat.comm != reviewed.comm
            or stat.ppid != reviewed.ppid
        )


class ProcessTable:
    """
    The watched processes and their resource use.

    Args:
        proc: where the proc file system is mounted.
        describer: reads a process in full.
        own_uid: user whose processes are watched; 0: all users.
        own_pid: never watched.
        patience_s: how long a sample waits for one process; None: until it answers.
    """

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
        self._watched: dict[int, _Watched] = {}  # by pid
        self._discovery = Discovery(proc, self._watched, self._background)
        # Python processes without a description yet, watched or not: since when.
        self._undescribed: dict[int, float] = {}
        self._memberships = Memberships(proc, patience_s)
        self._infos: Mapping[ProcessKey, ProcessInfo] = MappingProxyType({})
        self._changed = False
        self._max_kept_open = descriptor_limit() // (2 * _KEPT_OPEN_SHARE)
        self._shared_pages = SharedPages(proc, self._find_program, background=self._background)
        # a shell has not answered, so some process's ancestor is unknown
        self._ancestors_unknown = False
        # unlimited at the first sample, when there is nothing to be late for
        self._new_budget_s = float("inf")

    @property
    def faults(self) -> dict[str, Fault]:
        """Faults in force, by source."""
        found = (self._discovery.fault, self._memberships.fault)
        return {fault.source: fault for fault in found if fault is not None}

    @property
    def infos(self) -> Mapping[ProcessKey, ProcessInfo]:
        """The watched processes, by key; the same object until something changes."""
        if self._changed:
            self._infos = MappingProxyType(
                {watched.info.key: watched.info for watched in self._watched.values()}
            )
            self._changed = False
        return self._infos

    @property
    def kernels(self) -> list[KernelFacts]:
        """What is known of every kernel."""
        return [each.kernel for each in self._watched.values() if each.kernel is not None]

    def rename_kernels(self) -> None:
        """Set every kernel's current name."""
        rename = self._describer.servers.with_current_name
        for each in self._watched.values():
            info, each.info = each.info, rename(each.info, each.kernel)
            self._changed |= info != each.info

    def update(self, now_mono_s: float, now_unix_s: float) -> None:
        """
        Find new processes, drop ended ones, and check known ones that may have changed.

        Args:
            now_mono_s: monotonic time of the sample.
            now_unix_s: the same time by the wall clock.
        """
        changes = self._discovery.scan(now_mono_s)
        if changes.existing is not None:
            self._drop_ended(changes.existing)
        found, self._ancestors_unknown = self._ancestors_unknown, False
        for pid in (*self._undescribed, *changes.recheck):
            found |= self._examine(pid, now_mono_s, now_unix_s)
        end_s, self._new_budget_s = time.thread_time() + self._new_budget_s, _NEW_BUDGET_S
        begun = self._discovery.new_pids
        while begun and time.thread_time() <= end_s and not self._background.is_exhausted:
            found |= self._examine(begun.popleft(), now_mono_s, now_unix_s)
        if found:
            self._find_ancestors()

    def sample(
        self, now_mono_s: float, now_unix_s: float, *, swap_in_use: bool
    ) -> tuple[ProcessSample, ...]:
        """
        Sample all watched processes. One that ends during the read is dropped, which is normal.

        Args:
            now_mono_s: monotonic time of the sample.
            now_unix_s: the same time by the wall clock.
            swap_in_use: whether the machine has anything in swap.
        """
        samples = []
        keep = len(self._watched) <= self._max_kept_open
        self._update_groups(now_mono_s)
        for pid, watched in list(self._watched.items()):
            files = watched.files
            try:
                sample = files.sample(swap_in_use=swap_in_use)
            except SensorError:
                self._drop(pid)
                self._discovery.new_pids.append(pid)  # another process may have this pid by now
                continue
            if not keep:
                files.close()
            idle = sample is watched.last
            watched.last, watched.stat = sample, files.stat or watched.stat
            due = watched.is_due(now_mono_s, idle=idle)
            if not due or self._review(watched, now_mono_s, now_unix_s):
                samples.append(sample)
        self._read_loaded(now_unix_s)
        completed = self._shared_pages.add_cow_bytes(samples, now_mono_s)
        self._background.end_sample()
        return completed

    def review(self, key: ProcessKey) -> None:
        """Read memory group and limits of a process again at the next update."""
        watched = self._watched.get(key.pid)
        if watched is not None and watched.info.key == key:
            watched.review_due_mono_s = float("-inf")
            self._memberships.review()

    def read(self, key: ProcessKey, *, swap_in_use: bool) -> ProcessSample:
        """
        Read one process now, watched or not.

        Args:
            key: of the process.
            swap_in_use: whether the machine has anything in swap.

        Raises:
            Gone: it has ended, or its pid belongs to another process.
            Denied, Unsupported: it cannot be read now.
        """
        watched = self._watched.get(key.pid)
        if watched is not None and watched.info.key == key:
            return watched.files.read(swap_in_use=swap_in_use)
        files = ProcessFiles(self._proc, key)
        try:
            return files.read(swap_in_use=swap_in_use)
        finally:
            files.close()

    def close(self) -> None:
        """Close the descriptors."""
        for watched in self._watched.values():
            watched.files.close()
        self._discovery.close()
        self._memberships.close()

    def _drop_ended(self, running: Container[int]) -> None:
        """Drop the processes that are not in `running`."""
        self._background.drop_ended(running)
        self._undescribed = {
            pid: since for pid, since in self._undescribed.items() if pid in running
        }
        for pid in [pid for pid in self._watched if pid not in running]:
            self._drop(pid)

    def _examine(self, pid: int, now_mono_s: float, now_unix_s: float) -> bool:
        """Find out what a pid is; return whether it is watched from now on."""
        asked_mono_s = self._undescribed.pop(pid, now_mono_s)
        try:
            # Root checks any process at once. For other users, drop other owners' processes first:
            # the kernel shows only who owns those.
            foreign = self._own_uid != 0 and read_owner(self._proc, pid) != self._own_uid
            if pid != self._own_pid and not foreign and self._discovery.is_python(pid):
                uid, stat = read_owner(self._proc, pid), self._read_stat(pid)
                description = self._describe(pid, stat, uid)
                if description is None:
                    self._discovery.forget(pid)
                    self._undescribed[pid] = asked_mono_s
                    if pid in self._watched or now_mono_s - asked_mono_s < _UNNAMED_AFTER_S:
                        return False
                    description = self._describer.describe(pid, stat, uid, waits=False)
                if not description.own:
                    description = self._describer.complete(description, stat, now_unix_s)
                    self._watch(pid, stat, description, now_mono_s)
                    return True
        except Gone:
            self._discovery.forget(pid)
            self._background.drop(pid)
            return False
        except SensorError:
            pass  # this user may not read it, so it is not watched
        if pid in self._watched:
            self._drop(pid)
        return False

    def _read_stat(self, pid: int) -> process.Stat:
        stat = process.read_stat(pid, self._proc)
        if stat is None:
            raise Gone(f"process {pid} has ended")
        return stat

    def _describe(self, pid: int, stat: process.Stat, uid: int) -> Description | None:
        """Describe a process; None: the answer has not come yet."""
        # The key includes the start of the program: a description from before an exec does not
        # apply after it.
        question = Question(pid, "all", (stat.start_ticks, stat.start_stack))
        return self._background.ask(question, lambda: self._describer.describe(pid, stat, uid))

    def _watch(
        self, pid: int, stat: process.Stat, description: Description, now_mono_s: float
    ) -> None:
        self._discovery.forget(pid)
        self._changed = True
        watched = self._watched.get(pid)
        if watched is not None and watched.info.key == description.info.key:
            # The process was watched without a name until now.
            watched.info, watched.kernel = description.info, description.kernel
            self._set_membership(watched, watched.membership)
            return
        if watched is not None:
            watched.files.close()
        self._watched[pid] = _Watched(self._proc, stat, description, now_mono_s)

    def _review(self, watched: _Watched, now_mono_s: float, now_unix_s: float) -> bool:
        """Review a watched process; return False if it is not Python any more."""
        stat, before, info = watched.stat, watched.reviewed, watched.info
        pid, young = info.key.pid, watched.is_young(now_mono_s)
        # Vary the interval by pid. Otherwise processes that were found together would all be
        # reviewed in one sample.
        every_s = _YOUNG_EVERY_S if young else _REVIEW_EVERY_S * (0.75 + (pid % 16) / 32)
        watched.review_due_mono_s = now_mono_s + every_s
        exe = read_exe(self._proc, pid)
        if stat.start_stack != before.start_stack or exe not in (None, info.exe):
            # The process has executed another program. (exe is None: it cannot be read for a
            # moment.)
            self._drop(pid)
            self._examine(pid, now_mono_s, now_unix_s)
            self._find_ancestors()
            renewed = self._watched.get(pid)
            if renewed is not None and renewed.info.key == info.key:
                self._set_membership(renewed, watched.membership)
            return pid in self._watched
        watched.reviewed = stat
        self._changed |= watched.update(
            # Pid 1 adopts orphans. Keep the original parent: it distinguishes orphans from workers
            # of pid 1.
            ppid=info.ppid if stat.ppid == 1 else stat.ppid,
            cgroup=self._find_group(watched),
            started_unix_s=self._describer.start_unix_s(stat, now_unix_s, info.started_unix_s),
            rlimit_as_bytes=self._describer.rlimit_as(pid),
        )
        if info.kind is TaskKind.PYTHON and (young or stat.comm != before.comm):
            # Workers show their activity in their title: ray::IDLE becomes ray::train. Read the
            # command line only then: the read can wait for the lock of a memory map that swaps.
            argv = self._read_argv(pid)
            if argv and argv != info.argv:
                self._changed |= watched.update(argv=argv, name=identify(argv, info.exe).name)
        if stat.ppid != before.ppid:
            self._find_ancestors()
        return True

    def _read_loaded(self, now_unix_s: float) -> None:
        """Read what a few processes have loaded: new ones, and those with more mapped files."""
        # The first sample may take its time.
        most, asked = MOST_READS if self._infos else len(self._watched), 0
        for pid, watched in self._watched.items():
            age_s = now_unix_s - (watched.info.started_unix_s or now_unix_s)
            shared_bytes = None if watched.last is None else watched.last.shared_bytes
            if not watched.loaded.is_due(age_s, shared_bytes):
                continue
            read = partial(read_loaded, self._proc, watched.info)
            found = self._background.ask(Question(pid, "loaded"), read)
            if found is not None:
                watched.loaded.record(found, shared_bytes)
                self._changed |= watched.update(
                    python=found.python, framework=found.framework, agent_waits=found.agent_waits
                )
            asked += 1
            if asked >= most:
                return

    def _update_groups(self, now_mono_s: float) -> None:
        """Read the memory groups of all watched processes and store those that changed."""
        for pid, membership in self._memberships.read(self._watched, now_mono_s).items():
            watched = self._watched[pid]
            if membership != watched.membership:
                self._set_membership(watched, membership)

    def _set_membership(self, watched: _Watched, membership: bytes | None) -> None:
        watched.membership = membership
        self._changed |= watched.update(cgroup=self._find_group(watched))

    def _find_group(self, watched: _Watched) -> str | None:
        """
        Return the folder of the process's group, looked up again: it may have been created since.
        """
        if watched.membership is None:
            return watched.info.cgroup
        return self._describer.layout.locate(watched.membership)

    def _find_ancestors(self) -> None:
        """Set each watched process's nearest watched ancestor, skipping shells in between."""
        for each in self._watched.values():
            self._changed |= each.update(ancestor=self._ancestor(each))

    def _ancestor(self, watched: _Watched) -> ProcessKey | None:
        """Find the nearest watched ancestor of the same user; None: there is not one."""
        pid = watched.stat.ppid
        for _ in range(_MAX_DEPTH):
            if pid <= 1:
                return None
            above = self._watched.get(pid)
            if above is not None:
                related = above.info.uid == watched.info.uid and above is not watched
                return above.info.key if related else None
            between = process.read_stat(pid, self._proc)
            if between is None:
                return None
            # A terminal's shell leads a session of its own. A command typed there is a separate
            # task, even if the terminal is a Python program. `sh -c` is not such a shell, although
            # a notebook's `!command` gives it a terminal.
            if between.leads_terminal:
                argv = self._read_argv(pid)
                self._ancestors_unknown |= argv is None
                if "-c" not in (argv or ())[1:2]:
                    return None
            pid = between.ppid
        return None

    def _read_argv(self, pid: int) -> tuple[str, ...] | None:
        """Read the command line of a process; None: the answer has not come yet."""
        return self._background.ask(Question(pid, "words"), lambda: read_argv(self._proc, pid))

    def _find_program(self, pid: int) -> tuple[int, str | None] | None:
        watched = self._watched.get(pid)
        if watched is None or not watched.reviewed.start_stack:
            return None
        return watched.reviewed.start_stack, watched.info.exe

    def _drop(self, pid: int) -> None:
        self._watched.pop(pid).files.close()
        self._background.drop(pid)
        self._changed = True
