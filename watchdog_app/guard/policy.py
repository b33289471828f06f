"""
What to do for a program at the limit of its guard: events in, actions out. Pure.

    running -> copying -> stopped | refusing | unlimited | ending
                |   ^        |
                v   |        v
             finishing    exiting

In `copying` all processes are frozen, in `stopped` all are stopped. The reserve is given in two
parts. Most of it lets a step reach a boundary where the state can be saved. All of it lets the
program end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from watchdog_app.guard.record import ASKED_BY_PERSON, TIME_IS_OVER


class AtLimit(Enum):
    """The user's choice for the time after the rescue."""

    AUTO = "auto"  # stop a notebook or an unsaved program; refuse memory to a script, then end it
    GO_ON = "go-on"  # remove the limit: the machine's own limit is the next
    REFUSE = "refuse"  # refuse further memory; if the program needs it anyway, end it
    HOLD = "hold"  # keep it stopped until the user decides
    END = "end"


class State(Enum):
    """The state of a guard."""

    RUNNING = "running"
    COPYING = "copying"
    FINISHING = "finishing"  # the current step, with the reserve
    STOPPED = "stopped"
    REFUSING = "refusing"
    EXITING = "exiting"  # a signal has interrupted it: it has the reserve to end or to free memory
    UNLIMITED = "unlimited"
    ENDING = "ending"


