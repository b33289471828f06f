"""
What is done for a task at the limit of its guard: events in, steps out. Pure.

    calm -> copying -> held | refusing | opened | ending
             |   ^
             v   |
           waiting (the reserve is given, until the next step boundary)

While `copying` and `held` everyone in the guard stands still. The reserve is given in two parts:
most of it to come to a boundary where the state can be saved, all of it to come to an end.
"""

from __future__ import annotations

from enum import Enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


class AtLimit(Enum):
    """What a user can choose for the time after the rescue."""

    AUTO = "auto"  # hold a notebook and what could not be saved; refuse in a script, then end it
    GO_ON = "go-on"  # take the limit away: the machine's own is the next
    REFUSE = "refuse"  # further memory is refused; where it is needed all the same, end
    HOLD = "hold"  # stand still until somebody decides
    END = "end"


class Stage(Enum):
    """Where a guard stands."""

    CALM = "calm"
    COPYING = "copying"
    WAITING = "waiting"  # for a boundary, with the reserve
    HELD = "held"
    REFUSING = "refusing"
    ASIDE = "aside"  # Ctrl-Z or its like: it runs for a moment, so that it can stop
    LEAVING = "leaving"  # somebody has interrupted it: it has the reserve to end
    OPENED = "opened"  # its limit was taken away
    ENDING = "ending"


class Do(Enum):
    """One thing for the supervisor to do."""

    FREEZE = "freeze"
    THAW = "thaw"
    COPY = "copy"  # what every agent has published, from outside
    ASK = "ask"  # the agents that could not be copied, to save by themselves
    GIVE_LITTLE = "give no more than waking up takes"
    GIVE_MOST = "give most of the reserve"
    GIVE_ALL = "give all of the reserve"
    TAKE_BACK = "the limit without the reserve"
    OPEN = "take the limit away"
    REFUSE = "refuse further memory"
    ALLOW = "refuse no longer"
    REPORT = "say what happened"
    END = "end everyone"


STANDS_STILL: Final = frozenset((Stage.COPYING, Stage.HELD))
MOST_OF_RESERVE: Final = 0.75
ASKED: Final = "somebody asked for that"
_ROOM_AGAIN: Final = 0.95  # of the limit: below it the task simply goes on
_SAVE_DEADLINE_S: Final = 60.0  # a step, and the save after it
_LEAVE_DEADLINE_S: Final = 30.0
_LEFT_S: Final = 5.0  # it has room again, and most often ends right away
_ASIDE_S: Final = 1.0  # to take a signal that stops
_ASIDE_LEAST_S: Final = 0.25  # ... before the limit counts again
_ASIDE_EVERY_S: Final = 3.0
_STAYED_EVERY_S: Final = 10.0


class Copies:
    """
    What came of copying every agent in the guard.

    `agents`: processes that publish, or could be asked. `in_step`: those that were not saved, and
    can be at their next boundary. `why` they were not.
    """

    __slots__ = ("agents", "in_step", "saved", "why")

    def __init__(self, agents: int, saved: int, in_step: int, why: str = "") -> None:
        self.agents = agents
        self.saved = saved
        self.in_step = in_step
        self.why = why

    @property
    def complete(self) -> bool:
        """Everything that can be saved is."""
        return self.agents > 0 and self.saved == self.agents


