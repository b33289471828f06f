"""
One watched training: the work at a step boundary, for every framework.

The framework's adapter calls `boundary` in the training thread between two steps, when the state is
consistent, and passes a function that captures that state. This module measures step times,
reports, and saves.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from watchdog_app.agent.contain import Guard, describe
from watchdog_app.agent.runtime import crash_report, ends, kernel_cells
from watchdog_app.agent.runtime.link import CheckpointRequest, Link
from watchdog_app.agent.telemetry.allocators import Allocators
from watchdog_app.agent.telemetry.memory import Breakdown
from watchdog_app.base import paths
from watchdog_app.base.errors import RescueError
from watchdog_app.base.text.plain import few_names
from watchdog_app.rescue.checkpoint import runs
from watchdog_app.rescue.checkpoint.format import Capture
from watchdog_app.rescue.checkpoint.store import RescueStore, SavedRescue
from watchdog_app.rescue.identity.notebook import program_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.snapshot.change_marker import ChangeMarker
    from watchdog_app.agent.snapshot.publisher import Publisher
    from watchdog_app.rescue.checkpoint.ranks import Ranks

_REPORT_EVERY_S = 0.5  # the link sends at most once a second; half of that keeps the report fresh
_REARM_AFTER_S = 10.0  # a process that survives a save may hold its reserve again
_MAX_PHASE_CHARS = 40  # the daemon refuses longer names
# the daemon's limits for texts about what a resume will not restore
_LONGEST_TEXT, _MOST_TEXTS = 300, 16
_LONGEST_PURPOSE = 100
_SMOOTHING = 0.1  # for the step time: about the last ten steps
_SLOW_STEP_S = 0.2  # a snapshot takes a millisecond at most
_LONGEST_RATIO = 4.0  # a gap longer than this many steps is a validation or a pause, not a step

# In this phase, callbacks of the program may change the trained state.
_CALLBACK_PHASE = "epoch_end"

_GUARD = "WATCHDOG_GUARD"  # same name as in `rescue.segment.segment`
_SEGMENTS_SOCKET = "segments.sock"  # same name as in `rescue.segment.exchange`
_AT_LIMIT = "memory limit of watchdog exec"
_REMEDY = "The training continues; the watchdog will ask again."
_announcements = itertools.count(1)  # unique in the process, also in its next training


class Session:
    """
    Saves when asked, reports once a second, otherwise costs under a microsecond per step.

    All methods belong to the training thread. `boundary` and `save_now` never raise `Exception`:
    the agent's own errors are printed once and contained.
    """

    def __init__(
        self,
        store: RescueStore,
        link: Link,
        capture: Callable[[], Capture],
        clock: Callable[[], float] = time.monotonic,
        *,
        marker: Callable[[], ChangeMarker] | None = None,
        save_on: Sequence[int] = (),
    ) -> None:
        self.store = store
        self.link = link
        self._save_on = save_on  # signals to save at, besides SIGTERM and SIGHUP
        self.guard = Guard()
        self.cost = SaveCost()
        self.saved: SavedRescue | None = None  # the last one of this session
        self.save_reported = False  # whether a line about it was printed: the program ends
        self.state_bytes: int | None = None
        self._tensors = 0
        self._capture = capture
        self._clock = clock
        # Recent time between boundaries, without our own saves and long pauses.
        self.step_s: float | None = None
        self._last: float | None = None  # time of the previous boundary; None after a gap
        self._next_report = 0.0
        self._rearm_at: float | None = None
        self._phase: str | None = None
        self._closed = False  # whether the user is ending the kernel that trains
        self._problem = ""  # why the last save failed
        self._position: Mapping[str, Any] = {}  # last reported position
        self._allocators = Allocators(clock)
        self.breakdown = Breakdown(clock)
        # Publishes to a segment that the guard or the daemon has as well. They save its contents
        # when the process itself can no longer save.
        self.publisher: Publisher | None = None
        self.ranks: Ranks | None = None  # several processes train, and save at one step
        self.count_steps: Callable[[], Mapping[str, int | None]] = dict
        self._make_marker = marker
        self._marker: ChangeMarker | None = None  # shows when a step begins

    @property
    def save_s(self) -> float | None:
        """Expected seconds of the next save; None before the size of the state is known."""
        return None if self.state_bytes is None else self.cost.predict(self.state_bytes)

    def prepare(self) -> None:
        """
        Start the link and rehearse a save on the disk; call once, before the first step.

        If the folder cannot be written, this says so at once, not hours later.
        """
        with self.guard:
            self.breakdown.start()
            self.link.start()
            self.link.report(training=True)
            ends.begin(self.link, self._save_on)
            self._open_segment()
            try:
                self.cost.rehearsal = self.store.prepare(self._tensors)
            except RescueError as error:
                self.guard.print_once(f"no rescue can be saved as things are: {error}")

    def boundary(self, step: int, **position: Any) -> SavedRescue | None:
        """
        Handle the end of a step, before the next one begins.

        Args:
            step: steps completed since the training began, over restarts.
            position: `epoch`, `batch` and `loss`, if known; they are reported.

        Returns:
            The rescue that was saved here, or None.
        """
        return self.process_boundary(step, **position) if self.record_step_time(step) else None

    def record_step_time(self, step: int) -> bool:
        """
        Record how long the step took; the first half of `boundary`.

        In a step of milliseconds the model empties the CPU caches. Each function and dict used
        after it then costs ten times as much as in a tight loop, so this method uses few of them.

        Args:
            step: steps completed since the training began, over restarts.

        Returns:
            Whether the caller must call the other half, `process_boundary`.
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
                if spent > typical * _LONGEST_RATIO:  # noqa: PLR1730 - saves a call
                    spent = typical * _LONGEST_RATIO
                self.step_s = typical + _SMOOTHING * (spent - typical)
        publisher = self.publisher
        return (
            now >= self._next_report
            or self.link.pending_request is not None
            or self.ranks is not None
            or (publisher is not None and publisher.needs_boundary(now))
        )

    @property
    def is_limit_near(self) -> bool:
        """Whether the guard of this process has found its limit near."""
        return self.publisher is not None and self.publisher.is_limit_near

    @property
    def is_asked(self) -> bool:
        """Whether the daemon, the guard or the program asks for a save, perhaps since the step."""
        publisher = self.publisher
        return self.link.pending_request is not None or (
            publisher is not None and publisher.save_request != 0
        )

    def process_boundary(self, step: int, **position: Any) -> SavedRescue | None:
        """Publish, save and report if due; the second half of `boundary`."""
        try:
            now = self._clock() if self._last is None else self._last  # end of the step
            self.publish(step, **position)
            if self.ranks is not None:
                return self._boundary_of_rank(self.ranks, now, step, position)
            for_watcher = self._save_for_watcher(step, position)
            if self.link.pending_request is None and now < self._next_report:
                return for_watcher
            request = self.link.pending_request
            return self._publish_save_report(now, step, position, request) or for_watcher
        except Exception as error:
            self.guard.caught(error)
            return None

    def publish(self, step: int, *, borrows: bool = False, **position: Any) -> None:
        """
        Publish the state between two steps, before the program learns that a step has ended.

        Args:
            step: steps completed since the training began, over restarts.
            borrows: whether the next publication may wait for longer, so that this one need not.
            position: the place in the data.
        """
        if self.publisher is not None:
            self._position = position
            self.publisher.boundary(step, borrows=borrows)

    def save_now(self, reason: str, step: int) -> SavedRescue | None:
        """
        Save without a request; call between two steps, like `boundary`.

        Returns:
            The rescue. None if the save failed; the failure is then printed and reported to the
            daemon.
        """
        with self.guard:
            if self.ranks is not None:
                self.ranks.order_here(step, reason)
            return self._save(None, reason, step)
        return None

    def step_begins(self) -> None:
        """Mark the published state as outdated: until the next boundary the state may change."""
        if self.publisher is not None:
            self.publisher.step_begins()

    def report_not_restored(self, lost: Sequence[str]) -> None:
        """Report to the daemon what a resume will not restore."""
        self.link.report(not_restored=_shortened(lost))

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
        """Exclude the time up to the next boundary from the step time (validation, new epoch)."""
        self._last = None

    def phase(self, name: str, epoch: int | None = None, **position: Any) -> None:
        """
        Report the start of another part of an epoch, so that the daemon learns what each part
        needs.

        Args:
            name: "train", "validate", "save", "epoch_end", or a word of the program.
            epoch: counted from 0; None: as last reported.
            position: what changed with the phase: `step`, `batch`.
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
        """
        Announce that the program is about to allocate more memory.

        Args:
            bytes_: additional bytes.
            what: the purpose, for messages.
            at_most: the program may need less.

        Raises:
            ValueError: `bytes_` is negative or not a number.
        """
        count = int(bytes_)
        if count < 0:
            raise ValueError(f"bytes must not be negative, but is {bytes_}")
        with self.guard:
            self.breakdown.add_buffer(count, what)
            self.link.report_soon(
                expected_bytes=count,
                expected_for=what[:_LONGEST_PURPOSE],
                expected_number=next(_announcements),
                expected_at_most=at_most,
                expected_mono_s=self._clock(),
            )

    def end(self, *, succeeded: bool = True, program_continues: bool = False) -> None:
        """
        Report the end of the training, and release memory and threads.

        Args:
            succeeded: whether the training ended without an exception.
            program_continues: whether the program has handled the exception, if there was one.
        """
        ends.end(self.link)
        with self.guard:
            failed = not (succeeded or program_continues) and crash_report.failed()
            if not failed:  # on failure the program ends by an exception, still inside the training
                self.link.report(training=False)
            publisher, self.publisher = self.publisher, None
            marker, self._marker = self._marker, None
            for each in (publisher, marker):
                if each is not None:
                    each.end()
            if program_continues and not succeeded:
                self.link.report_before_close()
            self.link.close(finished=succeeded, failed=failed)
            self.store.close()
            if self.ranks is not None:
                self.ranks.end()
            if self.store.run is not None:
                self.store.run.release_if_unused()

    def measure(self) -> None:
        """Capture the state once, to learn its size and the cost of a save."""
        with self.guard:
            self._record_state_size(self._capture())
            self._hold_reserve(self._clock())

    def _hold_reserve(self, now: float) -> None:
        held = self.store.hold_reserve(self._tensors)
        self._rearm_at = None if held else now + _REARM_AFTER_S

    def _save_for_watcher(self, step: int, position: Mapping[str, Any]) -> SavedRescue | None:
        """Save if the guard asks for it: it cannot copy this training from outside."""
        publisher = self.publisher
        number = 0 if publisher is None else publisher.save_request
        if publisher is None or number == 0:
            return None
        self._position = position
        saved, self._problem = None, "its agent failed"
        try:
            saved = self._save(None, _AT_LIMIT, step)
            self._announce_stop(at_limit=True, saved=saved)
        finally:
            publisher.answer_save(number, saved, self._problem)
        return saved

    def _boundary_of_rank(
        self, ranks: Ranks, now: float, step: int, position: Mapping[str, Any]
    ) -> SavedRescue | None:
        """The rest of `process_boundary` if several processes train: all save at one step."""
        request, publisher = self.link.pending_request, self.publisher
        self._position = position
        wanted = None
        if publisher is not None and publisher.save_request:
            wanted = _AT_LIMIT
        elif request is not None and not request.expired(now):
            wanted = request.reason
        saved = None
        if ranks.reached(step, wanted, self.step_s):
            if wanted is None:
                saved = self._save(None, ranks.reason, step)
            # Each gets the result of one save.
            saved = self._save_for_watcher(step, position) or saved
        elif wanted is not None:
            request = None  # it waits for the common step
        if request is not None or now >= self._next_report:
            return self._publish_save_report(now, step, position, request) or saved
        return saved

    def _publish_save_report(
        self,
        now: float,
        step: int,
        position: Mapping[str, Any],
        request: CheckpointRequest | None,
    ) -> SavedRescue | None:
        self._position = position
        saved = None
        if request is not None:
            if request.end is not None:
                request.end.begun = True
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
        if request.end is None:
            return self._save(request.id, request.reason, step)
        saved = None
        self._closed = ends.kernel() is not None and not (request.end.over or _guard_ends())
        try:
            saved = self._save(None, request.reason, step)
        finally:
            self._closed = False
            ends.answer(request.end, self.link, saved)
            self.save_reported = True
        return saved

    def _save(self, request: str | int | None, reason: str, step: int) -> SavedRescue | None:
        self.save_reported = False
        self.store.release_reserve()  # first: later calls may allocate memory
        if request is not None:
            self.link.accepted(request)
        try:
            saved = self._write_rescue(reason, step)
        except RescueError as error:
            problem = getattr(error, "problem", str(error))
            remedy = getattr(error, "remedy", _REMEDY)
            self._problem = problem
            self.link.failed(request, problem, remedy)
            self.guard.print_once(f"no rescue was saved; the training continues. {error}")
            return None
        except Exception as error:
            self._problem = describe(error)
            self.link.failed(request, self._problem, _REMEDY)
            raise
        finally:
            now = self._clock()
            self._last = now  # a save is not part of a step
            self._rearm_at = now + _REARM_AFTER_S
        self.saved = saved
        if saved.seconds:  # else an earlier rescue stands
            self.cost.add_save(saved.bytes, saved.seconds)
        missing = _shortened(saved.missing)
        self.link.saved(
            request,
            saved.path,
            saved.step,
            saved.bytes,
            saved.seconds,
            reason=reason[:_LONGEST_TEXT],
            exact=not missing,
            missing=missing,
        )
        return saved

    def _write_rescue(self, reason: str, step: int) -> SavedRescue:
        capture = self._capture_with_meta(reason, step)
        self._record_state_size(capture)
        if self.ranks is not None:
            return self.ranks.save(self.store, capture.entries, capture.meta, step)
        return self.store.save(capture.entries, capture.meta, step=step)

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
            closed = {"closed": True} if self._closed else {}
            meta[runs.KEY] = {**self.store.run.record(), **closed}
        return Capture(capture.entries, meta)

    def _changing_meta(self) -> dict[str, Any]:
        return {"loss": _finite_float(self._position.get("loss"))}

    def _open_segment(self) -> None:
        """
        Publish to a segment that the guard or the daemon gets; either may start later.

        Without a watcher this imports nothing and holds no memory.
        """
        if self._make_marker is None:
            return
        guard = os.environ.get(_GUARD)  # it owns our memory, so it gets the segment
        path = os.path.join(guard, _SEGMENTS_SOCKET) if guard else self.link.segments_socket
        if self.publisher is not None:
            if path is not None:
                self.publisher.offer(path)
            return
        if self._marker is None:
            # If a daemon seems to run, prepare the marker now: it can only mark functions that
            # TensorFlow traces from now on.
            if path is None and not os.path.exists(paths.socket_path()):
                return
            self._marker = self._make_marker()
            self._marker.prepare()
        if path is None:
            return
        from watchdog_app.agent.snapshot.publisher import open_publisher

        self.publisher = open_publisher(
            path,
            partial(self._capture_with_meta, ""),
            {"directory": self.store.directory, "keep": self.store.keep},
            self._marker,
            self._changing_meta,
        )

    def _record_state_size(self, capture: Capture) -> None:
        self.state_bytes = sum(entry.nbytes for entry in capture.entries)
        self._tensors = len(capture.entries)
        if self.publisher is not None:
            self.publisher.set_state_bytes(self.state_bytes)

    def _announce_stop(self, *, at_limit: bool, saved: SavedRescue | None) -> None:
        """Print in a notebook, once near its guard's limit and once there, that it is stopped."""
        if _GUARD in os.environ and ends.kernel() is not None:
            from watchdog_app.agent.oom import refused

            step = None if saved is None else saved.step
            text = refused.stop_text(at_limit=at_limit, saved_step=step)
            if text is not None:
                self.guard.print_once(text)

    def _report(self, step: int, position: Mapping[str, Any]) -> None:
        self._next_report = self._clock() + _REPORT_EVERY_S
        self._open_segment()  # a daemon may have started
        if self.publisher is not None:
            self.publisher.is_slow = (self.step_s or 0.0) >= _SLOW_STEP_S
        ends.give_back_blocked()
        self._announce_stop(at_limit=False, saved=None)
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
            **self.count_steps(),
        )


