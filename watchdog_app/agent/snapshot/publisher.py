"""
Publish at step boundaries the state that a rescue would hold, within a small share of the time.

Publishing may take 0.3 percent of the time and of the processor time. It may take two percent
of the time under `watchdog exec --no-refuse`: any step may then be the last one. It may take five
percent while a limit is near, so that every step of usual trainings is published. While a watcher
waits for a copy, it may take seconds at once. A step that begins marks the snapshot as invalid.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.snapshot.change_marker import Bytes, ChangeMarker, Refresh
from watchdog_app.agent.snapshot.contents import CannotPublish, Sorter
from watchdog_app.rescue.checkpoint.format import Capture
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.checkpoint.store import SavedRescue
from watchdog_app.rescue.segment import exchange
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.segment import ASK, EAGER, WAITS, Segment, open_request

_SHARE = 0.002  # share of the time for snapshots
_SHARE_EAGER = 0.02  # the same under `--no-refuse`
_SHARE_NEAR = 0.05  # the same near a limit, for all that the agent does at a boundary
_CREDIT_S = 1.0  # unused time expires after this many seconds
_CREDIT_WAITS_S = 60.0  # the same while a watcher waits for a copy: three seconds of publishing
_SHARE_WHOLE = 0.001  # additional share for full captures, which are rarely needed
_WHOLE_EVERY_S = 2.0
_OFFER_EVERY_S = 10.0  # to a watcher that has not taken the segment
_UNREADABLE = (
    "its memory may not be read: it has changed its user or forbidden dumps (prctl PR_SET_DUMPABLE)"
)

_NOTHING = (0,) * 32  # slots of a segment
Parts = tuple[bytes, bytes, bytes, Bytes, Bytes]  # see `tables.write`


class Publisher:
    """
    Publishes one training to its segment; never raises an error of its own.

    The thread of the training calls it.
    """

    def __init__(
        self,
        segment: Segment,
        take: Callable[[int], Capture],
        about: Mapping[str, Any],
        marker: ChangeMarker,
        also: Callable[[], Mapping[str, Any]],
    ) -> None:
        """
        Args:
            segment: segment of this training; it is closed at the end.
            take: captures the state that a rescue of a step would hold, without its bytes.
            about: `directory` and `keep` of its rescues.
            marker: marker of the framework.
            also: gives the values of the meta that are not the framework's and change each step.
        """
        self._segment = segment
        # A property of the segment would take microseconds to read. Zeros: the training is over.
        self._slots: Sequence[int] = segment.slots
        self._capture = take
        self._about = about
        self._changing_meta = also
        self._marker = marker
        self._guard = Guard("publishing for a save from outside")
        self._sorter = Sorter()
        # Of the last full capture: what does not change, and the function that refreshes it.
        self._last_written: tuple[bytes, Refresh] | None = None
        self._next_whole_s = 0.0
        self._usual, self._near, self._waits = Pace(), Pace(), Pace(_CREDIT_WAITS_S)
        self._cost_s = 0.0  # of the last snapshot
        self._refresh_prepared = False
        # Two threads that wrote one snapshot would publish a mixture of two states.
        self._publishing = threading.Lock()
        self._tried: int | None = None  # step of the last capture; None: another one has begun
        self.is_slow = False  # steps are so long that a snapshot of each takes a small share
        self.ended = False  # also in a forked child: the segment belongs to its parent
        _publishers.add(self)
        self._watcher: tuple[int, int] | None = None  # got the last offer
        self._next_offer_s = 0.0  # to the same watcher
        self._can_publish = marker.is_supported
        if not marker.is_supported:
            segment.set_reason("it cannot be copied from outside")
        self._marker.begin(self.step_begins)

    def offer(self, path: str) -> None:
        """
        Hand the segment to the watcher that listens at `path`, unless it has it; never waits.

        Call this repeatedly: another watcher may have started, or one may have had no room.
        """
        if self.ended:
            return
        with self._guard, suppress(OSError):  # none listens, or it is busy: offer again later
            watcher = exchange.find_watcher(path)
            now = time.monotonic()
            if watcher is None:
                return
            if watcher == self._watcher and (self._segment.is_taken or now < self._next_offer_s):
                return
            self._segment.begin_offer()
            if not exchange.offer(path, self._about["directory"], self._segment.fd):
                self._can_publish = False
                self._segment.set_reason(_UNREADABLE)
            self._watcher = watcher
            self._next_offer_s = now + _OFFER_EVERY_S

    @property
    def asked(self) -> bool:
        """Whether any step may be the last one: a limit is near, or a jump finds each long step."""
        return self.is_slow or self.is_limit_near

    @property
    def is_limit_near(self) -> bool:
        """Whether a watcher has found its limit near."""
        return bool(self._slots[ASK])

    @property
    def save_request(self) -> int:
        """The number of the watcher's save request; 0: none, or it is answered."""
        return open_request(self._slots)

    def answer_save(self, number: int, saved: SavedRescue | None, problem: str) -> None:
        """
        Answer a save request.

        Args:
            number: of the request.
            saved: the rescue; None: none was saved.
            problem: why none was saved.
        """
        if saved is None:
            self._segment.answer_save(number, 0, 0, problem)
        else:
            name = os.path.basename(saved.path)
            self._segment.answer_save(number, saved.step, saved.bytes, name)

    def set_state_bytes(self, bytes_: int) -> None:
        """Tell the watcher how many bytes a save would write."""
        if not self.ended:
            self._segment.set_state_bytes(bytes_)

    @property
    def due(self) -> bool:
        """Whether to publish at the next boundary."""
        return self._can_publish and not self.ended and self._has_budget()

    def _has_budget(self) -> bool:
        counts_cpu = not (self.asked or self._slots[EAGER])
        return self._pace.is_due(time.monotonic(), counts_cpu=counts_cpu)

    @property
    def _pace(self) -> Pace:
        if self._slots[ASK] == WAITS:
            return self._waits
        return self._near if self.asked else self._usual

    def needs_boundary(self, now: float) -> bool:
        """Whether this boundary publishes, saves, or may be the last one; `now`: monotonic."""
        slots = self._slots
        pace = self._pace if slots[ASK] or self.is_slow else self._usual
        # The clocks of `due` take microseconds to read: do not read them at each step.
        if open_request(slots) or (now >= pace.next_s and (pace is not self._usual or self.due)):
            return True
        if self._tried is not None:
            self.step_begins()
        return False

    def boundary(self, step: int, *, borrows: bool = False) -> None:
        """
        Publish between two steps if it is due, unless another thread is publishing.

        Args:
            step: steps completed since the training began.
            borrows: whether to publish before the share of the time allows it: the next one waits
                for longer.
        """
        if self._publishing.acquire(blocking=False):
            try:
                self._boundary(step, borrows)
            finally:
                self._publishing.release()

    def _boundary(self, step: int, borrows: bool) -> None:
        if self.ended or not self._can_publish or step == self._tried:
            return
        # At most one publication ahead.
        pace = self._pace
        borrows = borrows and pace.next_s - time.monotonic() <= pace.wait_s
        if not self.due and not borrows:
            self.step_begins()
            return
        segment, began = self._segment, self.clock()
        segment.step_begins()
        self._tried = step
        self._refresh_prepared = False
        with self._guard:
            self._publish(step)
            if not self._marker.trusted:
                segment.step_begins()
                segment.set_reason("its steps do not show when they begin to change it")
        # A step that prepared a refresh costs more than later ones: do not count its cost.
        self._cost_s = 0.0 if self._refresh_prepared else self.clock() - began
        pace.wait_s = 0.0
        self._add_cost(pace, self._cost_s)

    @property
    def clock(self) -> Callable[[], float]:
        """
        The clock for what publishing costs.

        Near a limit the program may wait for a processor, and publishing waits for it as well.
        """
        return time.monotonic if self.asked else time.thread_time

    def count_boundary(self, cost_s: float) -> None:
        """Count also what the agent did at a boundary near a limit besides publishing."""
        if not self._refresh_prepared:
            self._add_cost(self._pace, max(0.0, cost_s - self._cost_s))
        self._cost_s = 0.0

    def _add_cost(self, pace: Pace, cost_s: float) -> None:
        usual = _SHARE_EAGER if self._slots[EAGER] else _SHARE
        pace.add_cost(cost_s, _SHARE_NEAR if self.asked else usual)

    def explain(self, why: str) -> None:
        """Tell the watcher why there is no snapshot, until there is one."""
        if not self.ended:
            self._segment.set_reason(why)

    def step_begins(self, *_: object) -> None:
        """Mark the published state as changing, because a step changes it in an unknown order."""
        # If other code has wrapped an optimizer after us, our wrapper stays and calls this after
        # the end of the training.
        if self._tried is not None and not self.ended:  # most steps find no snapshot
            self._tried = None
            self._segment.step_begins()

    def end(self) -> None:
        """Mark the published state as outdated, and close the segment."""
        was_ended, self.ended, self._slots = self.ended, True, _NOTHING
        with self._guard:
            if not was_ended:
                self._segment.end()
        self._segment.close()

    def _publish(self, step: int) -> None:
        try:
            parts = self._parts(step)
        except CannotPublish as error:
            self._segment.set_reason(str(error))
            return
        length = tables.snapshot_bytes(parts)
        if self._segment.publish(step, length, lambda view: tables.write(view, parts)):
            self._segment.set_reason(None)
        else:
            self._segment.set_reason(f"its snapshot of {length} bytes is too long for its segment")

    def _parts(self, step: int) -> Parts:
        known = self._last_written
        now = time.monotonic()
        due = now >= self._next_whole_s
        if known is not None and not due:
            static, refresh = known
            found = refresh(step)
            if found is not None:
                # The meta holds the step as well.
                also = {"step": step, **self._changing_meta()}
                news = [*(((key,), value) for key, value in also.items()), *found.news]
                changing = tables.changing_text(step, found.markers, news)
                return static, changing, found.addresses, found.samples, found.values
        began = time.thread_time()
        whole = self._capture(step)
        self._marker.update(step)
        contents = self._sorter.sort(whole.entries, self._marker.covers)
        self._segment.set_state_bytes(contents.state_bytes)
        static = tables.static_text(
            owner=str(this_process()),
            tensors=contents.rows,
            meta=whole.meta,
            **self._about,
        )
        changing = tables.changing_text(step, self._marker.markers(), ())
        refresh_later = self._marker.refresh(whole.meta, contents)
        self._last_written = None if refresh_later is None else (static, refresh_later)
        cost = time.thread_time() - began
        self._next_whole_s = now + max(_WHOLE_EVERY_S, cost / _SHARE_WHOLE)
        self._refresh_prepared = due and refresh_later is not None
        return static, changing, contents.addresses, contents.samples, contents.values


