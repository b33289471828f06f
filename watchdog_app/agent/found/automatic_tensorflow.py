"""
Loops of the user's own in TensorFlow that name no Rescue: how their steps are noticed.

An optimizer's `apply` is where a training shows itself: eagerly in each step, or once, while a
`tf.function` is traced, whose calls are the steps from then on. A step is over when the program
goes on: with the next batch, the next `GradientTape`, the next call of that function. Metrics,
averages and schedules that come after `apply` are done by then. Which of the loop's events is
the end of a step is learned from its first step, so that a step with two optimizers is not torn.

Nothing of TensorFlow is imported; what is imported already gets thin wrappers.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.found.automatic_tensorflow_frames import in_keras_trainer, outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.found.automatic_tensorflow_data import WatchedPass, WatchedPasses
    from watchdog_app.agent.found.automatic_tensorflow_loop import FoundLoop

_CONTEXT = "tensorflow.python.eager.context"
_ITERATORS = "tensorflow.python.data.ops.iterator_ops"
_TAPES = "tensorflow.python.eager.backprop"
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
_STRATEGIES = "tensorflow.python.distribute.distribute_lib"

# Ends of steps that were passed by because an optimizer, or a batch, was still expected.
_MOST_WAITS = 64

_guard = Guard("the agent that was switched on")
_undo: list[Callable[[], None]] = []
_is_eager: Callable[[], bool] = bool
_numbers: dict[int, int] = {}  # of optimizers in loops of the user's own, by their id
_optimizers: dict[int, weakref.ref[Any]] = {}  # by number: an id is given out again
_count = itertools.count(1)
_functions: dict[int, _Function] = {}  # tf.functions that train
_call_code: Any = None


class _Function:
    """A tf.function whose calls are steps."""

    def __init__(self, function: Any, forget: Callable[[Any], Any]) -> None:
        self.it = weakref.ref(function, forget)
        self.optimizers: set[int] = set()


class Steps(threading.local):
    """What one thread has done since its last step ended."""

    def __init__(self) -> None:
        self.restart()
        self.loop: FoundLoop | None = None
        self.passes: WatchedPasses | None = None
        self.untrained: list[WatchedPass] = []  # drawn from, and no step made with it yet
        self.busy = False

    def restart(self) -> None:
        """Learn a loop anew."""
        self.first: int | None = None  # the optimizer that stepped first
        self.learned = False
        self.expected: set[int] = set()  # optimizers of one step
        self.stepped: set[int] = set()  # those that have, since the last step ended
        self.fetched = False  # a batch, which has more after it
        self.doubted: int | None = None  # an optimizer that joined: or does it train anew?
        self.uncounted = 0  # steps whose end was not known as it came
        self.waits = 0
        self.frames: list[FrameType] = []  # of the program, in its first step only


steps = Steps()


def attach(module: ModuleType) -> None:
    """
    Notice steps from now on. Does nothing where that was done, or Keras runs on another backend.

    Args:
        module: `keras.src.optimizers.base_optimizer`.
    """
    global _is_eager, _call_code
    if _undo or any(name not in sys.modules for name in (_CONTEXT, _ITERATORS, _TAPES, _FUNCTIONS)):
        return
    backend = getattr(sys.modules.get("keras.src.backend"), "backend", None)
    if backend is None or backend() != "tensorflow":
        return
    kinds: list[tuple[Any, str, Any]] = [
        (module.BaseOptimizer, "apply", _apply),
        (sys.modules[_ITERATORS].OwnedIterator, "__init__", _iterator),
        (sys.modules[_ITERATORS].OwnedIterator, "__next__", _next),
        (sys.modules[_TAPES].GradientTape, "__enter__", _enter),
        (sys.modules[_FUNCTIONS].Function, "__call__", _call),
    ]
    befores = [getattr(kind, name) for kind, name, _ in kinds]  # all of them, or none is touched
    _is_eager = sys.modules[_CONTEXT].executing_eagerly
    for (kind, name, make), before in zip(kinds, befores, strict=True):
        ours = functools.wraps(before)(make(before))
        if name == "__call__":
            _call_code = make(before).__code__
        setattr(kind, name, ours)
        _undo.append(functools.partial(_put_back, kind, name, before, ours))


def detach() -> None:
    """As it was before, where nobody else has changed it since; a loop under way is let go."""
    while _undo:
        _undo.pop()()
    _numbers.clear()
    _optimizers.clear()
    _functions.clear()
    loop, steps.loop = steps.loop, None
    if loop is not None:
        loop.end(well=False)
    steps.restart()


def _put_back(kind: Any, name: str, before: Any, ours: Any) -> None:
    if getattr(kind, name) is ours:
        setattr(kind, name, before)


def _apply(before: Any) -> Any:
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = before(self, *args, **kwargs)
        if _undo:
            try:
                if not _is_eager():
                    _traced(self)
                else:
                    number = _numbers.get(id(self)) or _of_loop(self)
                    if number is not None:
                        _stepped(number)
            except Exception as error:
                _guard.caught(error)
        return result

    return apply


def _iterator(before: Any) -> Any:
    def __init__(self: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
        made = None
        if dataset is not None and _undo:
            try:
                if _is_eager():
                    made = _made(dataset)
            except Exception as error:
                _guard.caught(error)
        before(self, dataset, *args, **kwargs)
        if made is not None:
            made.iterator = weakref.ref(self)
            self._watchdog_pass = made

    return __init__


def _next(before: Any) -> Any:
    def __next__(self: Any) -> Any:
        if steps.stepped:
            _over("next")
        made: WatchedPass | None = self.__dict__.get("_watchdog_pass")
        if made is None:
            return before(self)
        try:
            result = before(self)
        except StopIteration:
            if not made.finished:
                made.finished = True
                steps.fetched = False
                if made.trains and steps.loop is not None:
                    steps.loop.pass_ended()
            raise
        made.drawn += 1
        made.source.total += 1
        steps.fetched = True
        if not made.trains and made.drawn == 1:
            steps.untrained.append(made)
        return result

    return __next__


def _enter(before: Any) -> Any:
    def __enter__(self: Any) -> Any:
        if steps.stepped:
            _over("tape")
        return before(self)

    return __enter__


def _call(before: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = _functions.get(id(self))
        if known is not None and steps.stepped:
            _over("call")
        result = before(self, *args, **kwargs)
        if _functions and _undo:
            known = known or _functions.get(id(self))  # it may just have been traced
            if known is not None:
                try:
                    _ran(known)
                except Exception as error:
                    _guard.caught(error)
        return result

    return __call__


def _of_loop(optimizer: Any) -> int | None:
    """The number of an optimizer that steps eagerly in a loop that could be saved."""
    if in_keras_trainer(sys._getframe(1)) or not _alone():
        return None
    return _number(optimizer)


def _traced(optimizer: Any) -> None:
    """An optimizer has stepped while a tf.function is traced: its outermost one trains."""
    function = outermost(sys._getframe(1), _call_code)
    if function is not None and _alone():
        known = _functions.get(id(function))
        if known is None:
            key = id(function)
            known = _Function(function, lambda _: _functions.pop(key, None))
            _functions[key] = known
        known.optimizers.add(_number(optimizer))


def _ran(known: _Function) -> None:
    if _is_eager():
        for number in sorted(known.optimizers):
            if number in _optimizers:
                _stepped(number)
        return
    # Traced before by itself, and now a part of another function: that one trains from now on.
    for optimizer in living(known.optimizers):
        _traced(optimizer)


def _alone() -> bool:
    """Not under a strategy, where several copies of a step run in threads."""
    strategies: Any = sys.modules.get(_STRATEGIES)
    if strategies is None or not strategies.has_strategy():
        return True
    _guard.tell_once(
        "a loop of your own under tf.distribute is not saved by itself. "
        "Rescue(folder, model=..., optimizer=...) and rescue.step() around it do that."
    )
    return False


def _number(optimizer: Any) -> int:
    key = id(optimizer)
    number = _numbers.get(key)
    if number is None:
        number = _numbers[key] = next(_count)

        def forget(_: Any) -> None:
            _numbers.pop(key, None)
            _optimizers.pop(number, None)

        _optimizers[number] = weakref.ref(optimizer, forget)
    return number


def _made(dataset: Any) -> WatchedPass | None:
    from watchdog_app.agent.found import found_names
    from watchdog_app.agent.found.automatic_tensorflow_data import WatchedPasses

    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "tensorflow" in str(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None or not found_names.is_program(frame.f_code):
        return None
    if steps.passes is None:
        steps.passes = WatchedPasses()
    return steps.passes.made(dataset, (frame.f_code, frame.f_lasti))


def _stepped(number: int) -> None:
    """An optimizer has made its step in this thread, eagerly or in a function that returned."""
    here = steps
    if here.untrained:
        _now_trained(here)
    if here.doubted is not None:
        if number == here.doubted:  # again, and the others have not: another training has begun
            here.restart()
            here.uncounted = 1
        else:  # it joined as the last of its step, and the next step begins
            here.doubted = None
            here.stepped = set()
            here.uncounted += 1
    if here.first is None:
        here.first = number
        here.expected = {number}
        here.fetched = False  # what was drawn before may have been a look at the data
    elif not here.learned and number == here.first:
        here.learned = True  # the second step is under way
        here.stepped = set()
        here.uncounted += 1
    elif number not in here.expected:
        here.expected.add(number)
        if here.learned:
            here.doubted = number
    here.stepped.add(number)


def _now_trained(here: Steps) -> None:
    drawn, here.untrained = here.untrained, []
    for made in sorted(drawn, key=lambda each: each.number):
        if made.iterator() is not None and not made.finished and here.passes is not None:
            here.passes.trains(made)


def _over(event: str) -> None:
    """Something has happened behind a step: if that is the step's end, the loop is told."""
    here = steps
    if here.busy or not _undo:
        return
    if not here.learned:
        if not here.frames:
            from watchdog_app.agent.found import found_names

            # The loop is in a function that is still running when this happens again.
            here.frames = list(found_names.program_frames(sys._getframe(2)))
        return
    if here.doubted is not None:
        return
    if (here.fetched and event != "next") or not here.stepped >= here.expected:
        here.waits += 1
        if here.waits >= _MOST_WAITS:
            here.restart()  # what was expected comes no more
        return
    here.waits = 0
    here.fetched = False
    here.stepped = set()
    here.busy = True  # what we do ourselves is no step
    try:
        if _is_eager():
            _ended(here)
    except Exception as error:
        _guard.caught(error)
    finally:
        here.busy = False


def _ended(here: Steps) -> None:
    frame = sys._getframe(2)
    loop = here.loop
    if loop is None or loop.numbers != here.expected:
        optimizers = living(here.expected)
        if loop is not None and not loop.is_of(optimizers):
            loop.end(well=True)
            loop = None
            if here.passes is not None:
                here.passes.restart()
        if loop is None:
            from watchdog_app.agent.found import automatic_tensorflow_loop as found

            frames, here.frames = here.frames, []
            loop = here.loop = found.find(optimizers, frame, frames, here.passes)
            loop.functions = _training_functions(here.expected)
            loop.forget = here.restart
        loop.numbers = set(here.expected)
    done, here.uncounted = here.uncounted + 1, 0
    loop.step(frame, done)


def living(numbers: Iterable[int]) -> list[Any]:
    """The optimizers of these numbers that are still there."""
    found = (_optimizers.get(number) for number in sorted(numbers))
    return [each for weak in found if weak is not None and (each := weak()) is not None]


def _training_functions(optimizers: Iterable[int]) -> list[weakref.ref[Any]]:
    asked = set(optimizers)
    return [known.it for known in list(_functions.values()) if asked & known.optimizers]