def _finite_float(value: Any) -> float | None:
    """A loss as a float, also from a tensor of one element; None if it is not a finite number."""
    try:
        number = None if value is None else float(value)
    except Exception:  # a strange loss must not prevent the rescue
        return None
    return number if number is not None and math.isfinite(number) else None


# Defaults before any measurement: a laptop's slow disk, plus opening, syncing and renaming.
_DEFAULT_BYTES_PER_S = 100e6
_DEFAULT_FIXED_S = 0.1

_RECENT = 3
# The highest write speed to believe: a write cache that took a few MiB in no time says nothing
# about gigabytes.
_FASTEST_BYTES_PER_S = 1e9


class SaveCost:
    """Predicts the seconds that a save takes, never less than the recent saves took."""

    def __init__(self) -> None:
        # Bytes and seconds of a test write that used the steps of a save.
        self.rehearsal: tuple[int, float] | None = None
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def add_save(self, nbytes: int, seconds: float) -> None:
        """Record the duration of a save."""
        self._recent.append((nbytes, seconds))

    def predict(self, nbytes: int) -> float:
        """Seconds for `nbytes`: the longest estimate from the recent saves or the rehearsal."""
        if self._recent:
            return max(_scaled_seconds(nbytes, size, seconds) for size, seconds in self._recent)
        guess = _DEFAULT_FIXED_S + nbytes / _DEFAULT_BYTES_PER_S
        if self.rehearsal is not None:
            size, seconds = self.rehearsal
            # The rehearsal is mostly fixed cost: it can raise the guess, hardly lower it.
            guess = max(guess, seconds + (nbytes - size) / _DEFAULT_BYTES_PER_S)
        return guess


def _guard_ends() -> bool:
    """Whether the guard ends this process at its memory limit."""
    if _GUARD not in os.environ:
        return False
    from watchdog_app.agent.oom import refused

    return refused.is_ended_at_limit()


def _shortened(lost: Sequence[str]) -> list[str]:
    """Return the texts that one message of the protocol holds."""
    return [few_names(each)[:_LONGEST_TEXT] for each in lost[:_MOST_TEXTS]]


def _scaled_seconds(nbytes: int, size: int, seconds: float) -> float:
    """Scale `seconds` for `size` bytes to `nbytes`: never less, more at the measured rate."""
    more = nbytes - size
    if more <= 0:
        return seconds
    rate = min(size / seconds if seconds > 0 else _FASTEST_BYTES_PER_S, _FASTEST_BYTES_PER_S)
    return seconds + more / max(rate, 1.0)