class Pace:
    """The time of the next snapshot, so that all of them together take a share of the time."""

    def __init__(self, credit_s: float = _CREDIT_S) -> None:
        """
        Args:
            credit_s: unused time expires after this many seconds.
        """
        self.next_s = 0.0  # earliest time of the next snapshot, by `time.monotonic`
        self.next_cpu_s = 0.0  # the same by `time.process_time`; other programs may use the cores
        self.wait_s = 0.0  # what the last snapshot adds to that
        self._credit_s = credit_s

    def is_due(self, now: float, *, counts_cpu: bool) -> bool:
        """Whether the next snapshot may be made; `counts_cpu`: also by the processor time."""
        if now >= self.next_s and counts_cpu:
            self.next_s = max(self.next_s, now + self.next_cpu_s - time.process_time())
        return now >= self.next_s

    def add_cost(self, cost_s: float, share: float) -> None:
        """Wait until this cost of a snapshot is the share of the time."""
        now, cpu_s = time.monotonic() - self._credit_s, time.process_time() - self._credit_s
        wait_s = cost_s / share
        self.wait_s += wait_s
        self.next_s = max(self.next_s, now) + wait_s
        self.next_cpu_s = max(self.next_cpu_s, cpu_s) + wait_s


_open: weakref.ref[Publisher] | None = None  # a process has one segment at a time
_publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _end_in_child() -> None:
    for each in _publishers:
        each.ended, each._slots = True, _NOTHING


os.register_at_fork(after_in_child=_end_in_child)


def open_publisher(
    path: str,
    take: Callable[[int], Capture],
    about: Mapping[str, Any],
    marker: ChangeMarker,
    also: Callable[[], Mapping[str, Any]] = dict,
) -> Publisher | None:
    """
    Make the publisher of a training that begins; None if no watcher listens.

    Args:
        path: of the socket of a guard or the daemon.
        take, about, marker, also: see `Publisher`.
    """
    global _open
    known = None if _open is None else _open()
    if known is not None and not known.ended:
        return None  # another training of this process uses the segment
    if not sys.platform.startswith("linux") or exchange.find_watcher(path) is None:
        return None
    try:
        segment = Segment()
    except OSError:
        return None
    made = Publisher(segment, take, about, marker, also)
    _open = weakref.ref(made)
    made.offer(path)
    return made
