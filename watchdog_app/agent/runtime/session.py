"""
One watched training: what happens at a step boundary, for every framework.

The framework's adapter calls `boundary` in the training thread between two
steps, when the state is consistent, and passes a function that captures that
state. This module measures step times, reports, and saves.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from watchdog_app.agent.contain import Guard, describe
from watchdog_app.agent.resume import kernel_cells
from watchdog_app.agent.runtime import crash_report
from watchdog_app.agent.runtime.link import CheckpointRequest, Link
from watchdog_app.agent.telemetry.allocators import Allocators
from watchdog_app.agent.telemetry.memory import Breakdown
from watchdog_app.base import paths
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint import runs
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.store import RescueStore, SavedRescue
from watchdog_app.rescue.identity.notebook import program_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.snapshot.change_marker import ChangeMarker
    from watchdog_app.agent.snapshot.publisher import Publisher

_REPORT_EVERY_S = 0.5  # the link sends at most one a second; half of that keeps it fresh
_REARM_AFTER_S = 10.0  # a process that lives on after a save may hold its reserve again
_MAX_PHASE_CHARS = 40  # the daemon takes no longer ones
_LONGEST_TEXT, _MOST_TEXTS = 300, 16  # likewise, of what a resume will not bring back
_SMOOTHING = 0.1  # of the step time: about the last ten steps
_LONGEST_RATIO = 4.0  # a gap longer than this many steps is a validation or a pause, not a step

_CALLBACK_PHASE = (
    "epoch_end"  # the phase in which callbacks of the program may change what is trained
)

_GUARD = "WATCHDOG_GUARD"  # as `rescue.segment.segment` has it
_REMEDY = "The training continues; the watchdog will ask again."


@dataclass(frozen=True, slots=True)
class Capture:
    """The state of a training between two steps, without copying it."""

    entries: Sequence[TensorEntry]
    meta: Mapping[str, Any] = field(default_factory=dict)  # as JSON; the step is added


class Session:
    """
    Saves when asked, reports once a second, costs under a microsecond a step otherwise.

    All methods belong to the training thread. `boundary` and `save_now` never
    raise `Exception`: errors of ours are printed once and contained.
    """

    def __init__(
        self,
        store: RescueStore,
        link: Link,
        capture: Callable[[], Capture],
        clock: Callable[[], float] = time.monotonic,
        *,
        marker: Callable[[], ChangeMarker] | None = None,
    ) -> None:
        self.store = store
        self.link = link
        self.guard = Guard()
        self.cost = SaveCost()
        self.saved: SavedRescue | None = None  # the last one of this session
        self.state_bytes: int | None = None
        self._tensors = 0
        self._capture = capture
        self._clock = clock
        # From one boundary to the next, lately; own saves and long pauses left out.
        self.step_s: float | None = None
        self._last: float | None = None  # the boundary before, None after a gap
        self._next_report = 0.0
        self._rearm_at: float | None = None
        self._phase: str | None = None
        self._position: Mapping[str, Any] = {}  # as reported last
        self._allocators = Allocators(clock)
        self.breakdown = Breakdown(clock)
        self._announcements = Announcements(link, self.breakdown, self.guard, clock)
        # Publishes to a segment outside the process, which is saved when we can no longer save.
        self.publisher: Publisher | None = None
        self._make_marker = marker
        self._marker: ChangeMarker | None = None  # shows when a step begins

    @property
    def save_s(self) -> float | None:
        """Seconds that the next save is expected to take; None before the state is known."""
        return None if self.state_bytes is None else self.cost.predict(self.state_bytes)

    def prepare(self) -> None:
        """
        Start the link and rehearse a save on the disk; call once, before the first step.

        Prints at once, rather than hours later, that a folder cannot be written.
        """
        with self.guard:
            self.breakdown.start()
            self.link.start()
            self.link.report(training=True)
            self._open_segment()
            try:
                rehearsal = self.store.prepare(self._tensors)
            except RescueError as error:
                self.guard.print_once(f"no rescue can be saved as things are: {error}")
            else:
                if rehearsal is not None:
                    self.cost.add_rehearsal(rehearsal.bytes, rehearsal.seconds)

    def boundary(self, step: int, **position: Any) -> SavedRescue | None:
        """
        A step has ended and the next has not begun.

        Args:
            step: steps completed since the training began, over restarts.
            position: what else is known: `epoch`, `batch`, `loss` are reported.

        Returns:
            The rescue that was saved here, or None.
        """
        return self.process_boundary(step, **position) if self.record_step_time(step) else None

    def record_step_time(self, step: int) -> bool:
        """
        Record how long the step took; the first half of `boundary`.

        In a step of milliseconds the model empties the caches, and each function and dict that is
        touched after it costs ten times what it does in a tight loop: here there are few.

        Args:
            step: steps completed since the training began, over restarts.

        Returns:
            Whether the other half, `process_boundary`, is to be called.
        """
        self.link.step = step
        now = self._clock()
        last = self._last
        self._last = now
        if last is not None:
            spent = now - last
            typical = self.step_s
            if typical is None:
                self.step_s = spent
            else:
                if spent > typical * _LONGEST_RATIO:  # noqa: PLR1730 - a call less
                    spent = typical * _LONGEST_RATIO
                self.step_s = typical + _SMOOTHING * (spent - typical)
        return (
            now >= self._next_report
            or self.link.pending_request is not None
            or self.publisher is not None
        )

    @property
    def due(self) -> bool:
        """Whether the next boundary is reported, published or saved."""
        publisher = self.publisher
        return (
            self.link.pending_request is not None
            or self._clock() >= self._next_report
            or (publisher is not None and publisher.due)
        )

    def process_boundary(self, step: int, **position: Any) -> SavedRescue | None:
        """Publish, save and report where it is due; the second half of `boundary`."""
        try:
            now = self._clock() if self._last is None else self._last  # the step's end
            self.publish(step, **position)
            if self.link.pending_request is None and now < self._next_report:
                return None
            return self._publish_save_report(now, step, position)
        except Exception as error:
            self.guard.caught(error)
            return None

    def publish(self, step: int, **position: Any) -> None:
        """Publish the state between two steps, before the program learns that one has ended."""
        if self.publisher is not None:
            self._position = position
            self.publisher.boundary(step)

    def save_now(self, reason: str, step: int) -> SavedRescue | None:
        """
        Save without having been asked; between two steps, like `boundary`.

        Returns:
            The rescue; None when it failed, which is then printed and reported to the daemon.
        """
        with self.guard:
            return self._save(None, reason, step)
        return None

    def step_begins(self) -> None:
        """Mark what is published as outdated: until the next boundary the state may change."""
        if self.publisher is not None:
            self.publisher.step_begins()

    def report_not_restored(self, lost: Sequence[str]) -> None:
        """Report to the daemon what a resume will not restore."""
        told = [each[:_LONGEST_TEXT] for each in lost[:_MOST_TEXTS]]
        self.link.report(not_restored=told)

    def report_allocators(self) -> None:
        """Report the GPUs' allocators between two batches that do not train (a validation)."""
        now = self._clock()
        if now >= self._next_report:
            self._next_report = now + _REPORT_EVERY_S
            with self.guard:
                allocators = self._allocators.read()
                if allocators:
                    self.link.report(allocators=allocators)

    def reset_step_timer(self) -> None:
        """Leave the time up to the next boundary out of the step time (validation, new epoch)."""
        self._last = None

    def phase(self, name: str, epoch: int | None = None, **position: Any) -> None:
        """
        Report that another part of an epoch begins, so that the daemon learns what each needs.

        Args:
            name: "train", "validate", "save", "epoch_end", or a word of the program's own.
            epoch: counted from 0; None: as reported last.
            position: what has changed with it: `step`, `batch`.
        """
        name = name[:_MAX_PHASE_CHARS]
        if name == self._phase:
            return
        self._phase = name
        if name == _CALLBACK_PHASE:
            self.step_begins()
        with self.guard:
            fields: dict[str, Any] = {"phase": name, **position}
            if epoch is not None:
                fields["epoch"] = epoch
            self.link.report_soon(**fields)

    def expect(self, bytes_: int, what: str, *, at_most: bool = False) -> None:
        """Announce memory that the program is about to allocate: see `Announcements.expect`."""
        self._announcements.expect(bytes_, what, at_most=at_most)

    def save_before_growth(self, bytes_: int, step: int, **position: Any) -> SavedRescue | None:
        """
        Save before the announced growth begins, if the daemon finds that it will not fit.

        No step ends until the growth is over, so this is the last boundary before it.

        Returns:
            The rescue that was saved here, or None.
        """
        refused = step > 0 and self._announcements.wait_for_save_request(bytes_)
        self.reset_step_timer()  # the wait is no part of a step
        return self.boundary(step, **position) if refused else None

    def end(self, *, well: bool = True) -> None:
        """
        Report the end of the training, and release memory and threads.

        Args:
            well: it was not an exception that ended it.
        """
        with self.guard:
            failed = not well and crash_report.failed()
            if not failed:  # else the program is ending by an exception, still inside the training
                self.link.report(training=False)
            publisher, self.publisher = self.publisher, None
            marker, self._marker = self._marker, None
            for each in (publisher, marker):
                if each is not None:
                    each.end()
            self.link.close(finished=well, failed=failed)
            self.store.close()
            if self.store.run is not None:
                self.store.run.release_if_unused()

    def measure(self) -> None:
        """Capture the state once, so that its size and the cost of a save are known."""
        with self.guard:
            self._record_state_size(self._capture())
            self._hold_reserve(self._clock())

    def _hold_reserve(self, now: float) -> None:
        held = self.store.hold_reserve(self._tensors)
        self._rearm_at = None if held else now + _REARM_AFTER_S

    def _publish_save_report(
        self, now: float, step: int, position: Mapping[str, Any]
    ) -> SavedRescue | None:
        request = self.link.pending_request
        self._position = position
        saved = None
        if request is not None:
            self.link.pending_request = None
            saved = self._save_for_request(request, now, step)
        elif self._rearm_at is not None and now >= self._rearm_at:
            self._hold_reserve(now)
        if self.state_bytes is None:
            self.measure()
        self._report(step, position)
        return saved

    def _save_for_request(
        self, request: CheckpointRequest, now: float, step: int
    ) -> SavedRescue | None:
        if request.expired(now):
            self.link.failed(
                request.id,
                f"The step ended {now - request.received_mono_s:.1f} s after the request, "
                f"which was good for {request.deadline_s:g} s.",
                _REMEDY,
            )
            return None
        return self._save(request.id, request.reason, step)

    def _save(self, request: str | int | None, reason: str, step: int) -> SavedRescue | None:
        self.store.release_reserve()  # before anything that may take a page
        if request is not None:
            self.link.accepted(request)
        try:
            saved = self._write_rescue(request, reason, step)
        except RescueError as error:
            problem = getattr(error, "problem", str(error))
            remedy = getattr(error, "remedy", _REMEDY)
            self.link.failed(request, problem, remedy)
            self.guard.print_once(f"no rescue was saved; the training continues. {error}")
            return None
        except Exception as error:
            self.link.failed(request, describe(error), _REMEDY)
            raise
        finally:
            now = self._clock()
            self._last = now  # a save is no part of a step
            self._rearm_at = now + _REARM_AFTER_S
        self.saved = saved
        self.cost.add_save(saved.bytes, saved.seconds)
        self.link.saved(request, saved.path, saved.step, saved.bytes, saved.seconds, reason=reason)
        return saved

    def _write_rescue(self, request: str | int | None, reason: str, step: int) -> SavedRescue:
        capture = self._capture_with_meta(reason, step)
        self._record_state_size(capture)
        progress = None
        if request is not None:

            def progress(done: int, total: int) -> None:
                self.link.progress(request, done, total)

        return self.store.save(capture.entries, capture.meta, progress, step=step)

    def _capture_with_meta(self, reason: str, step: int) -> Capture:
        """The state with all metadata of a rescue."""
        capture = self._capture()
        meta = {
            "step": step,
            "reason": reason,
            "program_path": program_path(),
            kernel_cells.KEY: kernel_cells.record(),
            **self._changing_meta(),
            **capture.meta,
        }
        if self.store.run is not None:
            meta[runs.KEY] = self.store.run.record()
        return Capture(capture.entries, meta)

    def _changing_meta(self) -> dict[str, Any]:
        return {"loss": _finite_float(self._position.get("loss"))}

    def _open_segment(self) -> None:
        """
        Start publishing to the segment that `watchdog exec` or the daemon has made.

        Without one nothing is imported and no memory is held. The daemon may start later.
        """
        if self.publisher is not None or self._make_marker is None:
            return
        path, guarded = self.link.segment_path, _GUARD in os.environ
        if self._marker is None:
            # Where a daemon seems to run: what TensorFlow traces now counts, or never will.
            if path is None and not guarded and not os.path.exists(paths.socket_path()):
                return
            self._marker = self._make_marker()
            self._marker.prepare()
        if path is None and not guarded:
            return
        from watchdog_app.agent.snapshot.publisher import open_publisher

        self.publisher = open_publisher(
            None if guarded else path,  # whoever holds our memory looks there
            partial(self._capture_with_meta, ""),
            {"directory": self.store.directory, "keep": self.store.keep},
            self._marker,
            self._changing_meta,
        )

    def _record_state_size(self, capture: Capture) -> None:
        self.state_bytes = sum(entry.nbytes for entry in capture.entries)
        self._tensors = len(capture.entries)

    def _report(self, step: int, position: Mapping[str, Any]) -> None:
        self._next_report = self._clock() + _REPORT_EVERY_S
        self._open_segment()  # the daemon may have come
        allocators = self._allocators.read()
        self.link.report(
            training=True,
            state_bytes=self.state_bytes,
            step_s=self.step_s,
            save_s=self.save_s,
            step=step,
            epoch=position.get("epoch"),
            batch=position.get("batch"),
            loss=position.get("loss"),
            allocators=allocators,
            memory=self.breakdown.read(step, allocators),
        )