class Policy:
    """
    One guard. `stage`, `since_mono_s`, `copies`: where it stands, since when, what was saved.

    Args:
        at_limit: what the user has chosen.
        notebook: somebody sits in front of it.
        hold_s: a hold ends the task after so long; None: it waits for somebody.
    """

    def __init__(
        self,
        at_limit: AtLimit = AtLimit.AUTO,
        notebook: bool = False,
        hold_s: float | None = None,
    ) -> None:
        self.at_limit = at_limit
        self.notebook = notebook
        self.hold_s = hold_s
        self.stage = Stage.CALM
        self.since_mono_s = 0.0
        self.copies = Copies(0, 0, 0)
        self.because = ""  # why it is held or ended, for people
        self._spent = False  # the reserve for a boundary was given, and no more waiting helps
        self._waited_since = 0.0
        self._insuring = False  # it is not at its limit yet, or is refused more already
        self._insured_from = Stage.CALM
        self._refused = False  # ... and what was refused was needed all the same
        self._end_wanted = False  # it is saved first
        self._held_since = 0.0
        self._aside_since = self._stayed = float("-inf")

    @property
    def still(self) -> bool:
        """Everyone in the guard stands still."""
        return self.stage in STANDS_STILL

    @property
    def insuring(self) -> bool:
        """What is copied now is for later: it goes on as it did right after that."""
        return self._insuring

    @property
    def renewing(self) -> bool:
        """The same, of what is refused memory already."""
        return self._insuring and self._insured_from is Stage.REFUSING

    def limit_met(self, now: float) -> list[Do]:
        """Somebody waits for memory that the guard does not have."""
        if self.stage in (Stage.CALM, Stage.WAITING, Stage.OPENED):
            # While WAITING this is the end of the reserve: what is there is copied, or nothing is.
            spent = self.stage is Stage.WAITING
            why = "the reserve was used up before its step ended" if spent else ""
            return self._copy(now, spent, why)
        if self.stage is Stage.REFUSING:
            # Steps were made since the rescue: the last of them is copied, too, if it can be.
            self._refused = True
            return self._copy(now, True, "it needed more memory than was left")
        if self.stage is Stage.ASIDE and now - self.since_mono_s > _ASIDE_LEAST_S:
            return self._hold_again()
        if self.stage is Stage.LEAVING and self.notebook:
            # What was interrupted is a cell: the kernel, and what it holds, is to live on.
            return self._copy(now, True, "it was interrupted, and needed still more memory")
        if self.stage is Stage.LEAVING:
            return [Do.FREEZE, *self._end(now, "it needed more memory to end than was left")]
        return []

    def copied(self, now: float, copies: Copies) -> list[Do]:
        """Copying has ended; everyone stands still."""
        if self.stage is not Stage.COPYING:
            return []
        if self._insuring:
            self._insuring = False
            if copies.complete:
                self.copies = copies
            self._enter(self._insured_from, now)
            return [Do.THAW]
        if not self._refused or copies.complete:
            self.copies = copies
        if not copies.in_step or self._spent:
            return self._settle(now)
        again = self._waited_since > 0.0  # it left the boundary before it stood still
        self._waited_since = self._waited_since or now
        self._enter(Stage.WAITING, self._waited_since)
        return [Do.THAW] if again else [Do.GIVE_MOST, Do.ASK, Do.THAW]

    def insure(self, now: float) -> list[Do]:
        """
        The limit is near, and what is published is fresh: a copy beforehand, at once.

        Also of what is refused more memory and makes steps all the same: a library may end it at
        any allocation that fails, without a word.
        """
        if self.stage not in (Stage.CALM, Stage.REFUSING):
            return []
        self._insuring, self._insured_from = True, self.stage
        self._enter(Stage.COPYING, now)
        return [Do.FREEZE, Do.COPY]

    def boundary(self, now: float) -> list[Do]:
        """While waiting: an agent has come to where its state can be copied."""
        return [] if self.stage is not Stage.WAITING else self._copy(now, False)

    def saved_by_itself(self, now: float, agents: int) -> list[Do]:
        """While waiting: every agent that was asked has saved its own rescue."""
        if self.stage is not Stage.WAITING:
            return []
        self.copies = Copies(agents, agents, 0)
        self._enter(Stage.COPYING, now)
        return [Do.FREEZE, *self._settle(now)]

    def tick(self, now: float, held_bytes: int, limit_bytes: int) -> list[Do]:
        """
        Time has passed.

        Args:
            held_bytes: what the guard holds and cannot give back.
            limit_bytes: the limit without any reserve.
        """
        passed_s = now - self.since_mono_s
        room = held_bytes < limit_bytes * _ROOM_AGAIN
        if self.stage is Stage.WAITING and passed_s > _SAVE_DEADLINE_S:
            return self._copy(now, True, "its step did not end within a minute")
        if self.stage is Stage.ASIDE and passed_s > _ASIDE_S:
            return self._hold_again()
        if self.stage in (Stage.HELD, Stage.REFUSING) and room:
            # Whoever was refused memory was never stopped, and most often has room as it ends.
            quiet = self.stage is Stage.REFUSING
            return [step for step in self._go_on(now) if not (quiet and step is Do.REPORT)]
        if self.stage is Stage.HELD and self.hold_s is not None and passed_s > self.hold_s:
            return self._end(now, "nobody decided in the time that was set (--hold-for)")
        if self.stage is Stage.LEAVING and room and (self.notebook or passed_s > _LEFT_S):
            return [step for step in self._go_on(now) if step is not Do.REPORT]  # it was let out
        if self.stage is Stage.LEAVING and passed_s > _LEAVE_DEADLINE_S:
            return self._copy(now, True, "it did not end")  # as if the limit was met anew
        return []

    def interrupted(self, now: float) -> list[Do]:
        """A signal that ends or interrupts waits for somebody who stands still."""
        if self.stage not in (Stage.HELD, Stage.ASIDE) or now - self._stayed < _STAYED_EVERY_S:
            return []
        self._enter(Stage.LEAVING, now)
        return [Do.GIVE_ALL, Do.THAW]

    def stopped(self, now: float) -> list[Do]:
        """A signal that stops, as Ctrl-Z does, waits for somebody who cannot take it as he is."""
        if self.stage is not Stage.HELD or now - self._aside_since < _ASIDE_EVERY_S:
            return []
        self._aside_since, self._held_since = now, self.since_mono_s
        self._enter(Stage.ASIDE, now)
        return [Do.GIVE_LITTLE, Do.THAW]

    def stays(self, now: float) -> list[Do]:
        """What was let out to end is stopped by its shell: it ends when it is to go on (fg)."""
        if self.stage is not Stage.LEAVING or now - self.since_mono_s < _ASIDE_S:
            return []
        self._stayed = now
        self._enter(Stage.HELD, now)
        return [Do.FREEZE, Do.TAKE_BACK]

    def stands_aside(self) -> list[Do]:
        """It has stopped, and its shell knows: held as before."""
        if self.stage is not Stage.ASIDE:
            return []
        self._aside_since = float("-inf")
        return self._hold_again()

    def _hold_again(self) -> list[Do]:
        self._enter(Stage.HELD, self._held_since)
        return [Do.FREEZE, Do.TAKE_BACK]

    def raised(self, now: float) -> list[Do]:
        """Somebody has raised the limit, or memory became free elsewhere."""
        if self.stage in (Stage.CALM, Stage.ENDING, Stage.COPYING):
            return []
        return self._go_on(now)

    def told_to_end(self, now: float) -> list[Do]:
        """Somebody wants the task ended: what runs is saved first; asked twice, it ends at once."""
        if self.stage is Stage.ENDING:
            return []
        if self.stage in (Stage.CALM, Stage.OPENED, Stage.REFUSING) and not self._end_wanted:
            self._end_wanted = True
            return self._copy(now, False, ASKED)
        return self._end(now, ASKED)

    def told_to_go_on(self, now: float) -> list[Do]:
        """Somebody wants the task to have whatever the machine has."""
        if self.stage is Stage.ENDING:
            return []
        self._enter(Stage.OPENED, now)
        return [Do.OPEN, Do.ALLOW, Do.THAW, Do.REPORT]

    def _copy(self, now: float, spent: bool, why: str = "") -> list[Do]:
        if self.stage is not Stage.WAITING:
            self._waited_since = 0.0
        self._enter(Stage.COPYING, now)
        self._spent = spent
        self.because = why
        return [Do.FREEZE, Do.COPY]

    def _settle(self, now: float) -> list[Do]:
        if self._end_wanted:
            return self._end(now, ASKED)
        if self._refused:
            self._refused = False
            wait = self.notebook or self.at_limit is AtLimit.HOLD
            return self._hold(now, self.because) if wait else self._end(now, self.because)
        saved = self.copies.complete
        choice = self.at_limit
        if choice is AtLimit.AUTO:
            choice = AtLimit.HOLD if self.notebook or not saved else AtLimit.REFUSE
        if choice is AtLimit.REFUSE and self.copies.agents and not saved:
            # A refusal can abort a program from within a library: only what is saved may risk it.
            return self._hold(now, self.because or self.copies.why)
        if choice is AtLimit.GO_ON:
            self._enter(Stage.OPENED, now)
            return [Do.OPEN, Do.ALLOW, Do.THAW, Do.REPORT]
        if choice is AtLimit.REFUSE:
            self._enter(Stage.REFUSING, now)
            return [Do.REFUSE, Do.GIVE_ALL, Do.REPORT, Do.THAW]
        if choice is AtLimit.END:
            return self._end(now, self.because or "that is what --at-limit end asks for")
        return self._hold(now, self.because or self.copies.why)

    def _hold(self, now: float, because: str) -> list[Do]:
        self._enter(Stage.HELD, now)
        self.because = because
        return [Do.TAKE_BACK, Do.REPORT]

    def _end(self, now: float, because: str) -> list[Do]:
        self._enter(Stage.ENDING, now)
        self.because = because
        return [Do.REPORT, Do.END]

    def _go_on(self, now: float) -> list[Do]:
        self._end_wanted = False
        self._enter(Stage.CALM, now)
        self.because = ""
        return [Do.TAKE_BACK, Do.ALLOW, Do.THAW, Do.REPORT]

    def _enter(self, stage: Stage, now: float) -> None:
        self.stage = stage
        self.since_mono_s = now
