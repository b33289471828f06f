"""
Events of TensorFlow trainings in a user's own loops without a Rescue.

The agent sees a step when an optimizer's `apply` runs: eagerly at each step, or once while
TensorFlow traces a `tf.function`. From then on each call of that function is a step. Batches come
from iterators over tf.data sets. The model computes when a `GradientTape` or such a function
begins. The agent imports no part of TensorFlow; it wraps methods of modules that are imported
already.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.found import folders
from watchdog_app.agent.found.gradients import GradientWatch
from watchdog_app.agent.found.trainings import Trainings
from watchdog_app.agent.identity.code import is_program, program_frame
from watchdog_app.agent.identity.data_facts import flatten
from watchdog_app.agent.telemetry.stacks import callers
from watchdog_app.agent.wrapping import Wrapped

if TYPE_CHECKING:
    from watchdog_app.agent.found.tensorflow_passes import WatchedPass
    from watchdog_app.agent.found.tensorflow_training import FoundTensorFlow

_CONTEXT = "tensorflow.python.eager.context"
_ITERATORS = "tensorflow.python.data.ops.iterator_ops"
_TAPES = "tensorflow.python.eager.backprop"
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
_STRATEGIES = "tensorflow.python.distribute.distribute_lib"

_gradients = GradientWatch(
    "tensorflow", "keras.src.optimizers.", lambda each: float(each.numpy().sum())
)
_methods = Wrapped()
_is_eager: Callable[[], bool] = bool


class _TrainingFunction:
    """A tf.function that trains, so that its calls are steps."""

    def __init__(self, function: Any, forget: Callable[[Any], Any]) -> None:
        self.reference = weakref.ref(function, forget)
        self.optimizers: list[Callable[[], Any]] = []

    def live_optimizers(self) -> list[Any]:
        """The optimizers that step in it and still exist."""
        return [each for get in self.optimizers if (each := get()) is not None]

    def add(self, optimizer: Any) -> None:
        """Add an optimizer that steps in it."""
        if all(each is not optimizer for each in self.live_optimizers()):
            self.optimizers.append(weakref.ref(optimizer))


_functions: dict[int, _TrainingFunction] = {}  # the functions that train, by id


def attach(module: ModuleType) -> None:
    """
    Wrap methods to see steps, unless that was done or Keras runs on another backend.

    Args:
        module: `keras.src.optimizers.base_optimizer`.
    """
    global _is_eager
    names = (_CONTEXT, _ITERATORS, _TAPES, _FUNCTIONS)
    if _methods.is_on or any(name not in sys.modules for name in names):
        return
    backend = getattr(sys.modules.get("keras.src.backend"), "backend", None)
    if backend is None or backend() != "tensorflow":
        return
    context, iterators, tapes, functions = (sys.modules[name] for name in names)
    kinds: list[tuple[Any, str, Any]] = [
        (module.BaseOptimizer, "apply", _wrap_apply),
        (iterators.OwnedIterator, "__init__", _wrap_iterator),
        (iterators.OwnedIterator, "__next__", _wrap_next),
        (tapes.GradientTape, "__enter__", _wrap_enter),
        (functions.Function, "__call__", _wrap_call),
    ]
    _is_eager = context.executing_eagerly
    for kind, name, _ in kinds:
        getattr(kind, name)  # raises before any method is wrapped if one does not exist
    for kind, name, make in kinds:
        _methods.wrap(kind, name, make)
    _gradients.begin(tapes.GradientTape, "gradient", _wrap_gradient)


def detach() -> None:
    """Restore the methods, and stop watching trainings."""
    _methods.unwrap()
    _gradients.end()
    _functions.clear()
    trainings.end()


def _wrap_apply(before: Any) -> Any:
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = before(self, *args, **kwargs)
        if _methods.is_on:
            with trainings.guard:
                frame = sys._getframe(1)
                if _gradients.is_on:
                    _gradients.end()
                if not _is_eager():
                    _record_traced_step(self, frame)
                elif trainings.knows(self) or not _in_fit(frame):
                    trainings.stepped(self, frame)
        return result

    return apply


def _wrap_iterator(before: Any) -> Any:
    def __init__(self: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
        made = None
        if dataset is not None and _methods.is_on:
            with trainings.guard:
                made = _new_pass(dataset, sys._getframe(1)) if _is_eager() else None
        before(self, dataset, *args, **kwargs)
        if made is not None:
            made.iterator = weakref.ref(self)
            self._watchdog_pass = made

    return __init__


def _wrap_next(before: Any) -> Any:
    def __next__(self: Any) -> Any:
        made: WatchedPass | None = self.__dict__.get("_watchdog_pass")
        if made is None or not _methods.is_on:
            return before(self)
        trainings.about_to_draw()
        try:
            result = before(self)
        except StopIteration:
            with trainings.guard:
                _end_pass(made)
            raise
        made.owner.count_batch(made)
        return result

    return __next__


def _wrap_enter(before: Any) -> Any:
    def __enter__(self: Any) -> Any:
        training = trainings.current_listening()
        if training is not None and _is_eager():
            training.computes()
        return before(self)

    return __enter__


def _wrap_call(before: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) in _functions:
            training = trainings.current_listening()
            if training is not None and _is_eager():
                training.computes()
        result = before(self, *args, **kwargs)
        known = _functions.get(id(self))  # TensorFlow may have traced it in this call
        if known is not None:
            with trainings.guard:
                _record_call(known, sys._getframe(1))
        return result

    return __call__


_CALL_CODE = _wrap_call(None).__code__


def _wrap_gradient(before: Any) -> Any:
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        result = before(self, target, sources, *args, **kwargs)
        if _gradients.is_on:
            with trainings.guard:
                frame = program_frame(sys._getframe(1))
                variables = [each for each in flatten(sources) if hasattr(each, "assign_sub")]
                if _is_eager():
                    found = _gradients.computed(lambda: variables, frame)
                    if found is not None:
                        trainings.stepped(found, frame, found.unseen_steps())
                elif variables and (found := _gradients.at(frame)) is not None:
                    found.train(variables)
                    _record_traced_step(found, frame)
        return result

    return gradient


def _record_traced_step(optimizer: Any, frame: FrameType | None) -> None:
    """Mark the outermost tf.function as training: an optimizer has stepped while it is traced."""
    # Read only the variables of our own wrapper.
    traced = [each.f_locals["self"] for each in callers(frame) if each.f_code is _CALL_CODE]
    if not traced:
        if not _is_saved():
            _is_single_replica(trainings.guard)  # a strategy traces the step in a thread
        return
    if _in_fit(frame) or not _is_single_replica(trainings.guard):
        return
    function = traced[-1]
    key = id(function)
    if key not in _functions:
        _functions[key] = _TrainingFunction(function, lambda _: _functions.pop(key, None))
    _functions[key].add(optimizer)


def _record_call(known: _TrainingFunction, frame: FrameType) -> None:
    if _is_eager():
        for optimizer in known.live_optimizers():
            trainings.stepped(optimizer, frame)
        training = trainings.current()
        if training is not None:
            training.functions.add(known.reference)
    else:
        # The function was traced alone, and is now a part of an outer function: mark that one.
        for optimizer in known.live_optimizers():
            _record_traced_step(optimizer, frame)


def _new_pass(dataset: Any, frame: FrameType | None) -> WatchedPass | None:
    outside = (f for f in callers(frame) if "tensorflow" not in str(f.f_globals.get("__name__")))
    if (frame := next(outside, None)) is None or not is_program(frame.f_code):
        return None
    from watchdog_app.agent.found import tensorflow_passes
    from watchdog_app.agent.identity.loop_steps import turn_around

    # The interpreter may replace an instruction by another one for the same text.
    text = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    place = frame.f_code, text
    return tensorflow_passes.thread_passes().add_pass(dataset, place, turn_around(frame))


def _end_pass(made: WatchedPass) -> None:
    """Handle the end of a pass."""
    if not made.finished:
        made.finished = True
        training = trainings.current()
        if made.trains and training is not None:
            training.pass_ended()


def _in_fit(frame: FrameType | None) -> bool:
    """Whether the `fit` of a Keras model, which has its own Rescue, is among the callers."""
    fits = (each for each in callers(frame) if each.f_code.co_name == "fit")
    names = (str(each.f_globals.get("__name__")) for each in fits)
    return any(name.startswith("keras.src.") and name.endswith("trainer") for name in names)


def _is_saved() -> bool:
    """Whether a Rescue saves a loop or a fit of this process."""
    from watchdog_app.agent.runtime.link import registered_links

    return bool(registered_links("tensorflow") or registered_links("keras"))


def _is_single_replica(guard: Guard) -> bool:
    """Whether no strategy is active, which would run several copies of a step in threads."""
    strategies: Any = sys.modules.get(_STRATEGIES)
    if strategies is None or not strategies.has_strategy():
        return True
    guard.print_once(
        "a loop of your own under tf.distribute is not saved automatically. "
        "Rescue(folder, model=..., optimizer=...) and rescue.step() around it do that."
    )
    return False


def _is_permitted(_optimizer: Any, guard: Guard) -> bool:
    if folders.has_several_workers(guard):
        return False
    from watchdog_app.agent.runtime.link import registered_links

    return _is_single_replica(guard) and not registered_links("tensorflow")


def _make_training(guard: Guard) -> FoundTensorFlow:
    from watchdog_app.agent.found.tensorflow_training import FoundTensorFlow

    return FoundTensorFlow(guard)


trainings: Trainings[FoundTensorFlow] = Trainings(_is_permitted, _make_training)
