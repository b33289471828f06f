"""
Publish at step boundaries the state that a rescue would hold, within a small share of the time.

Publishing may take half a percent of the time. It may take two percent if the watcher refuses no
jump of memory (`watchdog exec --no-refuse`), because any step may then be the last one. When a
limit is near, the watcher asks for a snapshot after every batch. Each step increments the sequence
number, so that the watcher recognises a stale snapshot.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.snapshot.change_marker import (
    Bytes,
    ChangeMarker,
    FullState,
    Refresh,
    Refreshed,
)
from watchdog_app.agent.snapshot.contents import CannotPublish, Sorter
from watchdog_app.base.errors import WatchdogError
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.segment import segment_folder
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.segment import ENVIRONMENT, Segment
from watchdog_app.rescue.segment.snapshot import Marker, News

_SHARE = 0.004  # share of the time for snapshots
_SHARE_EAGER = 0.02  # the same under `--no-refuse`
_CREDIT_S = 1.0  # unused time expires after this many seconds
_SHARE_WHOLE = 0.001  # additional share for full captures, which are rarely needed
_WHOLE_EVERY_S = 2.0
_SET_PTRACER = 0x59616D61  # prctl(2)
_MOST_PID = 2**22  # the kernel's PID_MAX_LIMIT

Parts = tuple[bytes, bytes, bytes, Bytes, Bytes]  # see `tables.write`


class Publisher:
    """
    Publishes one training to its segment; never raises an error of its own.

    The thread of the training calls it.
    """

    def __init__(
        self,
        page: Segment,
        take: Callable[[int], FullState],
        about: Mapping[str, Any],
        marker: ChangeMarker,
        also: Callable[[], Mapping[str, Any]],
    ) -> None:
        """
        Args:
            page: segment of this process; another training of the process must not use it.
            take: captures the state that a rescue of a step would hold, without its bytes.
            about: `directory` and `keep` of its rescues.
            marker: marker of the framework.
            also: gives the values of the meta that are not the framework's and change each step.
        """
        self._page = page
        self._capture = take
        self._about = about
        self._changing_meta = also
        self._marker = marker
        self._guard = Guard("publishing for a save from outside")
        self._sorter = Sorter()
        self._last_written: _WrittenState | None = None
        self._next_whole_s = 0.0
        self._next_s = 0.0  # earliest time of the next snapshot, by `time.perf_counter`
        self._pid = os.getpid()
        self._refresh_prepared = False
        # Two threads that wrote one snapshot would publish a mixture of two states.
        self._publishing = threading.Lock()
        self._last_boundary = (-1, -1)  # number and step of the last boundary
        self.ended = False
        me = this_process()
        page.begin(me.pid, me.start_time)
        if not marker.is_supported:
            page.set_reason("it cannot be copied from outside")
        self._marker.begin(self.step_begins)

    @property
    def asked(self) -> bool:
        """Whether a limit is near and the watcher asks for a snapshot after every step."""
        return self._page.asked

    @property
    def due(self) -> bool:
        """Whether to publish at the next boundary, not only to count it."""
        asked = self._page.asked or time.perf_counter() >= self._next_s
        return asked and self._marker.is_supported

    def boundary(self, step: int) -> None:
        """Publish between two steps if it is due, unless another thread is publishing."""
        if self._publishing.acquire(blocking=False):
            try:
                self._boundary(step)
            finally:
                self._publishing.release()

    def _boundary(self, step: int) -> None:
        page = self._page
        if not self._marker.is_supported:
            page.boundary(step)
            page.step_begins()
            return
        # The snapshot of this same step is still valid.
        if (page.sequence, step) == self._last_boundary:
            return
        if os.getpid() != self._pid:  # a forked child: the segment belongs to its parent
            return
        if not self.due:
            page.boundary(step)
            return
        began = time.thread_time()
        page.step_begins()
        self._refresh_prepared = False
        with self._guard:
            self._allow_reader()
            self._publish(step)
            if not self._marker.trusted:
                page.step_begins()
            self._last_boundary = page.sequence, step
        # A step that prepared a refresh costs more than later ones: do not count its cost.
        cost_s = 0.0 if self._refresh_prepared else time.thread_time() - began
        share = _SHARE_EAGER if page.eager else _SHARE
        self._next_s = max(self._next_s, time.perf_counter() - _CREDIT_S) + cost_s / share

    def step_begins(self) -> None:
        """Mark the published state as changing, because a step changes it in an unknown order."""
        # A forked child must not write into its parent's segment. And if other code has wrapped
        # an optimizer after us, our wrapper stays and calls this after the end of the training.
        if not self.ended and os.getpid() == self._pid:
            self._page.step_begins()

    def end(self) -> None:
        """Mark the published state as outdated, and close the segment."""
        self.ended = True
        with self._guard:
            if os.getpid() == self._pid:
                self._page.step_begins()
                self._page.set_reason("its training is over")
        self._page.close()

    def _publish(self, step: int) -> None:
        try:
            parts, state_bytes = self._parts(step)
        except CannotPublish as error:
            self._page.boundary(step)
            self._page.set_reason(str(error))
            return
        length = tables.snapshot_bytes(parts)
        if self._page.publish(step, state_bytes, length, lambda view: tables.write(view, parts)):
            self._page.set_reason(None)
        else:
            self._page.set_reason(f"its table of {length} bytes is too long for its page")

    def _parts(self, step: int) -> tuple[Parts, int]:
        known = self._last_written
        now = time.perf_counter()
        due = now >= self._next_whole_s
        if known is not None and not due:
            refreshed = known.refresh(step)
            if refreshed is not None:
                also = [((key,), value) for key, value in self._changing_meta().items()]
                return known.parts(step, refreshed, also), known.state_bytes
        began = time.thread_time()
        whole = self._capture(step)
        self._marker.update(step)
        contents = self._sorter.sort(whole.entries, self._marker.covers)
        static = tables.static_text(
            owner=str(this_process()),
            tensors=contents.rows,
            meta=whole.meta,
            **self._about,
        )
        markers = tuple(self._marker.markers())
        changing = tables.changing_text(step, markers, ())
        refresh = self._marker.refresh(whole.meta, contents)
        self._last_written = (
            None
            if refresh is None
            else _WrittenState(static, contents.addresses, contents.state_bytes, markers, refresh)
        )
        cost = time.thread_time() - began
        self._next_whole_s = now + max(_WHOLE_EVERY_S, cost / _SHARE_WHOLE)
        self._refresh_prepared = due and refresh is not None
        return (
            (static, changing, contents.addresses, contents.samples, contents.values),
            contents.state_bytes,
        )

    def _allow_reader(self) -> None:
        """Let the watcher read our memory if the kernel's Yama module restricts it."""
        reader = self._page.reader
        if reader is None or not sys.platform.startswith("linux") or not _is_allowed_reader(reader):
            return
        # Without Yama the call fails, and then the watcher needs no permission.
        ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(reader), 0, 0, 0)
        self._page.set_permitted(reader)


