"""
A Keras `fit` on its way from its start to the position of a rescue.

Fit resets metrics and callbacks set learning rates as epochs begin, so the
state is put back at the last moment: when the data has arrived at its place and
before the next batch is trained. The variables are loaded at the start as well,
for those who look at them earlier.
"""

from __future__ import annotations

import time
from typing import Any

from watchdog_app.agent import (
    chapters,
    fit_state,
    matching,
    own_random,
    position,
    program,
    randomness,
)
from watchdog_app.agent.contain import say
from watchdog_app.agent.fit_state import FitState, SavedFit
from watchdog_app.agent.loaded import LoadedRescue
from watchdog_app.agent.replay import Replay
from watchdog_app.errors import RescueMismatch

_METRICS_HOOK = "_get_metrics_result_or_logs"


class Resumption:
    """Made in `on_train_begin`; from then on the first epoch's hooks lead it to its end."""

    def __init__(self, rescue: LoadedRescue, model: Any, state: FitState) -> None:
        """
        Compare, load the variables and get ready for the first epoch.

        Raises:
            RescueMismatch: the rescue is of another program; nothing was changed.
        """
        if rescue.meta.get("kind") != fit_state.KIND:
            raise RescueMismatch(
                f"The rescue {rescue.path} was not saved by a Keras fit. Give each training a "
                "folder of its own, or start afresh with Rescue(..., resume=False)."
            )
        self._rescue = rescue
        self._model = model
        self._state = state
        self._saved = saved = SavedFit(rescue.path, rescue.meta, rescue.read)
        self._arrived = False
        self._replay: Replay | None = None
        course = state.course
        iterator = course.iterator if saved.position["followed"] else None
        fit_state.build(model, saved, course.iterator)
        current = state.variables()
        found = saved.differences(current)
        # What the first training step alone can make, it makes during the replay.
        waits = bool(found) and iterator is not None and saved.only_missing(current)
        if found and not waits:
            raise matching.mismatch(rescue.path, found)
        configured = program.differences(rescue.meta.get("program"), state.program)
        if configured:
            raise matching.mismatch(rescue.path, configured)
        _same_length(saved, course)
        changed = saved.changed(model)
        self._loaded = not found
        if not found:
            saved.load_variables(current)
        if state.order is not None and rescue.meta["order_seed"] is not None:
            state.order.seed = rescue.meta["order_seed"]
        course.continue_from(saved.position)
        model._initial_epoch = course.epoch
        if iterator is not None:
            self._replay = Replay(
                iterator,
                saved.position,
                before_epoch=self._before_epoch,
                train_step=model.train_function if waits else None,
                arrived=self._arrive,
                say=say,
            )
            self._replay.install()
        self._tell(changed)

    def epoch_begins(self, epoch: int) -> None:
        """Call in `on_epoch_begin`, before anything else of ours."""
        self._model._initial_epoch = None
        if self._arrived:
            return
        if epoch != self._saved.position["epoch"] and self._replay is not None:
            self._replay.remove()
            self._replay = None
            say(
                f"another callback sent the training to epoch {epoch + 1}, the rescue is of epoch "
                f"{self._saved.position['epoch'] + 1}: the epoch is trained from its first batch "
                "with the variables of the rescue. Use BackupAndRestore or Rescue, not both."
            )
        if self._replay is None:
            self._state.course.next_batch = 0
            self._arrive()
            self._model.reset_metrics()

    def epoch_ends(self) -> None:
        """Call in the first `on_epoch_end`."""
        vars(self._model).pop(_METRICS_HOOK, None)
        self._rescue.close()

    def no_epoch_left(self) -> None:
        """The fit ended without an epoch: it asks for fewer than the rescue has behind it."""
        self._arrive()
        self.epoch_ends()
        self._model._initial_epoch = None
        say(
            f"nothing was trained: the rescue is of epoch {self._saved.position['epoch'] + 1}, and "
            "fit was asked for no more than that. To train on, give fit a higher epochs=."
        )

    def _before_epoch(self) -> None:
        order = self._saved.position["python_random"]
        if order is not None:
            randomness.put_python(order)
            self._state.course.python_random = order

        with chapters.restoring(self._rescue.path):
            as_before = self._saved.load_own_random(self._state)
        if not as_before:
            say(own_random.CHANGED)

    def _arrive(self) -> None:
        with chapters.restoring(self._rescue.path):
            self._put_back()

    def _put_back(self) -> None:
        self._arrived = True
        current = self._state.variables()
        found = self._saved.differences(current)
        if found:
            raise matching.mismatch(self._rescue.path, found)
        # Between two epochs: fit and the callbacks have begun the epoch with what was loaded first.
        if not (self._loaded and self._saved.position.get("between_epochs")):
            self._saved.load_variables(current)
        absent = self._saved.load_rest(self._state.callbacks)
        if absent:
            say(f"the rescue holds the memory of callbacks that are gone: {', '.join(absent)}.")
        # An epoch whose last batch was trained before the save has no logs of its own any more.
        original = getattr(self._model, _METRICS_HOOK, None)
        if self._saved.position.get("between_epochs"):
            return
        if original is not None:
            last = self._saved.meta["logs"]
            vars(self._model)[_METRICS_HOOK] = lambda logs: original(logs or last)

    def _tell(self, changed: list[str]) -> None:
        at = self._saved.position
        minutes = max(0.0, time.time() - self._rescue.created_unix_s) / 60
        place = f"after batch {at['next_batch']}" if self._replay else "from its first batch"
        say(
            f"going on from {self._rescue.path}: step {self._rescue.step}, epoch "
            f"{at['epoch'] + 1}, {place}, saved {minutes:.0f} min ago. "
            "To begin anew: Rescue(..., resume=False)."
        )
        lost = self._saved.meta.get("not_restored")
        if lost:
            say(f"what does not come back: {'; '.join(lost)}.")
        if changed:
            say(f"not as it was when the rescue was saved: {'; '.join(changed)}.")


def _same_length(saved: SavedFit, course: position.Course) -> None:
    before, now = saved.position["num_batches"], course.num_batches
    if before is not None and now is not None and before != now:
        raise RescueMismatch(
            f"The rescue {saved.path} is of a training with {before} batches an epoch, this one "
            f"has {now}, so its place in the data has no meaning here. Train on the same data "
            "with the same batch size, or start afresh with Rescue(..., resume=False)."
        )
