"""
A PyTorch training that names no Rescue: found, reported, and saved when that is asked.

What it trains is held by weak references alone. A rescue is that of `agent.torch.Rescue` under
the names that the program has for its things, so that the lines which `automatic_lines` prints
go on from it. It is saved where an iteration of the training loop has ended: after schedulers
and averages, before the next batch is drawn.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

from watchdog_app.agent.contain import Guard, say
from watchdog_app.agent.exhaustion import exhaustion, exhaustion_hooks
from watchdog_app.agent.found import (
    automatic,
    automatic_ends,
    automatic_lines,
    automatic_torch_find,
    automatic_torch_owner,
    found_names,
    loop_end,
)
from watchdog_app.agent.found.automatic_torch_data import SeenPasses
from watchdog_app.agent.found.automatic_torch_find import Named
from watchdog_app.agent.found.automatic_torch_steps import Steps
from watchdog_app.agent.found.automatic_torch_taken import Taken
from watchdog_app.agent.found.held_session import HeldSession
from watchdog_app.agent.frames import current_frames
from watchdog_app.agent.loops.torch_optimizers import claimed
from watchdog_app.agent.loops.torch_state import TorchState
from watchdog_app.agent.loops.torch_values import Tensors
from watchdog_app.agent.notebook import notebook_path
from watchdog_app.agent.reporting.link import Link
from watchdog_app.agent.saving import chapters
from watchdog_app.agent.saving.store import RescueStore
from watchdog_app.agent.session import Capture
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
# Shorter ones are trials, which a folder and a thread would cost more than they are worth.
_MOVED = "{} as they were before the batch that ran out of memory (Rescue(...) puts these back)"
_BEGINS_AFTER_S = 0.5
_MISSES = 5  # in a row, after which that is told
_COUNTED = "plain values that the loop keeps, such as counters and histories"


class FoundTraining:
    """One training of one thread, from the first step of an optimizer to its end."""

    def __init__(self, guard: Guard) -> None:
        self.steps = Steps()
        self.session: HeldSession | None = None
        self.over = False
        self.directory = ""
        self._beginning: chapters.Beginning | None = None
        self._guard = guard
        self._made_above: str | None = None
        self._thread = get_ident()
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._passes = SeenPasses()
        self._names: list[Named] = []
        self._iterations = 0
        self._moved = True  # a pass, since the iteration before
        self._armed = False
        self._taken: Taken | None = None  # at the last capture
        self._missed = 0  # ends of iterations, in a row
        self._given_up = False
        self._lost: list[str] = []
        self._told = False
        # An error of memory came in the middle of a step: what that has moved, and numbers before.
        self._moved_words: str | None = None
        self._random: dict[str, Any] | None = None
        self._traced = False
        self._data: list[str] = []  # names of its loaders
        self._owner: Callable[[], Any] = lambda: None  # the library's object that runs the loop
        self._of_library = False  # which ends where it was told to, data or not

    def add(self, optimizer: Any) -> None:
        """One more optimizer of this training, which has just stepped for the first time."""
        self.steps.add(optimizer)
        self._moved = self._passes.look() or self._moved

    def step(self, optimizer: Any, frame: FrameType) -> None:
        """An optimizer of this training has stepped in `frame`."""
        if get_ident() != self._thread or self._given_up:
            return
        moved = self._passes.look() or self._moved
        iterations = self.steps.stepped(optimizer, frame)
        if iterations is None:
            self._moved = moved
            if self.steps.lost:
                self._tell_why("no loop was found that both computes gradients and applies them")
            return
        if not moved and iterations > self._iterations:
            self._passes.stood_still()
        self._iterations, self._moved = iterations, False
        session = self.session
        if session is None:
            if time.monotonic() - self._began >= _BEGINS_AFTER_S:
                self._begin(frame)
            return
        if self._traced:
            self._traced = False
            loop_end.let_go(self.steps.loop, frame)
        if session.ends(iterations):
            session.attend(iterations, epoch=self._passes.epoch, batch=self._passes.batch)
        elif session.beside is None:
            return
        if session.wants_end and not self._armed:
            self._arm(frame)

    def exhausted(self, error: BaseException) -> None:
        """The program was left by an error of memory: save what is there, unless it is torn."""
        session = self.session
        if session is None or not self._iterations or self._pid != os.getpid():
            return
        if exhaustion.in_optimizer(error):
            say(
                "memory ran out while an optimizer was at work: the weights in memory are not "
                "those of a whole step. They were not saved; an earlier rescue stands."
            )
            return
        exhaustion.free()
        self._passes.failed()
        self._random = session.random_at(
            self._iterations, epoch=self._passes.epoch, batch=self._passes.batch
        )
        self._moved_words = "statistics" if self._random else "statistics and random numbers"
        if self._random and not any(map(_keeps_statistics, self._names)):
            self._moved_words = None
        saved = session.save_now(exhaustion.REASON, self._iterations)
        if saved is not None:
            self._tell(saved.path)

    def runs(self) -> bool:
        """Whether the program is still in the loop."""
        loop = self.steps.latest
        frame = current_frames().get(self._thread)
        return loop is not None and loop_end.frame_of(loop, frame) is not None

    def has_left(self) -> bool:
        """Whether the program is out of the loop, and of those around it; for any thread."""
        loop = self.steps.outermost
        frame = current_frames().get(self._thread)
        return loop is not None and loop_end.frame_of(loop, frame) is None

    def is_in(self, frame: FrameType) -> bool:
        """Whether a step in `frame` is one of this training's loop."""
        loop = self.steps.latest
        return loop is None or loop_end.frame_of(loop, frame) is not None

    def ended_well(self) -> bool:
        """Whether the loop was left without an exception, as far as anybody was told of one."""
        loop = self.steps.latest
        return loop is None or not automatic_ends.interrupted(loop.code)

    def end(self, *, well: bool) -> None:
        """
        It is over; `well`: its rescues are not to be gone on from.

        What left the loop cannot be seen where the program caught it, nor where it was
        `sys.exit()`. Where it was left in the middle of its data, the rescues are kept for it.
        """
        self._close(well=well and (self._of_library or not self._passes.cut_short))

    def _close(self, *, well: bool) -> None:
        self.over = True
        exhaustion_hooks.forget(self)
        self.steps.close()
        session, self.session = self.session, None
        if session is None or self._pid != os.getpid():
            return
        if well and self._beginning is not None:
            with self._guard:
                chapters.finish(self._beginning)
        session.end(well=well)
        automatic_lines.leave_nothing(session.store.directory, self.directory, self._made_above)

    def _begin(self, frame: FrameType) -> None:
        if not self._find(frame):
            self._give_up("some of what it trains belongs to no module and has no name")
            return
        self.directory, waits = automatic_lines.place()
        above = os.path.dirname(self.directory)
        self._made_above = None if os.path.lexists(above) else above
        self._beginning = begun = chapters.begin(self.directory, False, found=True)
        store = RescueStore(begun.directory, run=begun.run)
        link = Link(FRAMEWORK, store.directory, notebook_path(), by_lines=True)
        me = weakref.ref(self)
        link.left = lambda: (training := me()) is not None and training.has_left()
        self.session = HeldSession(store, link, self._capture, guards=self._guards)
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

    def _guards(self) -> Guards:
        from watchdog_app.agent.published.torch_guards import TorchGuards

        return TorchGuards(
            self._parts, self.steps.optimizers, self.steps.adding_up,
            self._position, self._not_restored, self._same,
        )  # fmt: skip

    def _parts(self) -> dict[str, Part] | None:
        """As at the last capture; None where later states cannot be told from it."""
        taken = self._taken
        return None if taken is None or self._owner() is not None else taken.parts()

    def _same(self) -> bool:
        """Whether a capture would be of the same things as the last one."""
        taken = self._taken
        if taken is None or taken.data != self._data or taken.loop is not self.steps.loop:
            return False
        return taken.names is self._names and taken.same()

    def _not_restored(self) -> list[str]:
        never = () if self._taken is None else self._taken.never
        moved = [] if self._moved_words is None else [_MOVED.format(self._moved_words)]
        return [*never, *self._passes.lost, _COUNTED, *moved]

    def _find(self, frame: FrameType) -> bool:
        """Name what is trained; False where something of it cannot be found."""
        optimizers = self.steps.optimizers()
        passing = loop_end.assigned(self.steps.loop)
        self._names = automatic_torch_find.things(optimizers, frame, passing)
        return not automatic_torch_find.missing(self._names, optimizers)

    def _give_up(self, why: str) -> None:
        self._given_up = True
        self.steps.close()
        self._tell_why(why)

    def _tell_why(self, why: str) -> None:
        self._guard.tell_once(f"a PyTorch training is not saved by itself: {why}. {EXPLICIT}")

    def _arm(self, frame: FrameType) -> None:
        """Have the end of this iteration told."""
        if any(each in claimed for each in self.steps.optimizers()):
            self._close(well=True)  # the program has made a Rescue for it since
            return
        loop = self.steps.loop
        place = None if loop is None else loop_end.frame_of(loop, frame)
        if loop is None or place is None:
            self.steps.relearn()
            return
        self._look(frame, place)
        self._armed = self._traced = loop_end.at_end(loop, place, self._arrived)
        if not self._armed:
            self._guard.tell_once(
                "a debugger or a coverage tool traces this program: its PyTorch training is not "
                f"saved by itself. {EXPLICIT}"
            )

    def _look(self, frame: FrameType, place: FrameType) -> None:
        """What the program trains by now, and under which names."""
        # Now and not at the end: names cannot be looked at while a frame is traced.
        if automatic_torch_find.missing(self._names, self.steps.optimizers()):
            self._find(frame)  # made anew since
        owner = automatic_torch_owner.of(place)
        self._owner = automatic_torch_find.weak(owner)
        self._of_library = owner is not None
        loaders = self._passes.loaders
        named = found_names.names_of(loaders, frame)
        self._data = [
            next((name for name, one in named.items() if one is each), "loader") for each in loaders
        ]

    def _arrived(self, ended: bool) -> None:
        self._armed = False
        session = self.session
        self._missed = 0 if ended else self._missed + 1
        if self._missed == _MISSES:
            self._guard.tell_once(
                "a PyTorch training could not be saved so far: its loop is left in the middle of "
                f"each iteration, by yield or await. {EXPLICIT}"
            )
        if not ended or session is None:
            return
        with self._guard:
            epoch, batch = self._epoch, self._passes.batch
            session.tell_end(self._iterations, epoch=epoch, batch=batch)
            saved = session.save_if_wanted(self._iterations, epoch=epoch, batch=batch)
            if saved is not None:
                self._tell(saved.path)

    def _capture(self) -> Capture:
        held = {each.name: part for each in self._names if (part := each.part()) is not None}
        if not held:
            raise RescueError("The program has let go of what it trained. Nothing was saved.")
        state = TorchState(held, self._position, self._passes, self.steps.adding_up)
        capture = state.capture()
        loop = self.steps.loop
        self._taken = Taken(self._names, self._data, loop, state)
        library = automatic_torch_owner.described(self._owner())
        found = automatic_lines.Recorded(
            FRAMEWORK if library is None else library["name"],
            self.directory,
            {each.name: each.expression for each in self._names if each.name in held},
            self._data,
            ""
            if loop is None
            else f"{os.path.basename(loop.code.co_filename)}, {loop.code.co_name}",
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
        where = automatic_lines.place_in(self._iterations, self._epoch)
        say(
            f"saved in {automatic.shown(path)}: {where}. "
            "When this program is run again, it says how to go on from there. A resume will not "
            f"bring back: {'; '.join(self._lost)}."
        )


def _keeps_statistics(named: Named) -> bool:
    """Whether a forward pass may change it (batch norm)."""
    buffers = getattr(named.get(), "buffers", None)
    return buffers is not None and any(True for _ in buffers())
