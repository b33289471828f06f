"""
What is done for a program at the limit of its guard: events in, actions out. Pure.

    running -> copying -> stopped | refusing | unlimited | ending
                |   ^        |
                v   |        v
             finishing    exiting

While `copying` everyone is frozen, while `stopped` everyone is stopped. The reserve is given in two
parts: most of it to come to a boundary where the state can be saved, all of it to come to an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AtLimit(Enum):
    """What a user can choose for the time after the rescue."""

    AUTO = "auto"  # stop a notebook and what could not be saved; refuse in a script, then end it
    GO_ON = "go-on"  # take the limit away: the machine's own is the next
    REFUSE = "refuse"  # further memory is refused; where it is needed all the same, end
    HOLD = "hold"  # stay stopped until somebody decides
    END = "end"


class State(Enum):
    """Where a guard stands."""

    RUNNING = "running"
    COPYING = "copying"
    FINISHING = "finishing"  # its step, with the reserve
    STOPPED = "stopped"
    REFUSING = "refusing"
    EXITING = "exiting"  # somebody has interrupted it: it has the reserve to end
    UNLIMITED = "unlimited"
    ENDING = "ending"


class Action(Enum):
    """One thing for the supervisor to do."""

    FREEZE = "freeze everyone for a copy"
    STOP = "stop everyone, at the limit without the reserve"
    RESUME = "let everyone run"
    COPY = "copy what every agent shows, from outside"
    REQUEST_SAVE = "ask the agents that could not be copied to save by themselves"
    GIVE_MOST = "give most of the reserve"
    GIVE_ALL = "give all of the reserve"
    TAKE_BACK = "the limit without the reserve"
    LIFT = "take the limit away"
    REFUSE = "refuse further memory"
    ALLOW = "refuse no longer"
    REPORT = "say what happened"
    END = "end everyone"


Actions = tuple[Action, ...]

MOST_OF_RESERVE = 0.75
ASKED_BY_PERSON = "somebody asked for that"
_ROOM_AGAIN = 0.95  # of the limit: below it the program simply runs
_SAVE_DEADLINE_S = 60.0  # a step, and the save after it
_MAX_SAVE_REQUESTS = 3  # in that time
_EXIT_DEADLINE_S = 30.0
_EXITED_S = 5.0  # it has room again, and most often ends right away
# What a user can choose, after the copy. What saves nothing and may end the work needs a save.
AFTER_SAVE = {
    AtLimit.GO_ON: (
        State.UNLIMITED,
        (Action.LIFT, Action.ALLOW, Action.RESUME, Action.REPORT),
    ),
    AtLimit.REFUSE: (
        State.REFUSING,
        (Action.REFUSE, Action.GIVE_ALL, Action.REPORT, Action.RESUME),
    ),
    AtLimit.HOLD: (State.STOPPED, (Action.STOP, Action.REPORT)),
    AtLimit.END: (State.ENDING, (Action.REPORT, Action.END)),
}


@dataclass(frozen=True, slots=True)
class CopyResults:
    """
    What came of copying every agent in the guard.

    `agents`: processes that publish, or could be asked. `in_step`: those that were not saved, and
    can be at their next boundary. `why` they were not.
    """

    agents: int
    saved: int
    in_step: int
    why: str = ""

    @property
    def complete(self) -> bool:
        """Everything that can be saved is."""
        return self.agents > 0 and self.saved == self.agents


class Policy:
    """
    One guard. `state`, `since_mono_s`, `copies`: where it stands, since when, what was saved.

    Args:
        at_limit: what the user has chosen.
        notebook: somebody sits in front of it.
        hold_s: what is stopped is ended after so long; None: it waits for somebody.
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
        self.state = State.RUNNING
        self.since_mono_s = 0.0
        self.copies = CopyResults(0, 0, 0)
        self.because = ""  # why it is stopped or ended, for people
        self._reserve_spent = (
            False  # the reserve for a boundary was given, and no more waiting helps
        )
        self._finishing_since = 0.0
        self._save_requests = 0  # since the limit was met
        self._early_from: State | None = None  # copied beforehand; where it goes on after that
        self._refused = False  # what was refused was needed all the same
        self._end_wanted = False  # it is saved first

    @property
    def is_halted(self) -> bool:
        """Whether every process in the guard is frozen or stopped."""
        return self.state in (State.COPYING, State.STOPPED)

    @property
    def is_early_copy(self) -> bool:
        """Whether this copy is made in advance; the program continues right after it."""
        return self._early_from is not None

    @property
    def is_renewing(self) -> bool:
        """Whether this copy renews the rescue of a program that is refused memory."""
        return self._early_from is State.REFUSING

    def limit_met(self, now: float) -> Actions:
        """A process waits for memory that the group does not have."""
        state = self.state
        if state is State.FINISHING:  # what is there is copied, or nothing is
            return self._copy(now, True, "the reserve was used up before its step ended")
        if state in (State.RUNNING, State.UNLIMITED):
            return self._copy(now, False)
        if state is State.REFUSING:
            # Steps were made since the rescue: the last of them is copied, too, if it can be.
            self._refused = True
            return self._copy(now, True, "it needed more memory than was left")
        if state is State.EXITING and self.notebook:
            # What was interrupted is a cell: the kernel, and its variables, are to live on.
            return self._copy(now, True, "it was interrupted, and needed still more memory")
        if state is State.EXITING:
            return (Action.FREEZE, *self._end(now, "it needed more memory to end than was left"))
        return ()

    def copied(self, now: float, copies: CopyResults) -> Actions:
        """Copying has ended; every process is still frozen."""
        if self.state is not State.COPYING:
            return ()
        if self._early_from is not None:
            if copies.complete:
                self.copies = copies
            self._set_state(self._early_from, now)
            self._early_from = None
            return (Action.RESUME,)
        if not self._refused or copies.complete:
            self.copies = copies
        if not copies.in_step or self._reserve_spent:
            return self._choose_after_copy(now)
        # Again where it left the boundary before it stood still, or its agent could not save then.
        give = (Action.GIVE_MOST,) if self._save_requests == 0 else ()
        ask = (Action.REQUEST_SAVE,) if self._save_requests < _MAX_SAVE_REQUESTS else ()
        self._save_requests += 1
        self._finishing_since = self._finishing_since or now
        self._set_state(State.FINISHING, self._finishing_since)
        return (*give, Action.RESUME, *ask)

    def copy_early(self, now: float) -> Actions:
        """
        The limit is near, and what is published is fresh: a copy beforehand, at once.

        Also of what is refused more memory and makes steps all the same: a library may end it at
        any allocation that fails, without a word.
        """
        if self.state not in (State.RUNNING, State.REFUSING):
            return ()
        self._early_from = self.state
        self._set_state(State.COPYING, now)
        return (Action.FREEZE, Action.COPY)

    def boundary(self, now: float) -> Actions:
        """While finishing: an agent has come to where its state can be copied."""
        return self._copy(now, False) if self.state is State.FINISHING else ()

    def saved(self, now: float, agents: int) -> Actions:
        """While finishing: every agent that was asked has saved its own rescue."""
        if self.state is not State.FINISHING:
            return ()
        self.copies = CopyResults(agents, agents, 0)
        return (Action.FREEZE, *self._choose_after_copy(now))

    def tick(self, now: float, held_bytes: int, limit_bytes: int) -> Actions:
        """
        Time has passed.

        Args:
            held_bytes: what the group holds and cannot give back.
            limit_bytes: the limit without any reserve.
        """
        state, passed_s = self.state, now - self.since_mono_s
        room = held_bytes < limit_bytes * _ROOM_AGAIN
        if state is State.FINISHING and passed_s > _SAVE_DEADLINE_S:
            return self._copy(now, True, "its step did not end within a minute")
        if state is State.STOPPED and room:
            return self._run(now)
        if state is State.REFUSING and room:
            return self._run(now, quiet=True)  # never stopped; it most often has room as it ends
        if state is State.STOPPED and self.hold_s is not None and passed_s > self.hold_s:
            return self._end(now, "no decision came within the time of --hold-for")
        if state is State.EXITING and room and (self.notebook or passed_s > _EXITED_S):
            return self._run(now, quiet=True)
        if state is State.EXITING and passed_s > _EXIT_DEADLINE_S:
            return self._copy(now, True, "it did not end")  # as if the limit was met anew
        return ()

    def signal_waits(self, now: float) -> Actions:
        """A signal that ends or interrupts is pending for a stopped process."""
        if self.state is not State.STOPPED:
            return ()
        self._set_state(State.EXITING, now)
        return (Action.GIVE_ALL, Action.RESUME)

    def continued(self, now: float) -> Actions:
        """Somebody let it run (fg, kill -CONT): it is met at its limit again, if it needs more."""
        return self._run(now, quiet=True) if self.state is State.STOPPED else ()

    def limit_raised(self, now: float) -> Actions:
        """Somebody has raised the limit, or memory became free elsewhere."""
        if self.state in (State.RUNNING, State.ENDING, State.COPYING):
            return ()
        return self._run(now)

    def end_wanted(self, now: float) -> Actions:
        """Somebody wants it ended: what runs is saved first; asked twice, it ends at once."""
        running = (State.RUNNING, State.UNLIMITED, State.REFUSING)
        if self.state is State.ENDING:
            return ()
        if self.state in running and not self._end_wanted:
            self._end_wanted = True
            return self._copy(now, False, ASKED_BY_PERSON)
        return self._end(now, ASKED_BY_PERSON)

    def no_limit_wanted(self, now: float) -> Actions:
        """Somebody wants it to have whatever the machine has."""
        return () if self.state is State.ENDING else self._choose(now, AtLimit.GO_ON, "")

    def _copy(self, now: float, spent: bool, why: str = "") -> Actions:
        if self.state is not State.FINISHING:
            self._finishing_since = 0.0
            self._save_requests = 0
        self._set_state(State.COPYING, now)
        self._early_from = None
        self._reserve_spent = spent
        self.because = why
        return (Action.FREEZE, Action.COPY)

    def _choose_after_copy(self, now: float) -> Actions:
        if self._end_wanted:
            return self._end(now, ASKED_BY_PERSON)
        if self._refused:
            self._refused = False
            stop = self.notebook or self.at_limit is AtLimit.HOLD
            return self._choose(now, AtLimit.HOLD if stop else AtLimit.END, self.because)
        choice, saved = self.at_limit, self.copies.complete
        if choice is AtLimit.AUTO:
            choice = AtLimit.HOLD if self.notebook or not saved else AtLimit.REFUSE
        if choice is AtLimit.REFUSE and self.copies.agents and not saved:
            # A refusal can abort a program from within a library: only what is saved may risk it.
            choice = AtLimit.HOLD
        why = {
            AtLimit.HOLD: self.copies.why,
            AtLimit.END: "that is what --at-limit end asks for",
        }
        return self._choose(now, choice, self.because or why.get(choice, ""))

    def _choose(self, now: float, choice: AtLimit, because: str) -> Actions:
        state, actions = AFTER_SAVE[choice]
        self._set_state(state, now)
        self.because = because
        return actions

    def _end(self, now: float, because: str) -> Actions:
        return self._choose(now, AtLimit.END, because)

    def _run(self, now: float, quiet: bool = False) -> Actions:
        self._end_wanted = False
        self._set_state(State.RUNNING, now)
        self.because = ""
        steps = (Action.TAKE_BACK, Action.ALLOW, Action.RESUME)
        return steps if quiet else (*steps, Action.REPORT)

    def _set_state(self, state: State, now: float) -> None:
        self.state = state
        self.since_mono_s = now


