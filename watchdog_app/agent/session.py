"""
One training under watch: what happens at a step boundary, whatever the framework.

The framework's part of the agent calls `boundary` in the training thread
between two steps, when the state is consistent, and gives a function that
captures that state. Everything else is here: the step time, the reports, the
save that somebody asked for and the one that nobody did.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.agent.allocator import Allocators
from watchdog_app.agent.checkpoint_request import CheckpointRequest
from watchdog_app.agent.contain import Guard, describe
from watchdog_app.agent.cost import SaveCost
from watchdog_app.agent.layout import TensorEntry
from watchdog_app.agent.link import Link
from watchdog_app.agent.notebook import program_path
from watchdog_app.agent.store import RescueStore, SavedRescue
from watchdog_app.errors import RescueError

_REPORT_EVERY_S = 0.5  # the link sends at most one a second; half of that keeps it fresh
_REARM_AFTER_S = 10.0  # a process that lives on after a save may hold its reserve again
_LONGEST_WORD, _LONGEST_TEXT = 40, 100  # the daemon takes no longer ones
_SMOOTHING = 0.1  # of the step time: about the last ten steps
_LONGEST_RATIO = 4.0  # a gap longer than this many steps is a validation or a pause, not a step

_announcements = itertools.count(1)  # of the process: the next training's are new ones too

_REMEDY = "The training goes on; the watchdog will ask again."


@dataclass(frozen=True, slots=True)
class Capture:
    """The state of a training between two steps, without copying it."""

    entries: Sequence[TensorEntry]
    meta: Mapping[str, Any] = field(default_factory=dict)  # as JSON; the step is added


class Session:
    """
    Saves when asked, reports once a second, costs under a microsecond a step otherwise.

    All methods belong to the training thread. `boundary` and `save_now` never
    raise `Exception`: errors of ours are told once and contained.
    """

    def __init__(
        self,
        store: RescueStore,
        link: Link,
        capture: Callable[[], Capture],
        clock: Callable[[], float] = time.monotonic,
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
        self._step_s: float | None = None
        self._last: float | None = None  # the boundary before, None after a gap
        self._next_report = 0.0
        self._rearm_at: float | None = None
        self._phase: str | None = None
        self._told: Mapping[str, Any] = {}  # the position as told last
        self._allocators = Allocators(clock)

    @property
    def step_s(self) -> float | None:
        """Seconds from one boundary to the next, lately; own saves and long pauses left out."""
        return self._step_s

    @property
    def save_s(self) -> float | None:
        """Seconds that the next save is expected to take; None before the state is known."""
        return None if self.state_bytes is None else self.cost.predict(self.state_bytes)

    def prepare(self) -> None:
        """
        Once, before the first step: start the link, and rehearse a save on the disk.

        A folder that cannot be written is told at once rather than at the end of the night.
        """
        with self.guard:
            self.link.start()
            self.link.report(training=True)
            try:
                rehearsal = self.store.prepare(self._tensors)
            except RescueError as error:
                self.guard.tell_once(f"no rescue can be saved as things are: {error}")
            else:
                if rehearsal is not None:
                    self.cost.rehearsed(rehearsal.bytes, rehearsal.seconds)

    def boundary(self, step: int, **position: Any) -> SavedRescue | None:
        """
        A step has ended and the next has not begun.

        Args:
            step: steps completed since the training began, over restarts.
            position: what else is known: `epoch`, `batch`, `loss` are reported.

        Returns:
            The rescue that was saved here, or None.
        """
        try:
            now = self._clock()
            last = self._last
            self._last = now
            if last is not None:
                spent = now - last
                typical = self._step_s
                if typical is None:
                    self._step_s = spent
                else:
                    spent = min(spent, typical * _LONGEST_RATIO)
                    self._step_s = typical + _SMOOTHING * (spent - typical)
            if self.link.wanted is None and now < self._next_report:
                return None
            return self._attend(now, step, position)
        except Exception as error:
            self.guard.caught(error)
            return None

    def save_now(self, reason: str, step: int) -> SavedRescue | None:
        """
        Save without having been asked; between two steps, like `boundary`.

        Returns:
            The rescue, or None when it failed, which was then told on stderr and to the daemon.
        """
        with self.guard:
            return self._save(None, reason, step)
        return None

    def look(self) -> None:
        """Between two batches that train nothing (a validation): report what the GPUs hold."""
        now = self._clock()
        if now >= self._next_report:
            self._next_report = now + _REPORT_EVERY_S
            with self.guard:
                allocators = self._allocators.read()
                if allocators:
                    self.link.report(allocators=allocators)

    def gap(self) -> None:
        """What comes next is no step (validation, a new epoch): do not count it as one."""
        self._last = None

    def phase(self, name: str, epoch: int | None = None) -> None:
        """
        Another part of an epoch begins: the daemon learns what each part needs.

        Args:
            name: "train", "validate", "save", "epoch_end", or a word of the program's own.
            epoch: counted from 0; None: as reported last.
        """
        name = name[:_LONGEST_WORD]
        if name == self._phase:
            return
        self._phase = name
        with self.guard:
            fields: dict[str, Any] = {"phase": name}
            if epoch is not None:
                fields["epoch"] = epoch
            self.link.report_soon(**fields)

    def expect(self, bytes_: int, what: str, *, at_most: bool = False) -> None:
        """
        The program is about to take so much more memory, and no more.

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
        with self.guard:
            self.link.report_soon(
                expected_bytes=count,
                expected_for=what[:_LONGEST_TEXT],
                expected_number=next(_announcements),
                expected_at_most=at_most,
                expected_mono_s=self._clock(),
            )

    def end(self) -> None:
        """The training ended well: tell the daemon, give memory and threads back."""
        with self.guard:
            self.link.report(training=False)
            self.link.close()
            self.store.close()

    def measure(self) -> None:
        """Look at the state once, so that its size and the cost of a save are known beforehand."""
        with self.guard:
            self._note(self._capture())
            self.store.hold_reserve(self._tensors)

    def _attend(self, now: float, step: int, position: Mapping[str, Any]) -> SavedRescue | None:
        request = self.link.wanted
        self._told = position
        saved = None
        if request is not None:
            self.link.wanted = None
            saved = self._answer(request, now, step)
        elif self._rearm_at is not None and now >= self._rearm_at:
            self._rearm_at = None
            self.store.hold_reserve(self._tensors)
        if self.state_bytes is None:
            self.measure()
        self._report(step, position)
        return saved

    def _answer(self, request: CheckpointRequest, now: float, step: int) -> SavedRescue | None:
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
            saved = self._store(request, reason, step)
        except RescueError as error:
            problem = getattr(error, "problem", str(error))
            remedy = getattr(error, "remedy", _REMEDY)
            self.link.failed(request, problem, remedy)
            self.guard.tell_once(f"no rescue was saved; the training goes on. {error}")
            return None
        except Exception as error:
            self.link.failed(request, describe(error), _REMEDY)
            raise
        finally:
            now = self._clock()
            self._last = now  # a save is no part of a step
            self._rearm_at = now + _REARM_AFTER_S
        self.saved = saved
        self.cost.measured(saved.bytes, saved.seconds)
        self.link.saved(request, saved.path, saved.step, saved.bytes, saved.seconds, reason=reason)
        return saved

    def _store(self, request: str | int | None, reason: str, step: int) -> SavedRescue:
        capture = self._capture()
        self._note(capture)
        progress = None
        if request is not None:

            def progress(done: int, total: int) -> None:
                self.link.progress(request, done, total)

        meta = {
            "step": step,
            "reason": reason,
            "program_path": program_path(),
            "loss": _plain_number(self._told.get("loss")),
            **capture.meta,
        }
        return self.store.save(capture.entries, meta, progress, step=step)

    def _note(self, capture: Capture) -> None:
        self.state_bytes = sum(entry.nbytes for entry in capture.entries)
        self._tensors = len(capture.entries)

    def _report(self, step: int, position: Mapping[str, Any]) -> None:
        self._next_report = self._clock() + _REPORT_EVERY_S
        self.link.report(
            training=True,
            state_bytes=self.state_bytes,
            step_s=self._step_s,
            save_s=self.save_s,
            step=step,
            epoch=position.get("epoch"),
            batch=position.get("batch"),
            loss=position.get("loss"),
            allocators=self._allocators.read(),
        )


def _plain_number(value: Any) -> float | None:
    """A loss as a program tells it, a tensor of one element for instance; None for other things."""
    try:
        number = None if value is None else float(value)
    except Exception:  # whatever a program calls its loss must not cost it the rescue
        return None
    return number if number is not None and math.isfinite(number) else None
