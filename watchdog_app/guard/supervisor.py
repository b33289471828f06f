"""
The supervisor of a guard: a small process outside of it that waits, and decides at the limit.

It ends when the last process has left the group. Its standby waits for its end and starts another
one (`process`), so that no process stays stopped without a supervisor.

There is one supervisor per program, so it is small: 13 MB. A Python that does nothing has 8.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from watchdog_app.base import signals
from watchdog_app.base.errors import ActionError
from watchdog_app.base.linux.process import blocks, pending_signals
from watchdog_app.base.own_process import call_libc
from watchdog_app.base.text.quantities import format_bytes, limit_above, parse_bytes
from watchdog_app.guard import limits, messages
from watchdog_app.guard import record as records
from watchdog_app.guard.cgroup import LEAST_LIMIT_BYTES, Cgroup
from watchdog_app.guard.control import Listener
from watchdog_app.guard.policy import (
    MOST_OF_RESERVE,
    Action,
    AtLimit,
    CopySchedule,
    Growth,
    Policy,
    State,
)
from watchdog_app.guard.record import GuardRecord
from watchdog_app.guard.reservation import ReservationLimit
from watchdog_app.guard.trainings import Trainings

_NEAR_SHARE = 0.8  # of the limit: above it look at the machine more often, keep the reserve
_WRITE_EVERY_S = 5.0
_CHANGED_SHARE = 0.02  # of the limit: ignore smaller changes
_ROOM_AGAIN_BYTES = 16 << 20
_TERM_TIMEOUT_S = 5.0  # after SIGTERM, before SIGKILL
_CHARGE_BATCH_BYTES = 1 << 20  # memory that the processors have charged in advance
_FILL_BYTES_PER_S = 2e9  # speed at which one process fills memory
_FASTEST_S, _SLOWEST_S = 0.1, 1.0
# Seconds between two ticks, by state; in other states `_wait_s` computes them.
_WAIT_S = {
    State.COPYING: 0.02,
    State.FINISHING: 0.02,
    State.STOPPED: 0.2,
    **dict.fromkeys((State.REFUSING, State.EXITING, State.ENDING), 0.05),
}
_UNSEEN_AFTER_S = 60.0
_UNSEEN = (
    "no training that can be saved has begun in the first minute. Until one begins, nothing is "
    "saved at the limit."
)
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
_ENDING_MASK = sum(1 << (number - 1) for number in _ENDING_SIGNALS)
_MOST_CHECKED = 100  # with more processes only the program itself is checked


class Supervisor:
    """
    The supervisor of one guard.

    Args:
        group: already made, and entered by the program.
        record: the guard's state and the user's choices; only the supervisor writes it from now on.
    """

    def __init__(self, group: Cgroup, record: GuardRecord) -> None:
        self.group = group
        self.record = record
        self.policy = Policy(AtLimit(record.at_limit), record.notebook, record.hold_s)
        self.trainings = Trainings(
            record.segments_socket, self.watch, self.forget, not record.refuse
        )
        self._reservations = ReservationLimit() if record.refuse else None
        self._schedule = CopySchedule()
        self._growth = Growth()
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], object]] = {}
        self._listener: Listener | None = None
        self._held_bytes = 0
        self._next_machine = 0.0
        self._next_write = 0.0
        self._written: tuple[object, ...] = ()
        self._killed_at: float | None = None
        self._unseen_at = time.monotonic() + _UNSEEN_AFTER_S  # when to say that nothing trains
        # After SIGTERM, before SIGKILL: the agent may take its grace to save.
        self._term_timeout_s = max(_TERM_TIMEOUT_S, signals.grace_s(0.0) + 1.0)
        self._actions: dict[Action, Callable[[], object]] = {
            Action.FREEZE: group.freeze,
            Action.STOP: self._stop,
            Action.RESUME: group.resume,
            Action.COPY: self._copy,
            Action.REQUEST_SAVE: self.trainings.request_save,
            Action.GIVE_MOST: lambda: self._set_limit_with_reserve(MOST_OF_RESERVE),
            Action.GIVE_ALL: lambda: self._set_limit_with_reserve(1.0),
            Action.TAKE_BACK: lambda: self._set_limit_with_reserve(0.0),
            Action.LIFT: self._lift_limit,
            Action.REFUSE: lambda: self._freeze_reservations(True),
            Action.ALLOW: lambda: self._freeze_reservations(False),
            Action.REPORT: self._report,
            Action.END: self._end,
        }

    def take_over(self, state: State) -> None:
        """Continue in the state of an earlier supervisor; call before `open`."""
        record, policy = self.record, self.policy
        # Current limit of the group, including the reserve if it was given.
        spent = state in (State.REFUSING, State.ENDING)
        self.group.limit_bytes = record.limit_bytes + (record.reserve_bytes if spent else 0)
        policy.since_mono_s = time.monotonic()
        policy.because = record.because
        self._unseen_at = float("inf")
        if state in (State.STOPPED, State.REFUSING, State.UNLIMITED, State.ENDING):
            policy.state = state
            if state is State.STOPPED:
                self.group.stop(again=True)
            elif state is State.REFUSING:
                self._freeze_reservations(True)
        elif not self.group.at_limit():
            # A process at the limit reaches it again, and is then copied.
            self.group.resume(everyone=state is State.COPYING)

    def open(self) -> None:
        """
        Enforce the limit and listen for requests.

        Raises:
            OSError: the kernel refuses something that a guard needs.
        """
        self.group.enforce_limit()
        event, mask = self.group.open_event()
        self._handlers[event] = self.group.clear_event
        self._poll.register(event, mask)
        with suppress(OSError):
            self._listener = Listener(
                self.record.socket_path, self._handle_request, self.watch, self.forget
            )
        with suppress(OSError):
            handle = os.pidfd_open(self.record.pid)
            self.watch(handle, lambda: self.forget(handle))  # wakes the loop once
        self.trainings.open()
        self._write(always=True)

    def watch(self, fd: int, then: Callable[[], object]) -> None:
        """Call `then` whenever `fd` is readable."""
        self._handlers[fd] = then
        self._poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def run(self) -> None:
        """Wait and act until the group is empty."""
        while True:
            for fd, _ in self._poll.poll(self._wait_s() * 1000):
                if fd in self._handlers:
                    self._handlers[fd]()
            try:
                if not self.tick(time.monotonic()):
                    return
            except FileNotFoundError:  # the group no longer exists
                return

    def tick(self, now: float) -> bool:
        """Read usage, act on it, write the record; False if the group is empty."""
        self.group.rewrite_limit()
        self._held_bytes = self.group.usage().held_bytes
        pids = self.group.pids()
        if not pids:
            return False
        policy = self.policy
        if policy.state is State.ENDING:
            self._end()
        elif not policy.is_halted and self.group.at_limit():
            self._execute(policy.limit_met(now))
        else:
            if self.record.ends_unix_s is not None and time.time() >= self.record.ends_unix_s:
                self._execute(policy.time_is_over(now))
            self._execute(policy.tick(now, self._held_bytes, self.record.limit_bytes))
            if self._copy_is_due(now) and self.trainings.all_fresh():
                if policy.state is State.RUNNING:
                    self._schedule.tried(now)
                self._execute(policy.copy_early(now))
        if policy.state is State.COPYING:
            self._collect_copies(now)
        elif policy.state is State.FINISHING:
            self._wait_for_boundary(now)
        elif policy.state is State.STOPPED:
            self._check_stopped(now, pids)
        self._update_limits(now, pids)
        self._write()
        self.report_unseen(now)
        return True

    def close(self) -> None:
        """Lift the limit, resume every process and remove the group if it is empty."""
        self.trainings.find_last_saves()
        self._record_results()
        self.trainings.close()
        if self._reservations is not None:
            self._reservations.restore()
        if self._listener is not None:
            self._listener.close()
        self.group.lift_limit()
        self.group.resume()
        if self.group.remove():
            self.record.remove()

    # Actions of the policy

    def _execute(self, actions: tuple[Action, ...]) -> None:
        for each in actions:
            self._actions[each]()

    def _stop(self) -> None:
        self.group.stop()
        self._set_limit_with_reserve(0.0)

    def _copy(self) -> None:
        policy = self.policy
        if not policy.is_early_copy:
            self.record.since_unix_s = time.time()
            self.record.note("limit", policy.because or "Its limit was met.")
        elif not policy.is_renewing:  # there may be hundreds of renewing copies
            self.record.note("copy", "Its limit is near.")
        self._write(always=True)
        self.trainings.copy(self.group.pids())

    def _set_limit_with_reserve(self, share: float) -> None:
        """Set the limit plus this share of the reserve."""
        self._set_group_limit(self.record.limit_bytes + int(self.record.reserve_bytes * share))

    def _set_group_limit(self, limit_bytes: int) -> None:
        with suppress(OSError):
            try:
                self.group.set_limit(limit_bytes)
            except OSError:  # v1 refuses a limit below the usage: then set it to the usage
                self.group.set_limit(self.group.usage().used_bytes + _CHARGE_BATCH_BYTES)

    def _lift_limit(self) -> None:
        """Give the program all memory of the machine; at the machine's limit the kernel kills."""
        # First: without its limit the program runs at once, and its requests would be refused.
        if self._reservations is not None:
            self._reservations.lift(self.group.pids())
        free = limits.room_around(self.group.path)
        spare = free.free_bytes - limits.margin_bytes(free) // 2
        self.record.limit_bytes = self._held_bytes + max(0, spare)
        self._set_limit_with_reserve(0.0)
        self.group.lift_limit()

    def _freeze_reservations(self, on: bool) -> None:
        if self._reservations is not None:
            if on:
                self._reservations.freeze(self.group.pids())
            else:
                if self.record.state == State.REFUSING.value:
                    self.record.refused_unix_s = time.time()
                self._reservations.unfreeze()
                self._follow_reservations(self.group.pids())

    def _end(self) -> None:
        """Send SIGTERM, after some seconds or at the limit SIGKILL, and resume the processes."""
        now = time.monotonic()
        if self._killed_at is None:
            self._killed_at = now
            self._set_limit_with_reserve(1.0)
            number = signal.SIGTERM
        elif now - self._killed_at > self._term_timeout_s or self.group.at_limit():
            number = signal.SIGKILL
        else:
            return
        for pid in self.group.pids():
            with suppress(OSError):
                _send(pid, number)
        self.group.resume(everyone=True)  # a stopped process does not die

    def _report(self) -> None:
        record = self.record
        record.state = self.policy.state.value
        record.because = self.policy.because
        record.used_bytes = self._held_bytes
        record.since_unix_s = time.time()
        self._record_results()
        text = messages.report(record)
        record.note(record.state, text)
        self._write(always=True)
        messages.write_to_terminal(record.pid, text)

    def report_unseen(self, now: float) -> None:
        """Say once, after a minute, if no training that can be saved has begun."""
        record = self.record
        if now >= self._unseen_at:
            self._unseen_at = float("inf")
            if record.name.endswith(".py") and not (record.seen or record.notebook):
                messages.write_to_terminal(record.pid, _UNSEEN)

    def _record_results(self) -> None:
        trainings, record = self.trainings, self.record
        copies = trainings.copies
        record.agents = max(copies.agents, trainings.agents)
        record.saved = copies.saved
        record.trouble = copies.why
        if trainings.rescues:
            record.rescues = trainings.rescues[-10:]
            record.saved_unix_s = trainings.saved_unix_s or trainings.rescues[-1].saved_unix_s

    # Events

    def _collect_copies(self, now: float) -> None:
        copies = self.trainings.finished(now)
        if copies is None:
            return
        if copies.complete or not self.policy.is_early_copy:
            self._record_results()
        self._schedule.ended(now, self.policy.since_mono_s, copies.complete)
        self._execute(self.policy.copied(now, copies))

    def _wait_for_boundary(self, now: float) -> None:
        trainings = self.trainings
        if trainings.at_boundary(now):
            self._execute(self.policy.boundary(now))
        elif trainings.all_answered(now):
            copies = trainings.copies
            self._execute(
                self.policy.saved(now, copies.agents)
                if copies.complete
                else self.policy.boundary(now)
            )

    def _check_stopped(self, now: float, pids: list[int]) -> None:
        """Act on a pending signal, and on a SIGCONT that another program has sent."""
        checked = pids if len(pids) <= _MOST_CHECKED else [self.record.pid]
        if any(pending_signals(each) & _ENDING_MASK for each in checked):
            self._execute(self.policy.signal_waits(now))
        elif self.group.was_continued():
            self._execute(self.policy.continued(now))

    def _copy_is_due(self, now: float) -> bool:
        share = self._held_bytes / max(1, self.record.limit_bytes)
        return self._schedule.due(now, share, self.policy.state, self.trainings.agents)

    def _handle_request(self, request: dict[str, Any]) -> str:
        """Carry out a request; return what was done. Raises ActionError with the reason."""
        now, record = time.monotonic(), self.record
        if request.get("end") is True:
            self._execute(self.policy.end_wanted(now))
            return f"{record.name} is being ended."
        if request.get("unlimited") is True:
            record.follows_machine = False
            self._execute(self.policy.no_limit_wanted(now))
            return f"{record.name} continues without a limit of its own."
        held = self.group.usage().held_bytes
        wanted = self._requested_limit(request, held)
        record.follows_machine = False
        if self.policy.state is State.UNLIMITED:
            self.group.enforce_limit()
        self._set_limit(wanted)
        answer = f"The limit of {record.name} is {format_bytes(wanted)} now"
        if wanted <= held:
            answer += f"; it holds {format_bytes(held)} already, so it is at its limit now"
            self._execute(self.policy.limit_lowered(now))
        else:
            self._execute(self.policy.limit_raised(now))
        self._write(always=True)
        return f"{answer}."

    def _requested_limit(self, request: dict[str, Any], held: int) -> int:
        """The requested limit. Raises ActionError if it is not a number, too low, or too high."""
        free = limits.room_around(self.group.path).free_bytes
        wanted = request.get("limit_bytes")
        if request.get("more") is True:  # a button: as in the report, or all free memory
            more = parse_bytes(limit_above(self.record.limit_bytes, held))
            wanted = min(more, held + free)
        if isinstance(wanted, bool) or not isinstance(wanted, int):
            raise ActionError("That is no request that this supervisor knows.")
        if wanted < LEAST_LIMIT_BYTES:
            raise ActionError(
                f"A limit below {format_bytes(LEAST_LIMIT_BYTES)} holds no program at all."
            )
        if wanted > held + free:
            raise ActionError(
                f"{format_bytes(wanted)} is more than there is: {self.record.name} holds "
                f"{format_bytes(held)}, and {format_bytes(free)} are free. "
                "End something else first, or give less."
            )
        return wanted

    def _set_limit(self, limit_bytes: int) -> None:
        self.record.limit_bytes = limit_bytes
        self._set_limit_with_reserve(0.0)
        self._follow_reservations(self.group.pids())  # before any process runs again

    # Work at every tick

    def _update_limits(self, now: float, pids: list[int]) -> None:
        record = self.record
        near = self._held_bytes > record.limit_bytes * _NEAR_SHARE
        waits, state = self._copy_is_due(now), self.policy.state
        soon = state not in (State.RUNNING, State.UNLIMITED) or waits
        if soon:  # the limit may be another one afterwards
            self._growth = Growth()
        rising = self._growth.is_near(now, record.limit_bytes - self._held_bytes)
        # A program that is refused memory may train for long, although most of them fail at once.
        waits = waits or state is not State.REFUSING or self._schedule.has_just_refused(now)
        self.trainings.update(pids, soon or rising, waits=soon and waits)
        self._follow_reservations(pids)
        if now < self._next_machine:
            return
        self._next_machine = now + (_FASTEST_S if near else _SLOWEST_S)
        if not near:
            self.raise_reserve(self.trainings.state_bytes())
        if record.follows_machine:
            self._follow_machine(now)

    def raise_reserve(self, state_bytes: int) -> None:
        """Raise the reserve for a state of this size, if the user chose none and there is room."""
        record = self.record
        wanted = limits.reserve_for(state_bytes)
        if record.follows_state and wanted > record.reserve_bytes:
            free = limits.room_around(self.group.path)
            spare = free.free_bytes - limits.margin_bytes(free)
            record.reserve_bytes = max(record.reserve_bytes, min(wanted, spare))

    def _follow_reservations(self, pids: list[int]) -> None:
        if self._reservations is not None and self.policy.state is not State.UNLIMITED:
            limit, reserve = self.record.limit_bytes, self.record.reserve_bytes
            self._reservations.update(pids, limit - self._held_bytes, limit, reserve)

    def _follow_machine(self, now: float) -> None:
        state, record = self.policy.state, self.record
        if state not in (State.RUNNING, State.STOPPED):
            return
        record.used_bytes, record.state = self._held_bytes, state.value
        record.agents = max(record.agents, self.trainings.agents)
        others = [each for each in records.read_all() if each.follows_machine]
        others = [each for each in others if each.folder != record.folder]
        limit = limits.share_of(record, others, limits.room_around(self.group.path))
        if state is State.STOPPED:
            if limit > self._held_bytes + max(_ROOM_AGAIN_BYTES, self._held_bytes // 10):
                self._set_limit(limit)
                self._execute(self.policy.limit_raised(now))
        elif abs(limit - record.limit_bytes) > record.limit_bytes * _CHANGED_SHARE:
            self._set_limit(max(limit, LEAST_LIMIT_BYTES))

    def _wait_s(self) -> float:
        """Seconds to wait for an event of the kernel before the next tick."""
        if self.policy.state in _WAIT_S:
            return _WAIT_S[self.policy.state]
        if self._copy_is_due(time.monotonic()):  # copy at the next boundary
            return _WAIT_S[State.COPYING]
        room = max(0, self.record.limit_bytes - self._held_bytes)
        return min(_SLOWEST_S, max(_FASTEST_S, room / _FILL_BYTES_PER_S))

    def _write(self, always: bool = False) -> None:
        record, now = self.record, time.monotonic()
        record.state = self.policy.state.value
        record.used_bytes = self._held_bytes
        record.because = self.policy.because
        record.agents = max(self.trainings.agents, record.agents)
        record.seen = record.seen or self.trainings.seen
        changed = (
            record.state,
            record.limit_bytes,
            record.agents,
            record.saved,
            record.standby_pid,
        )
        if always or changed != self._written or now >= self._next_write:
            self._written = changed
            self._next_write = now + _WRITE_EVERY_S
            with suppress(OSError):
                record.write()


def _send(pid: int, number: int) -> None:
    """
    Send a signal to a process that may be frozen: to its main thread, unless that blocks it.

    When a frozen process continues, any thread takes a signal that was sent to the process. In one
    without Python the agent does not learn of it, and the signal would have no effect.
    """
    if blocks(pid, number) or not call_libc("tgkill", pid, pid, number):
        os.kill(pid, number)
