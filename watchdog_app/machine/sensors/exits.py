"""
What can be asked at an end: the kernel, its log, Python's last words, the neighbours.
"""

from __future__ import annotations

import signal
import time
from typing import Any

from watchdog_app.base.linux import cgroups, process
from watchdog_app.core.diagnosis.evidence import concerning, kills_elsewhere
from watchdog_app.core.diagnosis.exits import signal_of
from watchdog_app.core.model.exits import ExitFacts
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind
from watchdog_app.machine.sensors import crash_reports
from watchdog_app.machine.sensors.kernel_events import KernelEvents
from watchdog_app.machine.sensors.oom_counters import OomCounters, Span

KERNELS = (TaskKind.NOTEBOOK, TaskKind.KERNEL)
_OOM_DAEMONS = ("bustd", "earlyoom", "nohang", "oomd", "systemd-oomd")
_DRIFT_S = 2.0  # the kernel log has a clock of its own
_DAEMONS_S = 10.0  # finding those that kill for memory asks every process on the machine


class ExitEvidence:
    """
    Asks them.

    Args:
        folder: of the state, where last words lie; None: nobody leaves any.
        proc: where proc is mounted.
    """

    def __init__(self, folder: str | None, proc: str = "/proc") -> None:
        self._folder = folder
        self._proc = proc
        self.counts = OomCounters(proc)  # who asks for facts has them read before
        self._log = KernelEvents()
        self._oom_daemons: tuple[str, ...] = ()
        self._asked_mono_s = float("-inf")

    def facts(
        self,
        key: ProcessKey,
        task: Task | None,
        handle: int | None,
        *,
        group: str | None,
        alive_mono_s: float,
        cpu_limit_s: float | None = None,
        root: bool = True,
        **more: Any,
    ) -> ExitFacts:
        """
        All that can be learned of an end right after it.

        Args:
            key: of the process.
            task: that it was, or was a part of.
            handle: of the process, from before its end.
            group: its memory group.
            alive_mono_s: when it was last seen alive.
            root: it was the task itself, and not a worker.
            more: fields of `ExitFacts` that were known before the end.
        """
        status = process.exit_status(key.pid, key.start_time, handle, self._proc)
        own = self.counts.of(group, alive_mono_s) if group is not None else Span(None, None)
        host = self.counts.of(None, alive_mono_s)
        counted = own if own.begin_mono_s is not None else host
        words = self._log.recent()
        # A crash or an error: whoever else runs here has nothing to do with it.
        guarded = signal_of(status) in (None, signal.SIGKILL, signal.SIGTERM) and status != 0
        notebook = root and task is not None and task.kind in KERNELS
        sample = None if task is None else next((m for m in task.members if m.key == key), None)
        return ExitFacts(
            wait_status=status,
            group=group,
            group_kills_before=own.before,
            group_kills_after=own.after,
            group_kills_elsewhere=own.elsewhere,
            host_kills_before=host.before,
            host_kills_after=host.after,
            host_kills_elsewhere=max(
                host.elsewhere, kills_elsewhere(words, key.pid, alive_mono_s - _DRIFT_S)
            ),
            counted=_between(counted.begin_mono_s),
            pid=key.pid,
            kernel=concerning(
                words,
                key.pid,
                time.monotonic(),
                alive_mono_s=alive_mono_s,
                counted_mono_s=counted.begin_mono_s,
                group=group,
            ),
            kernel_log_readable=self._log.readable,
            words=None if self._folder is None else crash_reports.read(self._folder, key),
            notebook=notebook,
            parent=self._parent(task) if notebook and task is not None else None,
            oom_daemons=self._killers() if guarded else (),
            oomd_kills=cgroups.oomd_kills(group) if guarded and group else None,
            cpu_limit_s=cpu_limit_s,
            cpu_used_s=sample.cpu_s if sample is not None and cpu_limit_s is not None else None,
            **more,
        )

    def named(self) -> frozenset[int]:
        """Pids that the kernel log has lately spoken of."""
        return frozenset(word.pid for word in self._log.recent() if word.pid is not None)

    def close(self) -> None:
        """Give back what is held open."""
        self._log.close()

    def _killers(self) -> tuple[str, ...]:
        now_mono_s = time.monotonic()
        if now_mono_s - self._asked_mono_s >= _DAEMONS_S:  # five hundred can end in one moment
            self._asked_mono_s = now_mono_s
            names = {process.comm(pid, self._proc) for pid in process.pids(self._proc)}
            self._oom_daemons = tuple(name for name in _OOM_DAEMONS if name in names)
        return self._oom_daemons

    def _parent(self, task: Task) -> str | None:
        """What started a kernel, if it lives on; its own end hands a process to pid 1."""
        ppid = task.members[0].ppid
        return None if ppid <= 1 else process.comm(ppid, self._proc)


def _between(begin_mono_s: float | None) -> str | None:
    """`between 10:03:01 and 10:03:05`: from then until now."""
    if begin_mono_s is None:
        return None
    now_unix_s = time.time()
    begin = now_unix_s - (time.monotonic() - begin_mono_s)
    times = (time.strftime("%H:%M:%S", time.localtime(at)) for at in (begin, now_unix_s))
    return f"between {' and '.join(times)}"