def _finite_float(value: Any) -> float | None:
    """A loss as a float, also from a tensor of one element; None where it is no finite number."""
    try:
        number = None if value is None else float(value)
    except Exception:  # whatever a program calls its loss must not cost it the rescue
        return None
    return number if number is not None and math.isfinite(number) else None


_LONGEST_PURPOSE = 100  # the daemon takes no longer ones

_WORTH_WAITING_BYTES = 256 * 2**20
_LONGEST_WAIT_S = 3.0  # a machine that is busy; else some tenths
_SILENT_WAIT_S = 1.0  # for a daemon that sends no acknowledgements
_WAIT_S = 0.01

_numbers = itertools.count(1)  # of the process: the next training's are new ones too


class Announcements:
    """
    The announcements of one training: memory that it is about to allocate.

    Args:
        link: to the daemon.
        breakdown: of what the training holds, which counts what was announced as that.
        guard: contains errors of ours.
        clock: monotonic seconds.
    """

    def __init__(
        self, link: Link, breakdown: Breakdown, guard: Guard, clock: Callable[[], float]
    ) -> None:
        self._link = link
        self._breakdown = breakdown
        self._guard = guard
        self._clock = clock
        self._number = 0  # of what was announced last
        self._patient = True  # while the daemon answers

    def expect(self, bytes_: int, what: str, *, at_most: bool) -> None:
        """
        Announce that the program is about to allocate so much more memory.

        Args:
            bytes_: so much more than now.
            what: as a person would call it.
            at_most: it may be less.

        Raises:
            ValueError: `bytes_` is negative or no number.
        """
        count = int(bytes_)
        if count < 0:
            raise ValueError(f"bytes must not be negative, but is {bytes_}")
        with self._guard:
            self._breakdown.add_buffer(count, what)
            self._number = next(_numbers)
            self._link.report_soon(
                expected_bytes=count,
                expected_for=what[:_LONGEST_PURPOSE],
                expected_number=self._number,
                expected_at_most=at_most,
                expected_mono_s=self._clock(),
            )

    def wait_for_save_request(self, bytes_: int) -> bool:
        """
        Whether the daemon asks for a save after so many bytes were announced.

        Waits for its answer, some tenths of a second as a rule, and only for growth that takes
        longer than that.
        """
        link = self._link
        if bytes_ < _WORTH_WAITING_BYTES:
            return False
        began = time.monotonic()
        while (
            link.connected
            and link.pending_request is None
            and link.acknowledged_number != self._number
        ):
            patient = link.acknowledges and self._patient
            if time.monotonic() - began >= (_LONGEST_WAIT_S if patient else _SILENT_WAIT_S):
                self._patient = False  # a daemon that hangs delays a training once
                break
            time.sleep(_WAIT_S)
        else:
            self._patient = True
        return link.pending_request is not None