def _is_allowed_reader(pid: int) -> bool:
    """
    Whether `pid` can be our watcher; any program of the user can write a number into the segment.

    The process must belong to this user or to root: a process that has made itself undumpable
    appears as root's. -1 is never allowed: the kernel takes it as any process
    (PR_SET_PTRACER_ANY).
    """
    if not 0 < pid <= _MOST_PID:
        return False
    try:
        return os.stat(f"/proc/{pid}").st_uid in (os.geteuid(), 0)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _WrittenState:
    """A full capture that was published, and the function that refreshes it."""

    static: bytes
    addresses: bytes
    state_bytes: int
    markers: Sequence[Marker]
    refresh: Refresh

    def parts(self, step: int, now: Refreshed, also: Iterable[News]) -> Parts:
        markers = self.markers if now.markers is None else now.markers
        # The meta holds the step as well.
        text = tables.changing_text(step, markers, [(("step",), step), *also, *now.news])
        addresses = self.addresses if now.addresses is None else now.addresses
        return self.static, text, addresses, now.samples, now.values


_open: dict[str, weakref.ref[Publisher]] = {}  # by path, because a process has one segment


def open_publisher(
    path: str | None,
    take: Callable[[int], FullState],
    about: Mapping[str, Any],
    marker: ChangeMarker,
    also: Callable[[], Mapping[str, Any]] = dict,
) -> Publisher | None:
    """
    Make the publisher of a training that begins; None if it has no segment.

    Args:
        path: path of the segment, from the daemon; None: use the one that `watchdog exec` set.
        take, about, marker, also: see `Publisher`.
    """
    if path is None:
        path = _claimed_segment_path()
    if path is None:
        return None
    other = _open.get(path)
    known = None if other is None else other()
    if known is not None and not known.ended:
        return None  # another training of this process uses the segment
    try:
        page = Segment(path)
    except (OSError, WatchdogError):
        return None
    made = Publisher(page, take, about, marker, also)
    _open[path] = weakref.ref(made)
    return made


def _claimed_segment_path() -> str | None:
    where = os.environ.get(ENVIRONMENT)
    if not where:
        return None
    me = this_process()
    try:
        return segment_folder.claim(where, me.pid, me.start_time)
    except OSError:
        return None
