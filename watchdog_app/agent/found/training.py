"""
Find, report and save a training without a Rescue.

The agent holds the objects of the training by weak references only. It writes the same rescue as
the framework's `Rescue`, under the names that the program has for the objects. The lines of
`resume_lines` resume from it. The agent saves at the end of an iteration: after schedulers, metrics
and averages, and before the program draws the next batch.
"""

from __future__ import annotations

import ast
import atexit
import os
import re
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from threading import get_ident
from types import FrameType, FunctionType
from typing import Any, ClassVar

from watchdog_app.agent.adapters.named import NamedState
from watchdog_app.agent.adapters.passes import UNSEEN, RecordedPass
from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.found import folders, resume_lines
from watchdog_app.agent.found.detector import COMPUTE, DRAW, Detector
from watchdog_app.agent.found.gradients import ByHand
from watchdog_app.agent.found.loop_source import LoopSource
from watchdog_app.agent.found.loop_variables import NOTHING, LoopVariables, keyword
from watchdog_app.agent.found.random_draws import RandomDraws
from watchdog_app.agent.identity import loop_code, names, source_loops
from watchdog_app.agent.identity.attributes import Attributes
from watchdog_app.agent.identity.audit import COUNTED, Audit, Carried, kept_by
from watchdog_app.agent.identity.code import (
    attributes_of,
    is_own,
    source_tree,
)
from watchdog_app.agent.identity.keras_facts import Functions
from watchdog_app.agent.identity.loop_steps import count_steps, iterated
from watchdog_app.agent.identity.names import Named
from watchdog_app.agent.runtime import run_choice
from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.agent.source.edits import MADE_AGAIN
from watchdog_app.agent.state import own_random
from watchdog_app.agent.state.values import is_metric
from watchdog_app.base.errors import RescueError
from watchdog_app.base.text.plain import few_names
from watchdog_app.rescue.checkpoint.format import Capture
from watchdog_app.rescue.checkpoint.store import RescueStore, SavedRescue
from watchdog_app.rescue.identity.notebook import ipython_shell, notebook_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.found.tensorflow_passes import WatchedPasses
    from watchdog_app.agent.found.torch_passes import SeenPasses
    from watchdog_app.agent.snapshot.change_marker import ChangeMarker

RULE = "values of the loop's own update rule that are in no tensor with a name"
_ORDER = "the order of the data in this epoch, if the data shuffles itself"
_UNSEEN_END = "the end of its iterations is not seen"
NO_LINES = "the place in the loop, as no lines resume the program as it is"
_ANOTHER = (
    f"{MADE_AGAIN} optimizer than the one it began with, and a Rescue before the loop saves that "
    "one: make one optimizer before the loop, and change its settings in place"
)
DRAWN = "random numbers that the loop may draw after its step"
# Shorter trainings are trials, which are not worth the cost of a folder and a thread.
_BEGINS_AFTER_S = 0.5
_REPORT_AFTER_S = 10.0  # what a resume will not restore; by then an iteration has shown its way
_MOST_UNSEEN = 64  # iterations in a row without a seen end before the agent gives up
_MOST_LOOPS = 4  # that a training reads in turn, such as one before its main loop
_MOST_HOOKS = 32  # functions in a list or dict
_DRAWS_NO_MORE = 2  # iterations in a row without a draw before the agent learns the loop again