class Action(Enum):
    """One thing for the supervisor to do."""

    FREEZE = "freeze everyone for a copy"
    STOP = "stop everyone, at the limit without the reserve"
    RESUME = "let everyone run"
    COPY = "copy what every agent shows, from outside"
    REQUEST_SAVE = "ask the agents that were not copied to save by themselves"
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
_ROOM_AGAIN = 0.95  # of the limit: below it a stopped or refused program runs again
_SAVE_DEADLINE_S = 60.0  # for a step, and the save after it
_MAX_SAVE_REQUESTS = 3  # within that time
_EXIT_DEADLINE_S = 30.0
_EXITED_S = 5.0  # with room again it usually ends right away
# Actions after the copy, per choice. `_choose_after_copy` holds an unsaved program instead of
# refusing it memory.
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
    The results of copying every agent in the guard.

    `agents`: processes that publish, or could be asked. `in_step`: agents that were not saved but
    can be saved at their next boundary. `why`: the reason why some were not saved.
    """

    agents: int
    saved: int
    in_step: int
    why: str = ""

    @property
    def complete(self) -> bool:
        """Whether everything that can be saved is saved."""
        return self.agents > 0 and self.saved == self.agents


@dataclass(eq=False)
class Policy:
    """
    The decisions for one guard.

    `state` and `since_mono_s`: its state and when that began. `copies`: what was saved.

    Args:
        at_limit: the user's choice.
        notebook: a person uses it.
        hold_s: a stopped program is ended after this time; None: it waits for a decision.
    """

    at_limit: AtLimit = AtLimit.AUTO
    notebook: bool = False
    hold_s: float | None = None
    state: State = field(default=State.RUNNING, init=False)
    since_mono_s: float = field(default=0.0, init=False)
    copies: CopyResults = field(default=CopyResults(0, 0, 0), init=False)
    because: str = field(default="", init=False)  # why it is stopped or ended, for the user
    # The reserve for a boundary was given; more waiting does not help.
    _reserve_spent: bool = field(default=False, init=False)
    _finishing_since: float = field(default=0.0, init=False)
    _save_requests: int = field(default=0, init=False)  # since it reached the limit
    # State before an early copy, to return to after it.
    _early_from: State | None = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)  # the program needed refused memory anyway
    _end_because: str = field(default="", init=False)  # save before the end

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
        if state is State.FINISHING:  # copy the published state, or nothing
            return self._copy(now, True, "the reserve was used up before its step ended")
        if state in (State.RUNNING, State.UNLIMITED):
            return self._copy(now, False)
        if state is State.REFUSING:
            # The program made steps since the rescue: copy the last one too, if possible.
            self._refused = True
            return self._copy(now, True, "it needed more memory than was left")
        if state is State.EXITING and self.notebook:
            # The user interrupted a cell: keep the kernel and its variables alive.
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
        # Try again after a stop outside a boundary, or if an agent could not save then.
        give = (Action.GIVE_MOST,) if self._save_requests == 0 else ()
        ask = (Action.REQUEST_SAVE,) if self._save_requests < _MAX_SAVE_REQUESTS else ()
        self._save_requests += 1
        self._finishing_since = self._finishing_since or now
        self._set_state(State.FINISHING, self._finishing_since)
        return (*give, Action.RESUME, *ask)

    def copy_early(self, now: float) -> Actions:
        """
        Start a copy in advance: the limit is near, and the published state is current.

        It also applies to a program that is refused memory but still makes steps: at any failed
        allocation a library may end it without a message.
        """
        if self.state not in (State.RUNNING, State.REFUSING):
            return ()
        self._early_from = self.state
        self._set_state(State.COPYING, now)
        return (Action.FREEZE, Action.COPY)

    def boundary(self, now: float) -> Actions:
        """While finishing: an agent has reached a boundary where its state can be copied."""
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
            now: monotonic seconds.
            held_bytes: usage that the kernel cannot reclaim.
            limit_bytes: the limit without any reserve.
        """
        state, passed_s = self.state, now - self.since_mono_s
        room = held_bytes < limit_bytes * _ROOM_AGAIN
        if state is State.FINISHING and passed_s > _SAVE_DEADLINE_S:
            return self._copy(now, True, "its step did not end within a minute")
        if state is State.STOPPED and room:
            return self._run(now)
        if state is State.REFUSING and room:
            # it was never stopped; it usually has room because it is ending
            return self._run(now, quiet=True)
        if state is State.STOPPED and self.hold_s is not None and passed_s > self.hold_s:
            return self._end(now, "no decision came within the time of --hold-for")
        if state is State.EXITING and room and (self.notebook or passed_s > _EXITED_S):
            return self._run(now, quiet=True)
        if state is State.EXITING and passed_s > _EXIT_DEADLINE_S and not self.notebook:
            return self._copy(now, True, "it did not end")  # as if the limit was reached again
        return ()

    def signal_waits(self, now: float) -> Actions:
        """A signal that ends or interrupts is pending for a stopped process."""
        if self.state is not State.STOPPED:
            return ()
        self._set_state(State.EXITING, now)
        return (Action.GIVE_ALL, Action.RESUME)

    def continued(self, now: float) -> Actions:
        """Another program resumed it (fg, kill -CONT); it is stopped again if it needs more."""
        return self._run(now, quiet=True) if self.state is State.STOPPED else ()

    def limit_lowered(self, now: float) -> Actions:
        """The user has set a limit below the usage: it is met, also if no process needs memory."""
        if self._early_from is State.RUNNING:  # this copy is then the one at the limit
            self._early_from = None
        return self.limit_met(now) if self.state in (State.RUNNING, State.UNLIMITED) else ()

    def limit_raised(self, now: float) -> Actions:
        """The user has raised the limit, or memory became free elsewhere."""
        if self.state in (State.RUNNING, State.ENDING, State.COPYING):
            return ()
        return self._run(now)

    def end_wanted(self, now: float, because: str = ASKED_BY_PERSON) -> Actions:
        """
        The user wants it ended: a running program is saved first; a second request ends it at once.

        Args:
            now: monotonic seconds.
            because: why, as a clause for the user.
        """
        running = (State.RUNNING, State.UNLIMITED, State.REFUSING)
        if self.state is State.ENDING:
            return ()
        if self.state in running and not self._end_because:
            self._end_because = because
            return self._copy(now, False, because)
        return self._end(now, because)

    def time_is_over(self, now: float) -> Actions:
        """Its wall time is over: end it, after a copy that has begun."""
        if self.state in (State.COPYING, State.FINISHING):
            return ()
        return self.end_wanted(now, TIME_IS_OVER)

    def no_limit_wanted(self, now: float) -> Actions:
        """The user wants it to run without its own limit."""
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
        if self._end_because:
            return self._end(now, self._end_because)
        if self._refused:
            self._refused = False
            stop = self.notebook or self.at_limit is AtLimit.HOLD
            return self._choose(now, AtLimit.HOLD if stop else AtLimit.END, self.because)
        choice, saved = self.at_limit, self.copies.complete
        if choice is AtLimit.AUTO:
            choice = AtLimit.HOLD if self.notebook or not saved else AtLimit.REFUSE
        if choice is AtLimit.REFUSE and self.copies.agents and not saved:
            # A refusal can abort a program from within a library: only a saved program may risk it.
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
        self._end_because = ""
        self._set_state(State.RUNNING, now)
        self.because = ""
        steps = (Action.TAKE_BACK, Action.ALLOW, Action.RESUME)
        return steps if quiet else (*steps, Action.REPORT)

    def _set_state(self, state: State, now: float) -> None:
        self.state = state
        self.since_mono_s = now


