"""
A PyTorch training that names no Rescue: found, reported, and saved when that is asked.

What it trains is held by weak references alone. A rescue is that of `agent.torch.Rescue` under
the names that the program has for its things, so that the lines which `automatic_lines` prints
go on from it. It is saved where an iteration of the training loop has ended: after schedulers
and averages, before the next batch is drawn.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from watchdog_app.agent.contain import Guard, say
from watchdog_app.agent.exhaustion import exhaustion, exhaustion_hooks
from watchdog_app.agent.found import (
    automatic,
    automatic_ends,
    automatic_lines,
    automatic_torch_find,
    automatic_torch_owner,
    found_names,
    loop_lines,
)
from watchdog_app.agent.found.automatic_torch_data import SeenPasses
from watchdog_app.agent.found.automatic_torch_find import Named
from watchdog_app.agent.found.automatic_torch_taken import Taken
from watchdog_app.agent.found.detector import Detector, Head
from watchdog_app.agent.found.loop_lines import Loop, Place
from watchdog_app.agent.frames import current_frames
from watchdog_app.agent.loops import own_random, torch_random
from watchdog_app.agent.loops.torch_optimizers import claimed, parameters
from watchdog_app.agent.loops.torch_state import TorchState
from watchdog_app.agent.loops.torch_values import Tensors
from watchdog_app.agent.notebook import notebook_path
from watchdog_app.agent.reporting.link import Link
from watchdog_app.agent.saving import chapters
from watchdog_app.agent.saving.store import RescueStore
from watchdog_app.agent.session import Capture, Session
from watchdog_app.base.errors import RescueError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.loops.torch_part import Part
    from watchdog_app.agent.published.guards import Guards

FRAMEWORK = "torch"
EXPLICIT = (
    "Name it: rescue = Rescue(folder, model=model, optimizer=optimizer, "
    "**anything_with_state) of watchdog_app.agent.torch, and rescue.step() after each step."
)
_MOVED = "{} as they were before the batch that ran out of memory (Rescue(...) puts these back)"
DRAWN = (
    "random numbers that the loop draws between two steps (read the data with a DataLoader, or "
    "name a Rescue)"
)
# Shorter ones are trials, which a folder and a thread would cost more than they are worth.
_BEGINS_AFTER_S = 0.5
_MOST_UNSEEN = 64  # iterations in a row whose end was waited for, after which that is said
_DRAWS_NO_MORE = 2  # iterations in a row that drew no batch: their loop is learned anew
_COUNTED = "plain values that the loop keeps, such as counters and histories"


class FoundTraining:
    """One training of one thread, from the first step of an optimizer to its end."""

    def __init__(self, guard: Guard) -> None:
        self.detector = Detector()
        self.session: Session | None = None
        self.over = False
        self.directory = ""
        self._beginning: chapters.Beginning | None = None
        self._guard = guard
        self._made_above: str | None = None
        self._thread = get_ident()
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._optimizers: dict[int, Callable[[], Any]] = {}
        self._passes = SeenPasses()
        self._names: list[Named] = []
        self._moved = True  # a pass, since the iteration before
        self._taken: Taken | None = None  # at the last capture
        self._given_up = False
        self._lost: list[str] = []
        self._told = False
        self._places: tuple[Place, ...] = ()  # where the program stood at the latest first step
        self._loops: list[Loop] = []  # around its steps, the innermost first
        self._hook: Any = None  # which tells that modules compute
        self._trained: set[int] = set()  # ids of the tensors that are trained
        self.wants_end = False  # the end of this iteration is to be told
        self.unseen = 0  # iterations in a row whose end was waited for
        self._look: Any = None  # random numbers behind the last step of an iteration
        self._draws_itself = False  # random numbers, between two steps
        # An error of memory came in the middle of a step: what that has moved, and numbers before.
        self._moved_words: str | None = None
        self._ended: tuple[Any, ...] | None = None  # the last iteration, where a limit was near
        self._random: dict[str, Any] | None = None
        self._data: list[str] = []  # names of its loaders
        self._owner: Callable[[], Any] = lambda: None  # the library's object that runs the loop
        self._of_library = False  # which ends where it was told to, data or not

    def optimizers(self) -> list[Any]:
        """Those of it that live."""
        return [each for get in self._optimizers.values() if (each := get()) is not None]

    def step(self, optimizer: Any, frame: FrameType) -> None:
        """An optimizer of this training has stepped in `frame`."""
        if get_ident() != self._thread or self._given_up:
            return
        key = id(optimizer)
        known = self._optimizers.get(key)
        if known is None or known() is not optimizer:
            self._join(optimizer, frame)
        self._moved = self._passes.look() or self._moved
        if not self.detector.stepped(key):
            return
        if not self._moved:
            self._passes.stood_still()
        self._moved = False
        session = self.session
        if session is None:
            if time.monotonic() - self._began >= _BEGINS_AFTER_S:
                self._begin(frame)
            return
        self.wants_end = session.ends(self.detector.iterations)
        self.unseen += 1
        # Each step of most loops ends here.
        if (
            self.unseen >= _DRAWS_NO_MORE
            or self.detector.watching
            or self.detector.head is not Head.DRAW
        ):
            self._await_end(session)

    def draws(self) -> None:
        """A batch is about to be drawn from a DataLoader, in the thread of this training."""
        try:
            if self.detector.drawn():
                self.unseen = 0
                if self.wants_end:
                    self._iteration_ended()
        except Exception as error:
            self._guard.caught(error)

    def computes(self, module: Any) -> None:
        """A module is about to compute."""
        try:
            trained = self._trained
            if get_ident() != self._thread or not any(
                id(item) in trained for item in module.parameters()
            ):
                return
            if self.detector.computes():
                self.unseen = 0
                self._hush()
                self._draws_itself = self._look != self._random_now()
                self._iteration_ended()
        except Exception as error:
            self._guard.caught(error)

    def exhausted(self, error: BaseException) -> None:
        """The program was left by an error of memory: save what is there, unless it is torn."""
        session = self.session
        if session is None or not self.detector.iterations or self._pid != os.getpid():
            return
        if exhaustion.in_optimizer(error) or not self.detector.between:
            say(
                "memory ran out while an optimizer was at work: the weights in memory are not "
                "those of a whole step. They were not saved; an earlier rescue stands."
            )
            return
        exhaustion.free()
        self._passes.failed()
        ended, at = self._ended, (self.detector.iterations, self._epoch, self._passes.batch)
        self._random = ended[-1] if ended is not None and ended[:-1] == at else None
        self._moved_words = "statistics" if self._random else "statistics and random numbers"
        if self._random and not any(map(_keeps_statistics, self._names)):
            self._moved_words = None
        saved = session.save_now(exhaustion.REASON, self.detector.iterations)
        if saved is not None:
            self._tell(saved.path)

    def runs(self) -> bool:
        """Whether the program is still in the loop."""
        return self._stands_in(self._loops[:1])

    def has_left(self) -> bool:
        """Whether the program is out of the loop, and of those around it; for any thread."""
        return bool(self._loops) and not self._stands_in(self._loops[-1:])

    def is_in(self, frame: FrameType) -> bool:
        """Whether a step in `frame` is one of this training's loop."""
        return loop_lines.together(self._places, loop_lines.places(frame))

    def ended_well(self) -> bool:
        """Whether the loop was left without an exception, as far as anybody was told of one."""
        return not self._loops or not automatic_ends.interrupted(self._loops[0].code)

    def end(self, *, well: bool) -> None:
        """
        It is over; `well`: its rescues are not to be gone on from.

        What left the loop cannot be seen where the program caught it, nor where it was
        `sys.exit()`. Where it was left in the middle of its data, the rescues are kept for it.
        """
        self._close(well=well and (self._of_library or not self._passes.cut_short))

    def _stands_in(self, loops: Sequence[Loop]) -> bool:
        standing = loop_lines.places(current_frames().get(self._thread))
        return any(loop.has(standing) for loop in loops)

    def _join(self, optimizer: Any, frame: FrameType) -> None:
        key = id(optimizer)
        forget = self.detector.forget
        self._optimizers[key] = weakref.ref(optimizer, lambda _: forget(key))
        self._places = loop_lines.places(frame)
        if self.session is not None:
            self._find(frame)

    def _close(self, *, well: bool) -> None:
        self.over = True
        exhaustion_hooks.forget(self)
        self._hush()
        session, self.session = self.session, None
        if session is None or self._pid != os.getpid():
            return
        if well and self._beginning is not None:
            with self._guard:
                chapters.finish(self._beginning)
        session.end(well=well)
        automatic_lines.leave_nothing(session.store.directory, self.directory, self._made_above)

    def _begin(self, frame: FrameType) -> None:
        owner = automatic_torch_owner.of(frame)
        self._owner = automatic_torch_find.weak(owner)
        self._of_library = owner is not None
        self._loops = loop_lines.around(loop_lines.places(frame))
        if not self._find(frame):
            self._given_up = True
            self._tell_why("some of what it trains belongs to no module and has no name")
            return
        self.directory, waits = automatic_lines.place()
        above = os.path.dirname(self.directory)
        self._made_above = None if os.path.lexists(above) else above
        self._beginning = begun = chapters.begin(self.directory, False, found=True)
        store = RescueStore(begun.directory, run=begun.run)
        link = Link(FRAMEWORK, store.directory, notebook_path(), by_lines=True)
        me = weakref.ref(self)
        link.left = lambda: (training := me()) is not None and training.has_left()
        self.session = Session(store, link, self._capture, guards=self._guards)
        self.session.breakdown.holds([each.get() for each in self._names])
        self.session.prepare()
        if waits is not None:
            automatic_lines.offer(waits, self.directory)
        else:
            self._guard.tell_once(
                "PyTorch trainings are saved in "
                f"{automatic.shown(self.directory)} when memory runs out. See: watchdog rescues"
            )
            automatic.tell_of_others(self.directory)
        exhaustion_hooks.watch(self)  # before the end is told, which the same error makes
        automatic_ends.watch(self)
        self.detector.watch()
        self._listen()

    def _guards(self) -> Guards:
        from watchdog_app.agent.published.torch_guards import TorchGuards

        return TorchGuards(
            self._parts, self.optimizers, set, self._position, self._not_restored, self._same
        )

    def _parts(self) -> dict[str, Part] | None:
        """As at the last capture; None where later states cannot be told from it."""
        taken = self._taken
        return None if taken is None or self._owner() is not None else taken.parts()

    def _same(self) -> bool:
        """Whether a capture would be of the same things as the last one."""
        taken = self._taken
        return taken is not None and taken.names is self._names and taken.same(self._passes.loaders)

    def _not_restored(self) -> list[str]:
        never = () if self._taken is None else self._taken.never
        moved = [] if self._moved_words is None else [_MOVED.format(self._moved_words)]
        drawn = [DRAWN] if self._draws_itself else []
        return [*never, *self._passes.lost, *drawn, _COUNTED, *moved]

    def _find(self, frame: FrameType) -> bool:
        """Name what is trained; False where something of it cannot be found."""
        optimizers = self.optimizers()
        held = automatic_torch_owner.held(self._owner())
        self._names = automatic_torch_find.things(optimizers, frame, held)
        self._trained = {id(item) for each in optimizers for item in parameters(each)}
        return not automatic_torch_find.missing(self._names, optimizers)

    def _await_end(self, session: Session) -> None:
        """The last step of an iteration is made: have its end told, where it is wanted."""
        detector, head = self.detector, self.detector.head
        if head is not Head.DRAW and self._hook is None:
            self.unseen = 0  # nothing was waited for
        if self.unseen >= _MOST_UNSEEN:
            self._hush()
            self._tell_why("the end of its iterations is not seen")
        elif head is Head.DRAW and self.unseen >= _DRAWS_NO_MORE:
            if not detector.watching:
                detector.watch()
            self._listen()
        elif head is not None:
            detector.rest()
            self._hush()
            if head is Head.COMPUTE and session.due:
                # It draws its data itself: in this iteration or in the next, nobody knows.
                self._look = self._random_now()
                self._listen()

    def _listen(self) -> None:
        """Have it told that a module computes which is trained: of all modules, so not for long."""
        if self._hook is not None:
            return
        me = weakref.ref(self)

        def before(module: Any, _args: Any) -> None:
            training = None if torch.compiler.is_dynamo_compiling() else me()
            if training is not None and module.training and torch.is_grad_enabled():
                training.computes(module)

        self._hook = register_module_forward_pre_hook(before)

    def _hush(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _random_now(self) -> Any:
        """Global random numbers, and those of generators that the program has names for."""
        own = [each.get() for each in self._names]
        return torch_random.take(), own_random.take(
            [each for each in own if own_random.is_generator(each)]
        )

    def _tell_why(self, why: str) -> None:
        self._guard.tell_once(f"a PyTorch training is not saved by itself: {why}. {EXPLICIT}")

    def _iteration_ended(self) -> None:
        """All of an iteration is done, and nothing of the next has begun."""
        session, step = self.session, self.detector.iterations
        self.wants_end = False
        if session is None or self.over:
            return
        if session.due:
            if any(each in claimed for each in self.optimizers()):
                self._close(well=True)  # the program has made a Rescue for it since
                return
            self._look_again(session, sys._getframe(1))
        at = {"epoch": self._epoch, "batch": self._passes.batch}
        asked = session.published is not None and session.published.asked
        self._ended = (step, *at.values(), torch_random.take()) if asked else None
        saved = session.attend(step, **at)
        if saved is not None:
            self._tell(saved.path)

    def _look_again(self, session: Session, frame: FrameType) -> None:
        """What the program trains by now, and under which names."""
        if automatic_torch_find.missing(self._names, self.optimizers()):
            self._find(frame)  # made anew since
        loaders = self._passes.loaders
        if session.link.wanted is not None or not self._same():
            named = found_names.names_of(loaders, frame)
            self._data = [
                next((name for name, one in named.items() if one is each), "loader")
                for each in loaders
            ]

    def _capture(self) -> Capture:
        held = {each.name: part for each in self._names if (part := each.part()) is not None}
        if not held:
            raise RescueError("The program has let go of what it trained. Nothing was saved.")
        state = TorchState(held, self._position, self._passes, set)
        capture = state.capture()
        self._taken = Taken(self._names, self._passes.loaders, state)
        library = automatic_torch_owner.described(self._owner())
        code = self._loops[0].code if self._loops else None
        found = automatic_lines.Recorded(
            FRAMEWORK if library is None else library["name"],
            self.directory,
            {each.name: each.expression for each in self._names if each.name in held},
            self._data,
            "" if code is None else f"{os.path.basename(code.co_filename)}, {code.co_name}",
        )
        self._lost = self._not_restored()
        more = {
            "not_restored": self._lost,
            automatic_lines.KEY: found.to_json(),
            automatic_torch_owner.KEY: library,
            **({} if self._random is None else {"random": self._random}),
        }
        return Capture(capture.entries, {**capture.meta, **more})

    @property
    def _epoch(self) -> int | None:
        """Counted from 0; None where the loop has read no DataLoader, which tells its epochs."""
        return self._passes.epoch if self._passes.begun else None

    def _position(self, tensors: Tensors) -> dict[str, Any]:
        passes = self._passes.position(tensors)
        batch = self._passes.batch
        return {"epoch": self._epoch, "batch": batch, "passes": passes, "at_epoch": None}

    def _tell(self, path: str) -> None:
        if self._told:
            return
        self._told = True
        where = automatic_lines.place_in(self.detector.iterations, self._epoch)
        say(
            f"saved in {automatic.shown(path)}: {where}. "
            "When this program is run again, it says how to go on from there. A resume will not "
            f"bring back: {'; '.join(self._lost)}."
        )


def _keeps_statistics(named: Named) -> bool:
    """Whether a forward pass may change it (batch norm)."""
    buffers = getattr(named.get(), "buffers", None)
    return buffers is not None and any(True for _ in buffers())