class FoundTraining(ABC):
    """A training of one thread, from the first step of an optimizer to the end of the training."""

    framework: ClassVar[str]  # the name that the daemon gets
    kind: ClassVar[str]  # the name that users see: "PyTorch training"
    how_to_name: str  # advice for the user if the training cannot be saved automatically
    one_has_begun: ClassVar[bool] = False  # in this process; the next ones are no trials either

    def __init__(self, guard: Guard, passes: SeenPasses | WatchedPasses) -> None:
        """
        Args:
            guard: prints messages that concern all trainings once.
            passes: passes of this thread over the framework's data.
        """
        self.detector = Detector()
        self.session: Session | None = None
        self.over = False
        self.may_begin_again = False  # whether its optimizers may begin another training
        self.directory = ""
        self.wants_draws = False  # whether `draws` must be called before the next draw
        self.listening = False  # whether `computes` must be called before the model computes
        self.unseen_ends = 0  # iterations in a row whose end was awaited and not seen
        self.passes = passes
        self.loop = LoopSource()
        self._guard = guard
        self._beginning: run_choice.Beginning | None = None
        self._made_above: str | None = None
        self._thread = get_ident()
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._optimizers: dict[int, Callable[[], Any]] = {}
        self._late_optimizer: int | None = None  # an optimizer that came late and stepped last
        self._names: list[Named] = []
        # Functions that compute the loss, by the names of the objects in a rescue.
        self._loss_functions: dict[frozenset[str], Functions | None] = {}
        self._audit: Audit | None = None  # of the loop's source
        self._variables = LoopVariables((), self._tensor_bytes)
        self._counters: list[Carried] = []  # at which the lines continue loops over ranges
        # Number of the last iteration, and its variables.
        self._values: tuple[int, dict[str, Any]] | None = None
        self._at_boundary = False
        self._is_due = False  # whether the end of this iteration is more than counted
        self._loops_left = _MOST_LOOPS  # that may take the place of the first one
        self._is_elsewhere = False  # whether the last step was in another loop than the lines
        self._knows_loop = False  # whether the last boundary was in the loop of `_audit`
        self._has_drawn = True  # whether a pass has advanced since the iteration before
        self._random = RandomDraws()
        self._reported = False
        self._has_lines = True  # whether lines can resume it, as far as known
        self._reported_lost = False
        self._outer: list[str] = []  # loops around it that begin again, as texts
        self.made_again = ""  # why no lines restore an object that the loop makes again
        self._set_again: tuple[str, ...] = ()  # variables that earlier trainings set again
        self._data: list[str] = []  # names of its data sets
        # The attributes of an object of the program that the loop reads, and its id.
        self._own_data = Attributes(()), 0
        self._data_values: dict[str, dict[str, Any]] = {}  # of these, after the last step
        self._of_library = False  # a library's loop may end in the middle of its data

    @abstractmethod
    def _find_objects(self, frame: FrameType | None) -> list[Named]:
        """The objects of its state, with the names that reach them from `frame`."""

    @abstractmethod
    def _has_unnamed(self) -> bool:
        """Whether a trained tensor belongs to no object with a name."""

    @abstractmethod
    def _has_own_rescue(self) -> bool:
        """Whether the program has its own Rescue for this training."""

    @abstractmethod
    def _make_state(self, objects: Mapping[str, Any]) -> NamedState:
        """Make the state of the named objects."""

    @abstractmethod
    def _tensor_bytes(self, value: Any) -> int:
        """Bytes of the tensors in a value; raises TypeError if a rescue cannot hold the value."""

    def _watchable(self, frame: FrameType) -> list[str]:
        """Expressions in a frame of the attributes that objects of the program keep."""
        named = {self._own_data[1], *(id(each.get()) for each in self._names)}
        found = self._find_in(
            frame, lambda one: names.is_plain_object(one) and id(one) not in named
        )
        return [
            f"{each.expression}.{name}"
            for each in found
            for name in kept_by(type(each.thing)).intersection(attributes_of(each.thing))
        ]

    def _set_by_hooks(self, frame: FrameType) -> Iterator[str]:
        """Global variables that functions in lists and dicts set, such as callbacks."""
        for each in names.search(frame, lambda one: isinstance(one, list | dict)):
            held = each.thing.values() if isinstance(each.thing, dict) else each.thing
            for hook in islice(held, _MOST_HOOKS):
                text = source_tree(hook.__code__) if isinstance(hook, FunctionType) else None
                for node in ast.walk(text or ast.Pass()) if is_own(hook) else ():
                    yield from node.names if isinstance(node, ast.Global) else ()

    def _find_in(self, frame: FrameType, wanted: names.Wanted) -> list[names.Found]:
        """The wanted objects that the names of one frame reach, without those of one iteration."""
        passing = self.loop.assigned_names()
        return [
            each
            for each in names.search(frame, wanted, passing)
            if each.code is frame.f_code and re.split(r"\W", each.expression)[0] not in passing
        ]

    def _stamp(self, value: Any) -> int | None:  # noqa: ARG002
        """A number that changes with the elements of tensors; None for other values."""
        return None

    @abstractmethod
    def _make_marker(self) -> ChangeMarker:
        """The marker that shows other processes that a step has begun."""

    def _random_at_boundary(self) -> dict[str, Any]:
        """The random states that a resume begins with."""
        return self._random.at_boundary(self._names)

    def _extra_meta(self) -> dict[str, Any]:
        """Additional values for the meta of a rescue of this framework."""
        return {}

    def _not_restored(self) -> list[str]:
        """Further values that a resume does not restore, as texts."""
        audit, values = self._audit, self._values_now()
        restored = {*values, *self._variables.unset, *self._set_again}
        drawn = self._random.drawn_after
        found = [f"{DRAWN}: {', '.join(drawn)}"] if drawn else []
        found += [self.made_again.partition(",")[0]] if self.made_again else []
        found += self._outer
        # The lines begin again with data whose passes the agent does not see.
        unseen = audit is not None and audit.iterates and not self.passes.begun
        unseen &= audit is None or len(self._counters) < len(audit.counters) or not self._counters
        if unseen or (audit is not None and audit.fetches):
            again = "" if audit is None else audit.begins_again
            found.append(again or (UNSEEN if self._variables.place is None else _ORDER))
        if self._is_elsewhere or not self._has_lines:
            found.append(NO_LINES)
        if audit is not None and (self._of_library or (audit.has_source and self._knows_loop)):
            further = (*self._variables.changed, *(each.expression for each in self._counters))
            changed = [each for each in further if each not in restored]
            return found + audit.lost(restored, None if self._of_library else changed)
        if self._of_library:
            return found
        return [*found, *([RULE] if self._is_by_hand else []), f"{COUNTED}: it is not known which"]

    def _values_now(self) -> dict[str, Any]:
        """The variables of the loop at the last boundary, as far as a rescue can hold them."""
        step, values = self.detector.iterations, dict[str, Any]()
        if self._values is None or self._values[0] != step:
            self._variables.unset = []
            if self._at_boundary and not self._of_library:
                with self._guard:
                    self._knows_loop = self.loop.is_in_loop()
                    if not self.passes.is_behind:
                        values = self._variables.read(sys._getframe(1))
            self._values = step, values
        return self._values[1]

    @property
    def _is_by_hand(self) -> bool:
        """Whether the program updates parameters without an optimizer."""
        return any(isinstance(each, ByHand) for each in self.optimizers())

    def optimizers(self) -> list[Any]:
        """Its optimizers that still exist."""
        return [each for get in list(self._optimizers.values()) if (each := get()) is not None]

    def step(self, optimizer: Any, frame: FrameType) -> None:
        """Handle a step of an optimizer of this training in `frame`."""
        if get_ident() != self._thread:
            return
        key = id(optimizer)
        if key not in self._optimizers:
            self._add_optimizer(optimizer, frame)
        elif self._late_optimizer is not None:
            if key == self._late_optimizer and not self._reaches_others(optimizer, frame):
                self.end(succeeded=self.has_succeeded())
                self.may_begin_again = True
                return
            self._late_optimizer = None
        self._has_drawn = self.passes.match_step() or self._has_drawn
        if not self.detector.stepped(key):
            return
        if not self._has_drawn:
            self.passes.record_empty_iteration()
        self._has_drawn = False
        self._random.after_step, session = None, self.session
        self._is_elsewhere = not self._of_library and self.loop.is_beside(frame)
        if self._is_elsewhere and self._loops_left and self.passes.is_first:
            self._loops_left -= 1  # an epoch begins in this loop, so its lines can resume it
            self._is_elsewhere, self.loop.places = False, source_loops.program_places(frame)
            self._read_loop(frame)
        if session is None:
            lasted_s = time.monotonic() - self._began
            if lasted_s >= _BEGINS_AFTER_S or FoundTraining.one_has_begun:
                self._begin(frame)
            return
        detector = self.detector
        self._is_due = session.record_step_time(detector.iterations)
        self.wants_draws = self._is_due or detector.watching
        self.unseen_ends += 1
        if self.wants_draws:
            self._variables.read_after_step(frame)
            self._data_values = self._own_data[0].changed_values()
        else:
            self._variables.after_step = NOTHING
        # Most loops skip this block at each step.
        if self.unseen_ends >= _DRAWS_NO_MORE or detector.watching or detector.head is not DRAW:
            self._await_end()

    def pass_ended(self) -> None:
        """Read the variables at the end of a pass: memory may run out in an evaluation."""
        self._values, is_seen = None, self.session is not None and not self.over
        if is_seen and self.detector.head is DRAW and not self._of_library:
            with self._guard:
                self._at_boundary = True
                self._values_now()
            self._at_boundary = False

    def draws(self) -> None:
        """Handle a draw of a batch that is about to begin in the thread of this training."""
        try:
            if self.detector.drawn():
                self.unseen_ends = 0
                self._iteration_ended()
        except Exception as error:
            self._guard.caught(error)

    def computes(self) -> None:
        """Handle a computation of the model that is about to begin in the training's thread."""
        try:
            if self.detector.computes():
                self.unseen_ends = 0
                self._stop_listening()
                frame = sys._getframe()
                has_turned = self._variables.has_turned(frame)
                self._random.model_computes(
                    self._names, self.loop.places, frame, has_turned=has_turned
                )
                self._iteration_ended()
                self._random.iteration_ended()
        except Exception as error:
            self._guard.caught(error)

    def is_before_step(self) -> bool:
        """Whether an iteration of the program's own loop has begun and not reached its step."""
        return not self.detector.watching and self.loop.is_before_step()

    def has_succeeded(self) -> bool:
        """Whether the loop ended without an exception, as far as Python recorded one."""
        return not self.loop.was_interrupted()

    def end(self, *, succeeded: bool) -> None:
        """
        End the training.

        The agent cannot see an exception that the program caught, or a `sys.exit()`. So the
        rescues also stay for a resume if the program left the loop in the middle of its data.

        Args:
            succeeded: whether the training is complete, so that no run needs to resume it.
        """
        self._close(succeeded=succeeded and (self._of_library or not self.passes.is_unfinished))

    def makes_another_optimizer(self, frame: FrameType) -> str:
        """Why no lines fit if a new optimizer steps in a later turn of this loop; else empty."""
        with self._guard:
            self._variables.locate(frame)
            return _ANOTHER if self._variables.is_later_turn else ""
        return ""

    def _reaches_others(self, optimizer: Any, frame: FrameType) -> bool:
        """Whether the program has names for other optimizers, so that they may step again."""
        others = [each for each in self.optimizers() if each is not optimizer]
        return self._is_by_hand or bool(names.names_of(others, frame))

    def _add_optimizer(self, optimizer: Any, frame: FrameType) -> None:
        key, known, forget = id(optimizer), self._optimizers, self.detector.remove

        def gone(_: Any) -> None:
            known.pop(key, None)
            forget(key)

        self._late_optimizer = key if known and self.detector.iterations > 1 else None
        known[key] = weakref.ref(optimizer, gone)
        self.loop.places = source_loops.program_places(frame)
        if self.session is not None:
            self._names = self._not_carried(self._find_objects(frame))
            self.loop.find_calls(frame, self._names)

    def _not_carried(self, found: list[Named]) -> list[Named]:
        """The objects, without metrics that the lines restore, and without unused generators."""
        carried = () if self._audit is None else self._audit.carried
        renewed = () if self._audit is None else self._audit.renewed
        # One that the loop will load belongs into the lines before it has changed.
        found = [replace(each, stamp=None) if id(each.get()) in renewed else each for each in found]
        used = {name for call in self.loop.calls for name in call.names}
        return [each for each in found
                if (each.expression not in carried or not is_metric(each.get()))
                # One that only a caller names has made the data.
                and (each.name in used or not used or not own_random.is_generator(each.get()))
                ]  # fmt: skip

    def _close(self, *, succeeded: bool) -> None:
        self.over = True
        self._stop_listening()
        session, self.session = self.session, None
        if session is None or self._pid != os.getpid():
            return
        if succeeded and self._beginning is not None:
            with self._guard:
                run_choice.finish(self._beginning)
        # An error in a cell ends no kernel.
        session.end(succeeded=succeeded, program_continues=ipython_shell() is not None)
        folders.remove_empty(session.store.directory, self.directory, self._made_above)

    def _read_loop(self, frame: FrameType) -> None:
        """Read from its text what the loop around a step trains and keeps."""
        self.loop.find_loops(frame)
        self._names = self._find_objects(frame)
        self.loop.find_calls(frame, self._names)
        if self._has_unnamed():
            self.over = self.session is None
            self._report_not_saved("no name of the program leads to some of what it trains")
            return
        with self._guard:
            # A loop may make new metrics in each epoch.
            passing = source_loops.assigned_names(source_loops.program_places(frame))
            known = {each.name: thing for each in self._names
                     if not is_metric(thing := each.get()) or each.expression not in passing
                     }  # fmt: skip
            data, is_counted = iterated(self.loop.loops, frame)
            # The lines draw again from data that is its own iterator.
            own_id = id(data) if is_counted or isinstance(data, Iterator) else 0
            self._own_data = Attributes([("data", data)] if is_counted else ()), own_id
            self._audit = audit = Audit(
                frame, object(), known, unused=True, watchable=self._watchable
            )
            audit.add_names(self._set_by_hooks(frame))
            self._names = self._not_carried(self._names)
            named = {each.name: each.get() for each in self._names}
            of_library = self.framework == "tensorflow"
            # Of the objects that the lines name: a frozen teacher is not among them, and a copy
            # of the network that is renewed from time to time is.
            self._loss_functions = {
                frozenset(each): loop_code.functions(frame, object(), each, of_library=of_library)
                for each in (named, self._live_objects())
            }
            self._counters = self._unplaced_counters(audit)
            more = {each.expression: each for each in self._counters}
            self._variables = LoopVariables(
                (*more.values(), *audit.carried.values()),
                self._tensor_bytes,
                self.loop.loops,
                audit.watched.values(),
                self._stamp,
            )
            self._variables.find_changed(frame)
            self.loop.add_files(audit.classes)
            record = self._record(self._expressions(), (*audit.carried, *audit.watched, *more))
            lines = resume_lines.with_lines(record, self.loop.text())
            self._variables.left_out, self._set_again = lines.left_out, lines.set_again
            self._outer = lines.outer
            again = (each for each in lines.notes if each.startswith(MADE_AGAIN))
            self.made_again = next(again, self.made_again)
            if self.made_again:
                self._has_lines = False
                self._guard.print_once(f"no lines will resume this training: {self.made_again}.")

    def _begin(self, frame: FrameType) -> None:
        FoundTraining.one_has_begun = True
        self._read_loop(frame)
        if self.over:
            return
        self.directory, waits = resume_lines.choose_folder()
        self._made_above = folders.missing_parent(self.directory)
        self._beginning = begun = run_choice.begin(self.directory, False, found=True)
        store = RescueStore(begun.directory, report=print_message, run=begun.run)
        link = Link(self.framework, store.directory, notebook_path(), by_lines=True)
        me = weakref.ref(self)
        link.loop_has_ended = lambda: (one := me()) is not None and one.loop.has_left_loops()
        self.session = Session(store, link, self._capture, marker=self._make_marker)
        self.session.count_steps = lambda: count_steps(self.passes)
        self.session.breakdown.set_objects([each.get() for each in self._names])
        self.session.prepare()
        if waits:
            resume_lines.report_waiting(waits, self.directory, self.loop.text())
        else:
            self._guard.print_once(
                f"{self.kind}s are saved in {folders.display_path(self.directory)} when memory "
                f"runs out. {folders.see_rescues(self.directory)}"
            )
            folders.report_other_rescues(self.directory, begun.why)
        self._after_open()

    def _unplaced_counters(self, audit: Audit) -> list[Carried]:
        """The counters of loops over ranges whose place neither data nor steps show."""
        loops, counters = audit.counters, [each for each in audit.counters if each is not None]
        if not audit.iterates or (self.passes.begun and len(loops) != 1):
            return []
        are_all = len(counters) == len(loops) == len({each.expression for each in counters}) <= 2
        if are_all:
            return counters
        return [] if loops[-1] is None else counters[-1:]  # the outermost begins its turn again

    def _record(
        self, objects: dict[str, str], variables: Iterable[str], framework: str = ""
    ) -> resume_lines.LoopRecord:
        """The record of the loop in a rescue with these objects and variables."""
        return resume_lines.LoopRecord(
            framework or self.framework,
            self.directory,
            objects,
            self._data,
            self.loop.description(),
            self._variables.records(variables),
            self.loop.calls,
            self.loop.files(),
        )

    def _after_open(self) -> None:
        """Prepare for the end of a training that can be saved from now on."""
        _register_end(self)
        self._learn_head()

    def _learn_head(self) -> None:
        """Start to learn which event begins an iteration."""
        self.detector.start_watching()
        self.wants_draws = True
        self._start_listening()

    def _await_end(self) -> None:
        """Listen for the end of an iteration after its last step, if a save may need it."""
        detector, head = self.detector, self.detector.head
        if head is not DRAW and not self.listening:
            self.unseen_ends = 0  # no end was awaited
        if self.unseen_ends >= _MOST_UNSEEN:
            self._stop_listening()
            self._report_not_saved(_UNSEEN_END)
            if self.session is not None and self.session.publisher is not None:
                self.session.publisher.explain(_UNSEEN_END)
        elif head is DRAW and self.unseen_ends >= _DRAWS_NO_MORE:
            if not detector.watching:
                self._learn_head()
        elif head is not None:
            detector.stop_watching()
            self._stop_listening()
            if head is COMPUTE and self.wants_draws:
                # The loop draws its data itself, perhaps already for the next iteration.
                self._random.record_step(self._names)
                self._start_listening()

    def _start_listening(self) -> None:
        """Start to listen for the model's computations."""
        self.listening = True

    def _stop_listening(self) -> None:
        self.listening = False

    def _report_not_saved(self, why: str) -> None:
        self._guard.print_once(
            f"a {self.kind} is not saved automatically: {why}. {self.how_to_name}"
        )

    def _iteration_ended(self) -> None:
        """Handle the end of an iteration, before the next one begins."""
        session, step = self.session, self.detector.iterations
        self.wants_draws = self.detector.watching
        if session is None or self.over:
            return
        publisher = session.publisher
        is_near = publisher is not None and publisher.asked
        began = time.monotonic()
        self._values, self._at_boundary = None, True
        try:
            if self._is_due or session.is_asked:
                if self._has_own_rescue():  # made after the agent found the training
                    self._close(succeeded=True)
                    return
                if not self._reported_lost and time.monotonic() - self._began >= _REPORT_AFTER_S:
                    self._report_lost(session)
                self._attend(session, step, self._epoch, self.passes.batch)
            if is_near:
                self._values_now()  # memory may run out in the next iteration
            else:
                self._values = None  # it keeps objects of the program alive
        finally:
            self._at_boundary = False
            if publisher is not None and is_near:
                publisher.count_boundary(time.monotonic() - began)

    def _lost_now(self) -> list[str]:
        return [*self.passes.lost, *self._not_restored()]

    def _report_lost(self, session: Session) -> None:
        """Report once what a resume will not restore, before memory runs out."""
        self._reported_lost = True
        lost = self._lost_now()
        session.report_not_restored(lost)
        if lost:
            self._guard.print_once(
                f"a resume of this training will not bring back: {'; '.join(map(few_names, lost))}."
            )
        found = self._record(
            self._expressions(), self._values_now(), self._extra_meta().get("framework", "")
        )
        is_script = ipython_shell() is None
        why = resume_lines.refusal(found, self.loop.text(), epoch=self._epoch) if is_script else ""
        if why:
            self._has_lines = False
            self._guard.print_once(f"no lines will resume this training as it is: {why}.")

    def _attend(self, session: Session, step: int, epoch: int | None, batch: int | None) -> None:
        saved = session.process_boundary(step, epoch=epoch, batch=batch)
        if saved is not None:
            self._report_saved(saved)

    def _refresh_names(self, frame: FrameType) -> None:
        """Update the objects that the program trains now, and their names."""
        if self._has_unnamed():
            # The program has made new objects.
            self._names = self._not_carried(self._find_objects(frame))
        datasets = self.passes.datasets
        named = names.names_of(datasets, frame)
        self._data = [
            next((name for name, one in named.items() if one is each), "data") for each in datasets
        ]

    def _capture(self) -> Capture:
        if self._at_boundary:
            self._refresh_names(sys._getframe(1))
        objects = self._live_objects()
        if not objects:
            raise RescueError("The program has deleted what it trained. Nothing was saved.")
        state = self._make_state(objects)
        capture = state.capture()
        more = self._extra_meta()
        found = self._record(
            self._expressions(),
            self._values_now(),
            more.pop("framework", ""),
        )
        lost = list(dict.fromkeys((*state.lost, *self._not_restored())))
        identity = {
            **capture.meta["identity"],
            "losses": self._loss_functions.get(frozenset(objects)),
        }
        random = self._random_at_boundary()
        told = {"not_restored": lost, "identity": identity, "random": random, **more}
        told[resume_lines.KEY] = replace(found, is_elsewhere=self._is_elsewhere).to_json()
        return Capture(capture.entries, {**capture.meta, **told})

    def _live_objects(self) -> dict[str, Any]:
        """Its objects that still exist and belong into a rescue, by name."""
        return {each.name: part for each in self._names if (part := each.part()) is not None}

    def _expressions(self) -> dict[str, str]:
        """How the program reaches these objects, by name."""
        live = self._live_objects()
        return {each.name: each.expression for each in self._names if each.name in live}

    @property
    def _epoch(self) -> int | None:
        """The epoch, counted from 0; None if neither data nor the loop around shows it."""
        if self.passes.begun and not self.passes.is_mixed:
            turn = self.passes.turn  # of the loop around that of the steps: some may make none
            return turn[1] if turn and turn[0] in self.loop.loops[1:] else self.passes.epoch
        # Reading the values takes long if a variable is large, such as a replay buffer.
        if self._at_boundary and not (self._values or self._of_library or self.passes.is_behind):
            with self._guard:
                self._variables.locate(sys._getframe(1))
        if self.passes.begun:
            return self._variables.turn
        place = self._variables.place
        return self._variables.epoch if place is None else place[0]

    def _position(self, *args: Any) -> dict[str, Any]:
        passes, epoch, place = self.passes.position(*args), self._epoch, self._variables.place
        if not self.passes.begun and place is not None:
            drawn, kept = place[1], self._data_values
            known = RecordedPass(0, drawn, drawn, current=True, attributes=kept)
            passes = {"0": vars(known)}
        at_epoch = self.passes.random_at_epoch if self.passes.begun else None
        return {
            "epoch": epoch, "batch": self.passes.batch, "passes": passes,
            "at_epoch": at_epoch,
            "variables": {keyword(name): each for name, each in self._values_now().items()},
            "number": self._variables.number(epoch),
        }  # fmt: skip

    def _report_saved(self, saved: SavedRescue) -> None:
        if self._reported or (self.session is not None and self.session.save_reported):
            return
        self._reported = True
        # A better rescue of an earlier step may stand.
        epoch = self._epoch if saved.step == self.detector.iterations else None
        then = "When this program is run again, it says how to resume from there."
        print_message(
            f"saved in {folders.display_path(saved.path)}: "
            f"{resume_lines.format_progress(saved.step, epoch)}. "
            f"{then if self._has_lines else 'No lines resume the program as it is.'}"
            + (
                f" A resume will not bring back: {'; '.join(map(few_names, saved.missing))}."
                if saved.missing
                else ""
            )
        )


def _register_end(training: FoundTraining) -> None:
    """
    End the training with its notebook cell, or with its program; keeps no object alive.

    A user's own loop does not report its end. After an interrupt or an exception the training is
    not complete: its rescues stay unfinished, and a run can resume from them.
    """
    reference = weakref.ref(training)
    events = getattr(ipython_shell(), "events", None)
    if events is None:
        atexit.register(_end_with_program, reference)
        return

    def cell_ends(result: Any = None) -> None:
        found = reference()
        if found is not None and found.loop.is_in_loop():
            return  # the training continues in its own thread
        events.unregister("post_run_cell", cell_ends)
        if found is not None:
            found.end(succeeded=bool(getattr(result, "success", True)))
            found.may_begin_again = True

    events.register("post_run_cell", cell_ends)


def _end_with_program(reference: weakref.ref[FoundTraining]) -> None:
    training = reference()
    if training is not None:
        training.end(succeeded=getattr(sys, "last_type", None) is None)