_HORIZON_S = 30.0  # a limit is near if growth reaches it within this time
_LEAST_NEAR_S = 2.0


class Growth:
    """Whether memory grows so fast that it soon reaches the limit; a steady peak does not count."""

    def __init__(self) -> None:
        self._least, self._at, self._until = float("inf"), 0.0, 0.0

    def is_near(self, now: float, room_bytes: float) -> bool:
        """Whether the limit is near; `room_bytes` are left below it at the monotonic time `now`."""
        shrunk, passed_s = self._least - room_bytes, now - self._at
        if shrunk > 0:
            if room_bytes * passed_s < _HORIZON_S * shrunk < float("inf"):
                self._until = now + min(max(_LEAST_NEAR_S, 2 * passed_s), _HORIZON_S)
            self._least, self._at = room_bytes, now
        return now < self._until


_NEAR_SHARE = 0.85  # of the limit: one copy in advance
_COPY_AGAIN_S = 120.0
_MOST_TRIES = 25  # failed copies in advance, until the usage is away from the limit
_RETRY_S = 0.1  # wait per failed copy: the disk may be full
_LEAST_INTERVAL_S = 0.25
_COPY_COST_FACTOR = 4.0  # times the duration of a copy, which stops every process
_JUST_S = 10.0
_ELAPSED_SHARE = 0.1  # of the time since memory is refused


class CopySchedule:
    """
    When to copy a rescue although the limit was not reached.

    Once near the limit, because the guard has no forecast. And again while memory is refused: a
    failed allocation can end the program from within a library, without a message. The loss is then
    at most a tenth of the time since, a quarter of a second, or four times the duration of a copy.
    """

    def __init__(self) -> None:
        self._copied_mono_s = self._tried_mono_s = float("-inf")
        self._tries = 0
        self._refusing_since: float | None = None
        self._renewed_mono_s = self._copy_duration_s = 0.0

    def due(self, now: float, share: float, state: State, agents: int) -> bool:
        """
        Whether to copy all trainings at a boundary.

        Args:
            now: monotonic seconds.
            share: usage as a share of the limit.
            state: of the policy.
            agents: number of processes that publish.
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

    def has_just_refused(self, now: float) -> bool:
        """Whether memory has been refused for a few seconds only: most programs fail in these."""
        return self._refusing_since is not None and now - self._refusing_since < _JUST_S

    def tried(self, now: float) -> None:
        """Record the start of a copy, which may fail."""
        self._tries += 1
        self._tried_mono_s = now

    def ended(self, now: float, began: float, complete: bool) -> None:
        """Record the end of a copy; `complete`: every training was copied."""
        self._renewed_mono_s, self._copy_duration_s = now, now - began
        if complete:
            self._copied_mono_s = now
            self._tries = 0
