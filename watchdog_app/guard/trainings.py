"""
The trainings under a guard that can be saved, and the saving of them: pages, copies, questions.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial

from watchdog_app.base.linux.process import comm
from watchdog_app.guard import jobs
from watchdog_app.guard.jobs import Job
from watchdog_app.guard.policy import Copies
from watchdog_app.rescue.segment import segment_folder
from watchdog_app.rescue.segment.segment import Segment, SegmentDamaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Watcher(Protocol):
        """Whoever polls for us."""

        def watch(self, fd: int, then: Any) -> None:
            """Call `then` when `fd` is readable."""

        def forget(self, fd: int) -> None:
            """Watch it no longer."""


_IN_STEP = frozenset(("in_step", "stale"))
_ASKABLE = frozenset(("none", "damaged", "failed"))
_MOST_PAGES = 64
_PACE_S = 2.0
_SLOW_STEP_S = 0.2  # a table takes a millisecond at most


class Trainings:
    """
    Those of one guard.

    `copies`: what came of the last attempt; `rescues`: pid, path and step of what was saved.
    """

    def __init__(self, folder: str | None, *, eager: bool = False) -> None:
        """
        Args:
            folder: of their pages.
            eager: nothing refuses what cannot fit, so that every step may be the last.
        """
        self.copies = Copies(0, 0, 0)
        self.rescues: list[dict[str, Any]] = []
        self.saved_unix_s: float | None = None
        self._folder = folder
        self._eager = eager
        self._pages: dict[str, Segment] = {}  # by name
        self._jobs: list[Job] = []
        self._results: dict[int, dict[str, Any]] = {}
        self._unable: list[int] = []
        self._told: list[Job] = []
        self._asking = False
        self._paces: dict[str, tuple[int, float, bool]] = {}  # sequence, when, slow
        self._watcher: Watcher | None = None

    @property
    def agents(self) -> int:
        """Processes that publish themselves."""
        return len(self._owned())

    def state_bytes(self) -> int:
        """What a save of all of them would write, as they have published; 0: nothing yet."""
        return sum(each.state_bytes for each in self._pages.values())

    def open(self) -> None:
        """Have a page ready for the first agent."""
        if self._folder is not None:
            with suppress(OSError):
                segment_folder.prepare(self._folder)
                segment_folder.make_spare(self._folder)

    def look(self, pids: list[int], every_batch: bool) -> None:
        """New pages and ended ones; how often they are to be filled, and who will read."""
        if self._folder is None:
            return
        try:
            names = [name for name in os.listdir(self._folder) if name.count(".") == 1]
        except OSError:
            return
        names = [name for name in names if name.replace(".", "").isdigit()][:_MOST_PAGES]
        alive = {str(pid) for pid in pids}
        for name in names:
            if name.split(".")[0] not in alive:
                self._let_go(name)
                with suppress(OSError):
                    os.unlink(os.path.join(self._folder, name))
            elif name not in self._pages:
                with suppress(OSError, SegmentDamaged):
                    self._pages[name] = Segment(os.path.join(self._folder, name))
        now, reader = time.monotonic(), _reader()
        for name, found in self._pages.items():
            found.permit(reader)
            found.ask_eagerly(self._eager)
            found.ask_every_batch(every_batch or self._is_slow(name, found.sequence, now))
        with suppress(OSError):
            segment_folder.make_spare(self._folder)

    def copy(self, pids: list[int], watcher: Watcher) -> None:
        """Begin to copy every training in the guard, which stands still."""
        self._drop_jobs()
        self._watcher = watcher
        self.look(pids, True)
        self._results = {}
        self._asking = False
        for pid, start_time, path in self._owned():
            self._begin(pid, partial(jobs.copy, pid, start_time, path), jobs.COPY_DEADLINE_S)

    def ask(self, watcher: Watcher) -> None:
        """Have the daemon ask those that cannot be copied at any boundary."""
        self._watcher = watcher
        self._asking = bool(self._unable)
        for pid in self._unable:
            self._begin(pid, partial(jobs.ask, pid), jobs.ASK_DEADLINE_S)

    def tell_daemon(self, watcher: Watcher) -> None:
        """There is news of the guard: in a child, for a daemon may be slow or stopped."""
        with suppress(OSError):
            job = Job(0, jobs.tell, jobs.TELL_DEADLINE_S)
            self._watcher = watcher
            self._told.append(job)
            watcher.watch(job.fd, lambda: None)

    def tidy(self, now: float) -> None:
        """Collect the children that told the daemon."""
        for job in list(self._told):
            fd = job.fd
            if job.look(now):
                self._told.remove(job)
                if self._watcher is not None:
                    self._watcher.forget(fd)

    def finished(self, now: float) -> Copies | None:
        """What came of `copy`; None while it goes on."""
        if not self._look_at_jobs(now):
            return None
        states = {pid: str(each.get("state", "")) for pid, each in self._results.items()}
        self._unable = [pid for pid, state in states.items() if state in _ASKABLE]
        waiting = [pid for pid, state in states.items() if state in _IN_STEP]
        return self._count(len(waiting) + len(self._unable))

    def all_fresh(self) -> bool:
        """Every training has published where it stands, as far as one can see from here."""
        return bool(self._pages) and all(each.fresh for each in self._pages.values())

    def at_boundary(self) -> bool:
        """Every training that could be copied at a boundary is at one, as far as one can see."""
        waiting = [
            self._pages.get(f"{pid}.{start_time}")
            for pid, start_time, _ in self._owned()
            if str(self._results.get(pid, {}).get("state")) in _IN_STEP
        ]
        return bool(waiting) and all(each is not None and each.fresh for each in waiting)

    def all_answered(self, now: float) -> bool:
        """Everybody that was asked has answered, and nobody else is waited for."""
        if not self._asking or not self._look_at_jobs(now):
            return False
        self._asking = False
        self._count(0)
        return not any(str(each.get("state")) in _IN_STEP for each in self._results.values())

    def close(self) -> None:
        """Give everything back, the folder of pages too."""
        self._drop_jobs()
        self.tidy(float("inf"))
        for name in list(self._pages):
            self._let_go(name)
        if self._folder is None:
            return
        with suppress(OSError):
            for name in os.listdir(self._folder):
                os.unlink(os.path.join(self._folder, name))
            os.rmdir(self._folder)

    def _is_slow(self, name: str, sequence: int, now: float) -> bool:
        """
        Its steps are so long that a table after each costs nothing that could be measured.

        So a jump from rest, which nobody sees coming, finds a fresh one.
        """
        before, at, slow = self._paces.get(name, (sequence, now, False))
        if now - at >= _PACE_S:
            steps = max(0, sequence - before) / 2
            slow = 0 < steps and (now - at) / steps >= _SLOW_STEP_S
        elif name in self._paces:
            return slow
        self._paces[name] = (sequence, now, slow)
        return slow

    def _owned(self) -> list[tuple[int, int, str]]:
        found = []
        for name, each in self._pages.items():
            owner = each.owner
            if owner is not None and name == f"{owner[0]}.{owner[1]}":
                found.append((*owner, each.path))
        return found

    def _begin(self, pid: int, work: Any, deadline_s: float) -> None:
        try:
            job = Job(pid, work, deadline_s)
        except OSError as error:
            self._results[pid] = {"ok": False, "state": "failed", "why": f"no process: {error}"}
            return
        self._jobs.append(job)
        if self._watcher is not None:
            self._watcher.watch(job.fd, lambda: None)  # to wake the loop; `look` reads it

    def _look_at_jobs(self, now: float) -> bool:
        for job in list(self._jobs):
            fd = job.fd
            if job.look(now):
                self._jobs.remove(job)
                if self._watcher is not None:
                    self._watcher.forget(fd)
                self._arrived(job)
        return not self._jobs

    def _arrived(self, job: Job) -> None:
        result = job.result or {}
        self._results[job.pid] = result
        if result.get("ok"):
            self.saved_unix_s = time.time()
            saved = {"pid": job.pid, "path": result.get("path"), "step": result.get("step")}
            self.rescues.append(saved)

    def _count(self, in_step: int) -> Copies:
        saved = sum(1 for each in self._results.values() if each.get("ok"))
        why = next(
            (str(each.get("why", "")) for each in self._results.values() if not each.get("ok")), ""
        )
        self.copies = Copies(len(self._results), saved, in_step, why[:300])
        return self.copies

    def _drop_jobs(self) -> None:
        for job in self._jobs:
            if self._watcher is not None:
                self._watcher.forget(job.fd)
            job.drop()
        self._jobs = []

    def _let_go(self, name: str) -> None:
        self._paces.pop(name, None)
        found = self._pages.pop(name, None)
        if found is not None:
            found.close()


def _reader() -> int:
    """
    Who is to be permitted to read a training, and with it all that it starts (Yama).

    The standby, where we are its child: every later supervisor is one, too, and a training that
    stands still can permit nobody else.
    """
    parent = os.getppid()
    return parent if (comm(parent) or "").startswith("watchdog-") else os.getpid()
