"""
A loop of the user's own in TensorFlow that names no Rescue: found, and saved when that is asked.

What it trains is known by the names that the program has for it, and held by weak references
alone. A rescue is that of `agent.tensorflow.Rescue` under those names, so that the lines that
`automatic_lines` prints go on from it. Nothing resumes by itself: where a loop of somebody's own
begins, nobody but its writer knows.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.contain import Guard, say
from watchdog_app.agent.fit import step_random
from watchdog_app.agent.found import automatic, automatic_lines, found_names
from watchdog_app.agent.found.automatic_tensorflow import living
from watchdog_app.agent.found.automatic_tensorflow_data import WatchedPasses
from watchdog_app.agent.found.automatic_tensorflow_frames import in_keras_trainer
from watchdog_app.agent.found.found_names import Found
from watchdog_app.agent.loops import variables
from watchdog_app.agent.loops.loop_state import LoopState
from watchdog_app.agent.notebook import notebook_path
from watchdog_app.agent.published.guards import Untold
from watchdog_app.agent.reporting.link import Link, open_ones
from watchdog_app.agent.saving import chapters
from watchdog_app.agent.saving.store import RescueStore
from watchdog_app.agent.session import Capture, Session

FRAMEWORK = "tensorflow"
_KINDS = (
    keras.Layer,
    keras.optimizers.Optimizer,
    keras.metrics.Metric,
    tf.Module,
    tf.train.Checkpoint,
    tf.random.Generator,
)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_UNPLACED = "the place in data that is no tf.data.Dataset (rescue.step_number counts the steps)"
_COUNTED = "plain values that the loop keeps, such as counters and histories"
_MOST_LOOPS = 100  # a search over parameters; each takes 15 to 40 ms to begin

_guard = Guard("the agent that was switched on")
_loops = 0


class FoundLoop:
    """One loop, from the second step on until another one trains or the program ends."""

    def __init__(self, passes: WatchedPasses | None) -> None:
        self.numbers: set[int] = set()  # of its optimizers, as they are known by
        self.functions: list[weakref.ref[Any]] = []  # that make its steps
        self.forget: Callable[[], None] = lambda: None  # the loop is over: learn the next anew
        self._passes = WatchedPasses() if passes is None else passes
        self._session: Session | None = None
        self._directory = ""
        self._beginning: chapters.Beginning | None = None
        self._made_above: str | None = None
        self._frame: FrameType | None = None  # where the step ended, while a save lasts
        self._step = 0
        self._names: list[tuple[str, str, Callable[[], Any]]] = []
        self._code: Any = None  # of the function that holds the loop
        self._state: LoopState | None = None  # only while a save lasts
        self._told = False  # that a rescue was saved
        self._random: list[str] | None = None
        self._pid = os.getpid()

    def is_of(self, optimizers: Iterable[Any]) -> bool:
        """Whether this is the loop that these optimizers train, all of them or some."""
        mine = living(self.numbers)
        return any(each is one for each in mine for one in optimizers) or not _holders(
            mine
        ).isdisjoint(_holders(optimizers))

    def begin(self, found: Sequence[Found], code: Any) -> None:
        """What was found of it; from now on it can be saved."""
        self._code = code
        self._names = [(each.name, each.expression, _weak(each.thing)) for each in found]
        self._directory, waits = automatic_lines.place()
        above = os.path.dirname(self._directory)
        self._made_above = None if os.path.lexists(above) else above
        self._beginning = begun = chapters.begin(self._directory, False, found=True)
        store = RescueStore(begun.directory, run=begun.run)
        link = Link(FRAMEWORK, store.directory, notebook_path(), by_lines=True)
        self._session = Session(store, link, self._capture, guards=Untold)
        self._session.breakdown.holds([each.thing for each in found])
        self._session.prepare()
        if waits is not None:
            automatic_lines.offer(waits, self._directory)
        else:
            _guard.tell_once(
                f"this training loop is saved in {automatic.shown(self._directory)} when memory "
                "runs out. See: watchdog rescues"
            )
            automatic.tell_of_others(self._directory)
        _at_end(self)

    def step(self, frame: FrameType, done: int) -> None:
        """`done` steps have ended since the last call, and the program is about to go on."""
        self._step += done
        session = self._session
        if session is None:
            return
        if session.link.wanted is not None:
            if self._pid != os.getpid() or in_keras_trainer(frame):
                return  # a forked child, or a fit with this optimizer
            if _explicit(session.link):
                self.end(well=True)
                return
        self._frame = frame
        try:
            saved = session.boundary(self._step, epoch=self._epoch, batch=self._passes.batch)
            if saved is not None:
                self._tell(saved.path)
        finally:
            self._frame = self._state = None

    def save(self, frame: FrameType, reason: str) -> str | None:
        """Save between two steps, without the daemon; the folder, or None."""
        if self._session is None:
            return None
        self._frame = frame
        try:
            saved = self._session.save_now(reason, self._step)
            if saved is not None:
                self._tell(saved.path)
        finally:
            self._frame = self._state = None
        return None if saved is None else saved.path

    def pass_ended(self) -> None:
        """A data set has no more batches: the next epoch may draw an order from what is now."""
        if self._session is not None:
            with _guard:
                self._passes.at_end = self._make_state().take_random()
            self._session.gap()

    def end(self, *, well: bool) -> None:
        """It is over; `well`: its rescues are not to be gone on from."""
        session, self._session = self._session, None
        if session is None or self._pid != os.getpid():
            return
        if well and self._beginning is not None:
            with _guard:
                chapters.finish(self._beginning)
        session.end(well=well)
        automatic_lines.leave_nothing(session.store.directory, self._directory, self._made_above)

    @property
    def open(self) -> bool:
        """Whether it can be saved."""
        return self._session is not None

    @property
    def read_to_end(self) -> bool:
        """Whether no pass over its data was left in the middle, as far as there are any."""
        return self._passes.all_finished

    def _capture(self) -> Capture:
        frame = self._frame
        if frame is not None:
            # As they are now: a program may have made its model anew.
            optimizers = living(self.numbers)
            again = _things(optimizers, _held_by(frame, self._code))
            if _holders(optimizers) <= _covered(again):
                self._names = [(each.name, each.expression, _weak(each.thing)) for each in again]
        state = self._state = self._make_state()
        state.not_repeatable = [_COUNTED, *self._drawn_inside()]
        if not self._passes.begun:
            state.not_repeatable.append(_UNPLACED)
        capture = state.capture()
        expressions = {name: expression for name, expression, thing in self._names if thing()}
        datasets = self._passes.datasets
        named = found_names.names_of(datasets, frame)
        data = [
            next((n for n, one in named.items() if one is each), "dataset") for each in datasets
        ]
        found = automatic_lines.Recorded(
            FRAMEWORK, self._directory, expressions, data, _where(self._code)
        )
        return Capture(capture.entries, {**capture.meta, "found": found.to_json()})

    def _make_state(self) -> LoopState:
        held = {name: thing for name, _, weak in self._names if (thing := weak()) is not None}
        return LoopState(held, self._position, self._passes, begins=False)

    @property
    def _epoch(self) -> int | None:
        """Counted from 0; None where the loop has read no data set, which tells its epochs."""
        return self._passes.epoch if self._passes.begun else None

    def _position(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "batch": self._passes.batch,
            "passes": self._passes.position(),
            "at_epoch": self._passes.at_epoch if self._passes.begun else None,
        }

    def _drawn_inside(self) -> list[str]:
        """Random operations in the step's graph, whose counters nobody can read."""
        if self._random is None:
            found: set[str] = set()
            for weak in self.functions:
                function = weak()
                found.update(step_random.stateful_operations(lambda f=function: f))
            self._random = sorted(found)
        if not self._random:
            return []
        return [f"random numbers drawn in the training function by {', '.join(self._random)}"]

    def _tell(self, path: str) -> None:
        lost = [] if self._state is None else self._state.lost
        if not self._told:
            self._told = True
            more = f" A resume will not bring back: {'; '.join(lost)}." if lost else ""
            where = automatic_lines.place_in(self._step, self._epoch)
            say(
                f"saved in {automatic.shown(path)}: {where}. "
                f"When this program is run again, it says how to go on from there.{more}"
            )


