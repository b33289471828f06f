"""
A watched process, and what such processes are asked while the machine is only glanced at.

Nothing else tells that a process was moved to another memory group, or has set itself a limit. The
first is asked of all, beside the loop; the second can only have been done by who computes.
"""

from __future__ import annotations

from collections.abc import Mapping

from watchdog_app.base.errors import SensorError
from watchdog_app.core.model.machine import ProcessSample
from watchdog_app.machine.sensors.bystanders import YOUNG_EVERY_S
from watchdog_app.machine.sensors.memberships import Memberships
from watchdog_app.machine.sensors.process_files import TICKS_PER_S, ProcessFiles
from watchdog_app.machine.sensors.process_info import Describer, Description

_COMPUTING = 0.1  # of a processor
_COMPUTING_EVERY_S = 15.0
_WORTH_CPU_S = 0.5  # of a processor: who has used less since is not asked


class Watched:
    """A process that is sampled each tick."""

    __slots__ = (
        "asked_cpu_s",
        "description",
        "files",
        "last",
        "membership",
        "review_due_mono_s",
        "seen",
        "since_mono_s",
    )

    def __init__(self, files: ProcessFiles, description: Description, now_mono_s: float) -> None:
        self.files = files
        self.description = description
        self.since_mono_s = now_mono_s
        self.review_due_mono_s = now_mono_s + YOUNG_EVERY_S
        self.seen = files.stat  # when it was last described or reviewed
        self.asked_cpu_s = files.stat.cpu_ticks / TICKS_PER_S  # ... or asked for its limits
        self.last: ProcessSample | None = None  # the same object while it does nothing
        self.membership: bytes | None = None  # of which groups; None: not known yet

    def close(self) -> None:
        """Give the descriptors back."""
        self.files.close()


class AskedAtRest:
    """Whom of the watched processes a glance asks, and for what."""

    def __init__(self, describer: Describer, memberships: Memberships) -> None:
        self._describer = describer
        self._memberships = memberships
        self._due_mono_s: float | None = None  # None: nobody computes

    def changed(self, watched: Mapping[int, Watched], now_mono_s: float, *, keep: bool) -> bool:
        """Both at once: what a glance asks."""
        if self.regrouped(watched, now_mono_s):
            return True
        due_mono_s = self._due_mono_s
        return (
            due_mono_s is not None
            and now_mono_s >= due_mono_s
            and self.limited(watched, now_mono_s, keep=keep)
        )

    def regrouped(self, watched: Mapping[int, Watched], now_mono_s: float) -> bool:
        """Whether a process has been moved to another memory group."""
        found = False
        for pid, membership in self._memberships.read(watched, now_mono_s).items():
            each = watched[pid]
            if membership != each.membership:
                # The review at the next look finds the folder.
                each.membership = membership
                found = _review(each)
        return found

    def sampled(self, *, computing: bool, now_mono_s: float) -> None:
        """A look has sampled all of them."""
        self._due_mono_s = now_mono_s + _COMPUTING_EVERY_S if computing else None

    def limited(self, watched: Mapping[int, Watched], now_mono_s: float, *, keep: bool) -> bool:
        """
        Whether a process that computes has set itself another limit.

        As long as somebody does, whoever does is asked four times a minute: it costs a tenth of
        a look at everything, which is what this is instead of.

        Args:
            watched: all of them.
            now_mono_s: now.
            keep: whether there are descriptors enough to keep theirs open.
        """
        if self._due_mono_s is None or now_mono_s < self._due_mono_s:
            return False
        self._due_mono_s = now_mono_s + _COMPUTING_EVERY_S
        found = False
        for each in watched.values():
            try:
                cpu_s = each.files.cpu_s()
            except SensorError:
                continue  # it has ended: the next look says so
            if not keep:
                each.files.close()
            if cpu_s - each.asked_cpu_s < _WORTH_CPU_S:
                continue
            each.asked_cpu_s = cpu_s
            limit = self._describer.rlimit_as(each.files.key.pid)
            if limit != each.description.info.rlimit_as_bytes:
                found = _review(each)
        return found


def computes(before: ProcessSample | None, now: ProcessSample, elapsed_s: float) -> bool:
    """Whether a process has used much of a processor between two looks."""
    return before is not None and now.cpu_s - before.cpu_s > _COMPUTING * elapsed_s


def _review(watched: Watched) -> bool:
    watched.review_due_mono_s = float("-inf")
    return True
