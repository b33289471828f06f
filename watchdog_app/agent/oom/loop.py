"""
Save a training loop of the program that runs out of memory, as it was before the failed step.

After a step, as often as its share of the time allows, the watch records the values that the next
step may change. When an out-of-memory error leaves the program, the watch restores the record and
saves the state. It saves nothing if an optimizer has changed the weights since the record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from watchdog_app.agent.adapters.passes import Passes
from watchdog_app.agent.contain import Guard
from watchdog_app.agent.oom import watch
from watchdog_app.agent.oom.record import Pace, Record
from watchdog_app.agent.state import own_random

INEXACT = (
    "random numbers, statistics and added-up gradients as they were before the batch that ran out "
    "of memory; weights that are certainly of a whole step (they were last checked some steps "
    "before)"
)
GRADIENTS = "gradients that are being added up without those of the batch that ran out of memory"
AFTERWARDS = (
    "what the program does after the last batch of an epoch, or with no batch at all: memory ran "
    "out there, and what was done of it is done again"
)


class LoopWatch:
    """Saves one loop after an out-of-memory error, from its construction to `end`."""

    def __init__(
        self,
        record: Record,
        passes: Passes,
        save: Callable[[str], str | None],
        *,
        shrinks: bool,
    ) -> None:
        """
        Args:
            record: the framework's record of the values that a step may change.
            passes: the passes over the loop's data.
            save: saves the current state. It takes the reason and returns the folder.
            shrinks: whether the program asked for parts of batches.
        """
        self.inexact: list[str] = []  # inexact parts of the save in progress, as texts
        self._record = record
        self._passes = passes
        self._save = save
        self._shrinks = shrinks
        self._guard = Guard()
        self._pace, self._pace_of_passes = Pace(), Pace()
        self._last_position = LastPosition(passes)
        self._reported: BaseException | None = None
        self._steps = 0
        watch.register(self)

    def stepped(self) -> None:
        """Take a record after a step, if one is due."""
        self._steps += 1
        try:
            self._record.stepped()
            if self._record.is_captured or self._pace.due(time.perf_counter()):
                self._record_if_due(self._pace)
            else:
                self._last_position.record_position(own=False)
        except Exception as error:
            self._guard.caught(error)

    def pass_begun(self) -> None:
        """
        Record the state at the beginning of a pass over the data.

        The program has then done its work between two epochs, such as a scheduler's step. A resume
        must not repeat that work.
        """
        if self._steps and self._last_position.is_only_open_pass():
            self._record_if_due(self._pace_of_passes)

    def out_of_memory(self, error: BaseException) -> None:
        """Save the state before the step that failed, and print a message."""
        if self._reported is error:
            return
        self._reported = error
        with self._guard:
            watch.print_and_add_note(error, self._save_before_step(error))

    def end(self) -> None:
        """Stop watching when the training is over."""
        watch.unregister(self)
        self._record.release()
        self._last_position.clear()
        self._reported = None

    def _record_if_due(self, pace: Pace) -> None:
        began = time.perf_counter()
        try:
            due = pace.due(began)
            if due:
                self._record.capture()
                pace.add_cost(began, time.perf_counter())
            else:
                self._record.release()
            self._last_position.record_position(own=due)
        except Exception as error:
            # The record and the position must be of the same moment: without one, drop both.
            self._record.release()
            self._guard.caught(error)

    def _save_before_step(self, error: BaseException) -> str:
        watch.release_memory()
        if self._steps == 0:
            return "memory ran out before a step had ended: there was nothing to save."
        recorded = self._record.is_captured
        if not self._record.weights_unchanged() if recorded else watch.raised_in_optimizer(error):
            return watch.inconsistent_text(
                "while an optimizer was at work, or after it and before rescue.step()",
                "not those of a whole step",
            )
        inexact = [] if recorded and self._last_position.is_of_this_epoch() else [INEXACT]
        if not recorded:
            self._record.drop_gradients()
        elif not self._record.restore():
            inexact.append(GRADIENTS)
        if not self._last_position.batch_was_drawn():
            inexact.append(AFTERWARDS)
        self.inexact = inexact
        self._last_position.restore()
        try:
            path = self._save(watch.REASON)
        finally:
            self.inexact = []
        advice = (
            "Not even the smallest part of a batch fits: free memory elsewhere."
            if self._shrinks
            else 'Rescue(..., on_oom="shrink") with its helper for a step trains a batch that does '
            "not fit in parts: see help(Rescue)."
        )
        return watch.saved_text("in a training step", path, advice)


class LastPosition:
    """The position of each pass of one loop at the last record; costs a microsecond."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._epoch: list[Any] | None = None  # the list object itself: each epoch has a new one
        self._begun: list[Any] = []  # its passes; one that begins again takes the place of the last
        self._latest: dict[int, Any] = {}
        self._sources: list[tuple[Any, int, int]] = []
        # Of each pass of the epoch: batches drawn, whether finished, batches of the source.
        self._counts: list[tuple[int, bool, int]] = []
        self._own: list[list[Any]] | None = None

    def record_position(self, *, own: bool) -> None:
        """
        Record the current position of each pass.

        Args:
            own: whether to record also the states of the data's own random generators.
        """
        epoch = self._passes._epoch
        if not self.is_of_this_epoch() or list(map(id, epoch)) != list(map(id, self._begun)):
            self._epoch, self._begun = epoch, list(epoch)
            self._latest = dict(self._passes._latest)
            self._sources = [
                (each.source, each.source.passes, each.source.total)
                for each in self._latest.values()
            ]
        self._counts = [(each.drawn, each.finished, each.source.total) for each in epoch]
        self._own = [own_random.capture_all(each.generators) for each in epoch] if own else None

    def is_only_open_pass(self) -> bool:
        """Whether the pass that has just begun is the only unfinished one."""
        return all(each.finished for each in self._passes._epoch[:-1])

    def is_of_this_epoch(self) -> bool:
        """Whether no other epoch has begun since the record."""
        return self._passes._epoch is self._epoch

    def batch_was_drawn(self) -> bool:
        """Whether a batch was drawn since the record, or a pass begun; True without any pass."""
        epoch = self._passes._epoch
        if not epoch:
            return True
        return epoch is not self._epoch or [each.drawn for each in epoch] != [
            drawn for drawn, _, _ in self._counts
        ]

    def clear(self) -> None:
        """Release all references."""
        self.__init__(self._passes)  # type: ignore[misc]

    def restore(self) -> None:
        """Set the passes to the recorded position, and restore their own generators."""
        if self._epoch is None:
            return
        passes = self._passes
        # An epoch that began after the record has no recorded batches: keep no pass of it.
        kept = list(self._begun) if self.is_of_this_epoch() else []
        passes._epoch = kept
        passes._latest = dict(self._latest)
        for source, begun, total in self._sources:
            source.passes, source.total = begun, total
        for each, count in zip(kept, self._counts, strict=False):
            each.ahead = each.drawn != count[0]
            each.drawn, each.finished, each.source.total = count
        for each, states in zip(kept, self._own or [], strict=False):
            own_random.restore_all(each.generators, states)