def find(
    optimizers: Sequence[Any],
    frame: FrameType,
    before: Sequence[FrameType],
    passes: WatchedPasses | None,
) -> FoundLoop:
    """
    The loop that these optimizers train.

    Args:
        optimizers: that have made its steps.
        frame: where one of its steps has ended.
        before: the program's frames as the step before that had ended.
        passes: over data in this thread, as far as there were any.
    """
    global _loops
    loop = FoundLoop(passes)
    if os.environ.get("TF_CONFIG"):
        _guard.tell_once(
            "TF_CONFIG is set: a training of several workers is not saved by itself. "
            "TensorFlow's own checkpoints do that."
        )
        return loop
    if _explicit(None) or in_keras_trainer(frame):
        return loop
    if _loops >= _MOST_LOOPS:
        _guard.tell_once(
            f"this program has begun {_MOST_LOOPS} training loops; further ones are not saved by "
            "themselves. Give Rescue(...) to those that matter."
        )
        return loop
    here = _common(frame, before)
    found = _things(optimizers, here)
    if here is None or not _holders(optimizers) <= _covered(found):
        _guard.tell_once(
            "a training loop is not saved by itself: it trains variables that no name in it leads "
            "to. Name them: Rescue(folder, model=..., optimizer=...), and rescue.step() in it."
        )
        return loop
    _loops += 1
    loop.begin(found, here.f_code)
    return loop