_NEAR_SHARE = 0.85  # of the limit: one copy beforehand
_COPY_AGAIN_S = 120.0
_MOST_TRIES = 25  # that come to nothing, until it has been away from its limit
_RETRY_S = 0.1  # longer with each that came to nothing: a disk that is full
_LEAST_INTERVAL_S = 0.25
_COPY_COST_FACTOR = 4.0  # times the duration of a copy, which stops every process
_ELAPSED_SHARE = 0.1  # of the time since it is refused memory


class CopySchedule:
    """
    When a rescue is copied although the limit was not reached.

    Once near the limit, as the guard has no forecast. And again while memory is refused: a failed
    allocation can end the program from within a library, without a message. What is lost then is a
    tenth of the time since, a quarter of a second, or four times the duration of a copy.
    """

    def __init__(self) -> None:
        self._copied_mono_s = self._tried_mono_s = float("-inf")
        self._tries = 0
        self._refusing_since: float | None = None
        self._renewed_mono_s = self._copy_duration_s = 0.0

    def due(self, now: float, share: float, state: State, agents: int) -> bool:
        """
        Whether everyone is to be copied at a boundary.

        Args:
            now: monotonic seconds.
            share: of its limit that it holds.
            state: of the policy.
            agents: that publish themselves.
        """
        if state is State.REFUSING:
            if self._refusing_since is None:
                self._refusing_since = self._renewed_mono_s = now
            wait_s = max(
                _LEAST_INTERVAL_S,
                _COPY_COST_FACTOR * self._copy_duration_s,
                _ELAPSED_SHARE * (now - self._refusing_since),
            )
            return now - self._renewed_mono_s >= wait_s
        if state is not State.COPYING:
            self._refusing_since = None
        if share <= _NEAR_SHARE:
            self._tries = 0
            return False
        if state is not State.RUNNING or not agents or self._tries >= _MOST_TRIES:
            return False
        waited_s = now - self._tried_mono_s
        return now - self._copied_mono_s > _COPY_AGAIN_S and waited_s >= _RETRY_S * self._tries

    def tried(self, now: float) -> None:
        """A copy begins; it may come to nothing."""
        self._tries += 1
        self._tried_mono_s = now

    def ended(self, now: float, began: float, complete: bool) -> None:
        """A copy has ended; `complete`: every training was copied."""
        self._renewed_mono_s, self._copy_duration_s = now, now - began
        if complete:
            self._copied_mono_s = now
            self._tries = 0
