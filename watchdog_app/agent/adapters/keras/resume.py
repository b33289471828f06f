"""
Resume a Keras `fit`, from its start to the position of a rescue.

At the start of an epoch, `fit` resets metrics and callbacks set learning rates. So the state is
restored at the last moment: when the data has reached its position, before the next batch is
trained. The variables are also loaded at the start, for code that reads them earlier.
"""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

from watchdog_app.agent.adapters.keras import identity
from watchdog_app.agent.adapters.keras.state import FitState, SavedFit
from watchdog_app.agent.adapters.report import Report
from watchdog_app.agent.contain import print_message
from watchdog_app.agent.runtime import run_choice
from watchdog_app.agent.state import matching, own_random, randomness
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.identity.compare import (
    Decision,
    check_verdict,
    compare,
    describe_rescue,
)

_METRICS_HOOK = "_get_metrics_result_or_logs"


class _InitialEpoch(int):
    """Replaces fit's `initial_epoch`, also if it is 0: Keras takes the first that is true."""

    def __bool__(self) -> bool:
        return True


class Resumption:
    """A resume in progress: made in `on_train_begin`, completed by hooks of the first epoch."""

    def __init__(
        self,
        rescue: LoadedRescue,
        model: Any,
        state: FitState,
        beginning: run_choice.Beginning,
        callbacks: Any = None,
        *,
        later: Sequence[Any] = (),
        epochs: int | None = None,
    ) -> None:
        """
        Compare, load the variables and prepare the first epoch.

        Args:
            rescue: the rescue to resume from.
            model: the model of the fit.
            state: the state of this fit.
            beginning: of this training.
            callbacks: the CallbackList of this fit.
            later: the callbacks after the one that resumes.
            epochs: that fit is asked for.

        Raises:
            RescueMismatch: the rescue does not fit the program; no value was changed.
        """
        forced = beginning.resume == "force"
        shown = describe_rescue(rescue.path, rescue.step, rescue.created_unix_s)
        self._saved = saved = SavedFit(rescue.path, rescue.meta, rescue.read)
        verdict = compare(rescue.meta.get("identity"), state.identity)
        if verdict.texts(Decision.NEVER):
            check_verdict(verdict, shown, forced=forced)
        self._rescue = rescue
        self._beginning = beginning
        self._model = model
        self._state = state
        self.arrived = False  # whether everything is restored to the state of the save
        self._replay: Any = None
        self._messages: list[str] = []
        progress = state.progress
        self._match_position(verdict.keys())
        iterator = progress.iterator if saved.position["followed"] else None
        obstacle = iterator and state.backend.position_obstacle(iterator, saved.position)
        if obstacle:
            raise matching.mismatch(shown, [obstacle])
        saved.build(model, state)
        current = state.variables()
        # If only variables are missing, the first training step creates them during the replay.
        waits = iterator is not None and saved.only_lacks_variables(current)
        found = saved.differences(current)
        if found and not waits:
            raise matching.mismatch(shown, verdict.texts(Decision.REFUSE) + found)
        self._messages += check_verdict(verdict, shown, forced=forced)
        self._changed = saved.changed(state)
        self._loaded = not found
        saved.load_callback_attributes(state, state.callbacks)
        # Between two epochs the others have begun the epoch with their attributes already.
        self._not_begun = later if saved.position.get("between_epochs") else state.callbacks
        if not found:
            saved.load_variables(current)
            saved.merge_settings(model, state)
        if state.order is not None and rescue.meta["order_seed"] is not None:
            state.order.seed = rescue.meta["order_seed"]
        progress.continue_from(saved.position)
        # It had ended, and a later part of its program did not.
        self.had_ended = epochs is not None and saved.position.get("ended_of") == epochs
        model._initial_epoch = _InitialEpoch(
            saved.position["ended_of"] if self.had_ended else progress.epoch
        )
        if iterator is not None:
            self._replay = state.backend.replay(
                iterator,
                saved.position,
                before_epoch=self._before_epoch,
                train_step=partial(state.backend.train_on, model) if waits else None,
                arrived=self._restore_at_position,
                without_training=state.backend.without_training(
                    model, callbacks, dict(saved.meta["logs"])
                ),
                data_ended=state.backend.data_ended,
            )
            self._replay.install()
            if progress.passes is not None:
                progress.passes.resume_from(saved.position.get("passes"))

    def report(self, report: Report, start_over: str) -> None:
        """Print the position at which the training resumes, and the differences."""
        at = self._saved.position
        batch = f"after batch {at['next_batch']}" if self._replay else "from its first batch"
        place = "the end of its fit" if self.had_ended else f"epoch {at['epoch'] + 1}, {batch}"
        report.resumed(self._rescue, place, self._messages, self._changed, start_over)

    def epoch_begins(self, epoch: int) -> None:
        """Handle the start of an epoch; call it in `on_epoch_begin`, before our other code."""
        self._model._initial_epoch = None
        if self.arrived:
            return
        if epoch != self._saved.position["epoch"] and self._replay is not None:
            self._replay.remove()
            self._replay = None
            print_message(
                f"another callback sent the training to epoch {epoch + 1}, the rescue is of epoch "
                f"{self._saved.position['epoch'] + 1}: the epoch is trained from its first batch "
                "with the variables of the rescue. Use BackupAndRestore or Rescue, not both."
            )
        if self._replay is None:
            self._state.progress.next_batch = 0
            self._restore_at_position()
            self._model.reset_metrics()

    def validation_begins(self) -> None:
        """Restore what the validation will draw; call it in `on_test_begin`."""
        if self.arrived:
            self._saved.load_validation(self._state)

    def epoch_ends(self) -> None:
        """Close the rescue; call it in the first `on_epoch_end`."""
        vars(self._model).pop(_METRICS_HOOK, None)
        self._rescue.close()

    def fit_ended(self) -> str | None:
        """
        Handle a fit that ended without an epoch, because the rescue already has as many.

        Returns:
            The folder of the rescue, if it is of the end of a fit like this.
        """
        if self.had_ended:
            if self._replay is not None:
                self._replay.replay_fit()
            self._before_epoch()
        self._restore_at_position()
        self.epoch_ends()
        self._model._initial_epoch = None
        if self.had_ended:
            return self._rescue.path
        print_message(
            f"nothing was trained: the rescue is of epoch {self._saved.position['epoch'] + 1}, and "
            "fit was asked for no more than that. To train on, give fit a higher epochs=."
        )
        return None

    def _before_epoch(self) -> None:
        order = self._saved.position["python_random"]
        if order is not None:
            random.setstate(randomness.random_from_json(order))
            self._state.progress.python_random = order

        with run_choice.restoring(self._beginning, self._rescue.path):
            as_before = self._saved.load_data(self._state)
        if not as_before:
            print_message(own_random.CHANGED)

    def _restore_at_position(self) -> None:
        with run_choice.restoring(self._beginning, self._rescue.path):
            self._restore_state()
        if self._state.progress.passes is not None:
            self._state.progress.passes.arrived()

    def _restore_state(self) -> None:
        self.arrived = True
        at = self._saved.position
        if self._replay is not None and not at.get("between_epochs"):
            # Fit has begun the epoch at batch 0. If all its batches are trained, no batch hook
            # would correct that.
            self._state.progress.next_batch = at["next_batch"]
        current = self._state.variables()
        found = self._saved.differences(current)
        if found:
            raise matching.mismatch(self._rescue.path, found)
        # Between two epochs fit and the callbacks have begun the epoch with the values loaded at
        # the start, so do not load them again.
        if not (self._loaded and self._saved.position.get("between_epochs")):
            anew = self._saved.load_variables(current)
            for line in self._saved.merge_settings(self._model, self._state):
                print_message(line)
            for name in sorted({each.split("/")[1] for each in anew}):
                print_message(f"the metric {name} starts over.")
        self._saved.load_callback_attributes(self._state, self._not_begun)
        absent = self._saved.load_callbacks_and_random(self._state)
        if absent:
            print_message(
                f"the rescue holds the memory of callbacks that are gone: {', '.join(absent)}."
            )
        # An epoch whose last batch was trained before the save has no logs: use the rescue's.
        original = getattr(self._model, _METRICS_HOOK, None)
        if self._saved.position.get("between_epochs"):
            return
        if original is not None:
            last = self._saved.meta["logs"]
            vars(self._model)[_METRICS_HOOK] = lambda logs: original(logs or last)

    def _match_position(self, differ: Set[str]) -> None:
        """Convert the position of the rescue to this program's data; see `rescale_position`."""
        saved = self._saved
        before = (saved.meta.get("identity") or {}).get("data", {})
        saved.position, text = identity.rescale_position(
            saved.position, before, self._state.identity.data
        )
        if text is not None:
            self._messages.append(text)
        # In other data the position has no meaning.
        if differ & {"kind", "rows", "elements", "batches"}:
            saved.position = {**saved.position, "followed": False}