def _things(optimizers: Sequence[Any], frame: FrameType | None) -> list[Found]:
    """What the loop's state consists of, each variable in one of them."""
    chosen = {id(each) for each in optimizers}

    def wanted(thing: Any) -> bool:
        if isinstance(thing, keras.optimizers.Optimizer):
            inner = getattr(thing, "inner_optimizer", None)
            return id(thing) in chosen or (inner is not None and id(inner) in chosen)
        if isinstance(thing, keras.Model):
            return bool(thing.built)
        return (
            isinstance(thing, _KINDS)
            or variables.is_variable(thing)
            or (isinstance(thing, _GENERATORS) and all(thing is not one for one in _global_ones()))
        )

    found = found_names.search(frame, wanted)
    sizes = {one.name: len(_of(one)) for one in found}
    # The whole before its parts: an autoencoder before its encoder.
    layers = [one for one in found if isinstance(one.thing, keras.Layer)]
    layers.sort(key=lambda one: -sizes[one.name])
    others = [one for one in found if not isinstance(one.thing, keras.Layer)]
    others.sort(key=lambda one: isinstance(one.thing, tf.train.Checkpoint))
    seen: set[int] = set()
    chosen_ones = []
    for one in (*layers, *others):
        held = _of(one)
        generator = isinstance(one.thing, _GENERATORS)
        if generator or not held <= seen:
            seen |= held
            chosen_ones.append(one)
    return chosen_ones


def _global_ones() -> tuple[Any, ...]:
    """They go into each rescue without being named."""
    return getattr(random, "_inst", None), np.random.mtrand._rand


def _of(one: Found) -> set[int]:
    return {id(each.holder) for each in variables.of_objects({one.name: one.thing})}


def _covered(found: Iterable[Found]) -> set[int]:
    return {holder for one in found for holder in _of(one)}


def _holders(optimizers: Iterable[Any]) -> set[int]:
    """The variables that optimizers train."""
    held = {
        f"{number}.{index}": variable
        for number, each in enumerate(optimizers)
        for index, variable in enumerate(getattr(each, "_trainable_variables", ()))
    }
    return {id(each.holder) for each in variables.of_objects(held)}


def _common(frame: FrameType, before: Sequence[FrameType]) -> FrameType | None:
    """The innermost function of the program that has been running since the step before."""
    frames = list(found_names.program_frames(frame))
    for each in frames:
        if any(each is one for one in before):
            return each
    return frames[0] if frames else None


def _held_by(frame: FrameType, code: Any) -> FrameType | None:
    frames = list(found_names.program_frames(frame))
    return next((each for each in frames if each.f_code is code), frames[0] if frames else None)


def _where(code: Any) -> str:
    return f"{os.path.basename(code.co_filename)}, {code.co_name}" if code is not None else ""


def _weak(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:  # NumPy's generators, which hold nothing
        return lambda: thing


def _explicit(own: Link | None) -> bool:
    """Whether the program has a Rescue of its own for a loop."""
    return any(each is not own for each in open_ones(FRAMEWORK))


def _at_end(loop: FoundLoop) -> None:
    """Learn whether the loop's cell or program ends well."""
    reference = weakref.ref(loop)
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get() if get else None
    events = getattr(shell, "events", None)
    if events is None:
        atexit.register(_program_ends, reference)
        return

    def cell_ends(result: Any = None) -> None:
        events.unregister("post_run_cell", cell_ends)
        found = reference()
        if found is not None:
            found.end(well=bool(getattr(result, "success", True)))
            found.forget()

    events.register("post_run_cell", cell_ends)


def _program_ends(reference: weakref.ref[FoundLoop]) -> None:
    loop = reference()
    # What ended by an error or by Ctrl-C is to be gone on from. A program may have caught the
    # error itself; its data was not read to the end then.
    if loop is not None:
        loop.end(well=getattr(sys, "last_type", None) is None and loop.read_to_end)
