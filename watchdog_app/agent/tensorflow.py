"""
Rescues for your own training loops in TensorFlow or Keras.

    from watchdog_app.agent.tensorflow import Rescue

    rescue = Rescue("rescues/", model=model, optimizer=optimizer, loss_mean=loss_mean)
    for epoch in rescue.epochs(10):
        for batch in rescue.data(dataset):
            train_step(batch)
            rescue.step()

Saves when the watchdog daemon asks, at the next `step()`. The next run of the same program
continues after that step, with the same data in the same order. See docs/saving.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from watchdog_app.agent.adapters.keras import position
from watchdog_app.agent.adapters.keras.on_tensorflow import TensorFlowRanks, random_draws, ranks_of
from watchdog_app.agent.adapters.loop import LoopRescue
from watchdog_app.agent.adapters.passes import Passes
from watchdog_app.agent.adapters.tensorflow_state import LoopState, SavedLoop
from watchdog_app.agent.found import tensorflow_passes
from watchdog_app.agent.identity import names
from watchdog_app.agent.oom import on_tensorflow
from watchdog_app.agent.state.variables import object_variables
from watchdog_app.agent.telemetry import dataset_buffers
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

__all__ = ["Rescue"]


class Rescue(LoopRescue[LoopState, SavedLoop, Passes]):
    """
    Saves a training loop when memory runs out, and resumes it bit for bit.

    Takes these objects by name: models, optimizers, metrics, variables, random generators, arrays,
    dicts and lists of plain values, and objects with `state_dict` and `load_state_dict`. `data()`
    takes a tf.data.Dataset or any iterable.

    May be used as a context manager: leaving it without an error marks the training as finished,
    like `finish()`. Use it only in the thread that trains.
    """

    framework = "tensorflow"
    _passes_class = Passes
    _compares_library = True

    _announced = False  # whether the program announced its growth; its figure beats our estimate

    def gradients(
        self,
        batch: Any,
        loss_of: Callable[..., Any],
        variables: Sequence[Any],
        *,
        reduction: str = "mean",
        weight: Callable[..., Any] | None = None,
    ) -> tuple[Any, list[Any]]:
        """
        The loss of one batch and its gradients, for `optimizer.apply_gradients`.

        With on_oom="shrink" a batch that does not fit is split into halves, quarters and so on. The
        gradients add up to those of the whole batch. Later batches use the size that fitted.

        Args:
            batch: a tensor, or tuples, lists and dicts of tensors of one length.
            loss_of: computes the loss of a batch. It gets the members of a tuple or list as
                arguments, else the batch. A `tf.function` is as fast as a whole step in one.
            variables: the variables to train.
            reduction: how the loss combines the samples, "mean" or "sum".
            weight: the divisor of a mean that is not the number of samples, for example the number
                of tokens without padding. Called like `loss_of`.
        """
        return on_tensorflow.gradients(
            batch,
            loss_of,
            variables,
            micro=self.micro if self._shrinks else None,
            record=self._record_for_parts,
            reduction=reduction,
            weight=weight,
        )

    def expect(self, bytes_: int, what: str) -> None:
        """See `LoopRescue.expect`."""
        self._announced = True
        super().expect(bytes_, what)

    def _together(self) -> TensorFlowRanks | None:
        found = (
            ranks_of(getattr(each.holder, "distribute_strategy", None))
            for each in object_variables(self._objects)
        )
        return next(filter(None, found), None)

    def _unread_random(self, frame: FrameType) -> list[str]:
        return random_draws(_functions_from(frame))

    def _make_record(self) -> on_tensorflow.LoopRecord:
        return on_tensorflow.LoopRecord(self._state)

    def _make_state(self, objects: Mapping[str, Any]) -> LoopState:
        return LoopState(objects, self._position, self._passes)

    def _load_saved(self, rescue: LoadedRescue) -> SavedLoop:
        return SavedLoop(rescue.path, rescue.meta, rescue.read)

    def _batches(self, dataset: Any) -> Iterator[Any]:
        with self._guard:
            lost = tensorflow_passes.thread_passes().lost_evaluations() if self.step_number else []
            if position.unseeded_shuffle(dataset):
                lost.append(position.UNSEEDED_SHUFFLE)
            self._state.never_restored = list(dict.fromkeys(self._state.never_restored + lost))
        self._foresee(dataset)
        return self._passes.run(dataset, self._restore_at_position)

    def _foresee(self, dataset: Any) -> None:
        """Announce how much memory the buffers of a data set will take."""
        if self._session is None or self._announced:
            return
        with self._guard:
            growth = dataset_buffers.announced_growth(dataset)
            if growth is not None:
                self._session.expect(growth.bytes, growth.what, at_most=growth.at_most)


def _functions_from(frame: FrameType | None) -> list[Any]:
    """The tf.functions that the names of a program reach, also methods of its objects."""
    found: list[Any] = []

    def visit(thing: Any) -> bool:
        kind = type(thing)
        methods = [each.__get__(thing, kind) for each in vars(kind).values() if _is_function(each)]
        found.extend([thing] if _is_function(thing) else methods)
        return False

    names.search(frame, visit)
    return found


def _is_function(thing: Any) -> bool:
    return hasattr(thing, "_list_all_concrete_functions")