# A save that nobody has measured: a slow disk of a laptop, and opening, syncing and renaming.
_DEFAULT_BYTES_PER_S = 100e6
_DEFAULT_FIXED_S = 0.1

_RECENT = 3
# The fastest that a saved byte is believed to be: a write cache that took a few MiB in no time
# says nothing about gigabytes.
_FASTEST_BYTES_PER_S = 1e9


class SaveCost:
    """Seconds that a save of so many bytes takes, never less than the recent ones took."""

    def __init__(self) -> None:
        self._rehearsal: tuple[int, float] | None = None
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def add_rehearsal(self, nbytes: int, seconds: float) -> None:
        """A few bytes were written the way a save writes."""
        self._rehearsal = (nbytes, seconds)

    def add_save(self, nbytes: int, seconds: float) -> None:
        """A save took this long."""
        self._recent.append((nbytes, seconds))

    def predict(self, nbytes: int) -> float:
        """Seconds for `nbytes`: the worst that the recent saves, or the rehearsal, promise."""
        if self._recent:
            return max(_scaled_seconds(nbytes, size, seconds) for size, seconds in self._recent)
        guess = _DEFAULT_FIXED_S + nbytes / _DEFAULT_BYTES_PER_S
        if self._rehearsal is not None:
            size, seconds = self._rehearsal
            # The rehearsal is mostly fixed cost: it can make the guess worse, hardly better.
            guess = max(guess, seconds + (nbytes - size) / _DEFAULT_BYTES_PER_S)
        return guess


def _scaled_seconds(nbytes: int, size: int, seconds: float) -> float:
    """What `seconds` for `size` bytes means for `nbytes`: never less, more by the measured rate."""
    more = nbytes - size
    if more <= 0:
        return seconds
    rate = min(size / seconds if seconds > 0 else _FASTEST_BYTES_PER_S, _FASTEST_BYTES_PER_S)
    return seconds + more / max(rate, 1.0)
