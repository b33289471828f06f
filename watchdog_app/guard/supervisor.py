"""
The supervisor of a guard: a small process outside of it that waits, and decides at the limit.

It outlives nothing: it ends when the last process has left the guard. A standby process waits for
the supervisor's own end and starts another one (`standby`); so no guard stays held for want of one.

Small, as there is one for each task: nothing here or below may import dataclasses or typing,
which alone are 2 MB.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.guard import cgroup, messages, pace, starting
from watchdog_app.guard.control import Listener
from watchdog_app.guard.job_control import JobControl
from watchdog_app.guard.limits import Limits
from watchdog_app.guard.policy import MOST_OF_RESERVE, AtLimit, Do, Policy, Stage
from watchdog_app.guard.renewal import Insurance, Renewal
from watchdog_app.guard.reservation import ReservationLimit
from watchdog_app.guard.trainings import Trainings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from watchdog_app.guard.cgroup import Cgroup
    from watchdog_app.guard.record import GuardRecord

_NEAR_SHARE = 0.8  # of the limit: from here on agents publish after every batch
_MACHINE_EVERY_S = 1.0
_WRITE_EVERY_S = 5.0
_CHANGED_SHARE = 0.02  # of the limit: less is no news
_ROOM_AGAIN_BYTES = 16 << 20
_TERM_S = 5.0  # after SIGTERM, before SIGKILL
_LITTLE_BYTES = 4 << 20


class Supervisor:
    """
    One guard's.

    Args:
        guard: made, and entered by the program.
        record: what is known of it, and wanted at its limit; written by the supervisor from now on.
    """

    def __init__(self, guard: Cgroup, record: GuardRecord) -> None:
        self.guard = guard
        self.record = record
        self.policy = Policy(AtLimit(record.at_limit), record.notebook, record.hold_s)
        self.limits = Limits(guard, record)
        self._job_control = JobControl(record, self.policy)
        self._trainings = Trainings(record.pages, eager=not record.refuse)
        self._refusal = ReservationLimit() if record.refuse else None
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._armed: list[int] = []
        self._listener: Listener | None = None
        self._insurance = Insurance()
        self._renewal = Renewal()
        self._held_bytes = 0
        self._used_bytes = 0
        self._next_machine = 0.0
        self._next_write = 0.0
        self._written: tuple[object, ...] = ()
        self._killed_at: float | None = None
        self._fd_of_program: int | None = None

    def open(self) -> None:
        """
        Be ready: from here on the limit holds.

        Raises:
            OSError: the kernel refuses something that a guard needs.
        """
        self.guard.hold_at_limit()
        self._arm()
        with suppress(OSError):
            self._listener = Listener(self.record.socket_path, self._request, self)
        with suppress(OSError):
            handle = os.pidfd_open(self.record.pid)
            self._fd_of_program = handle
            self.watch(handle, self._program_ended)
        self._trainings.open()
        self._write(time.monotonic(), always=True)

    def guarded_by(self, pid: int) -> None:
        """`pid` waits for our end, as we do for its."""
        starting.Standby(self.record, self).guarded_by(pid)

    def watch(self, fd: int, then: Callable[[], None]) -> None:
        """Call `then` whenever `fd` is readable."""
        self._handlers[fd] = then
        self._poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> None:
        """Watch it no longer."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def run(self) -> None:
        """Until the guard is empty."""
        while True:
            for fd, _ in self._poll.poll(self._wait_s() * 1000):
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()
            try:
                if not self.look(time.monotonic()):
                    return
            except FileNotFoundError:  # the group is gone
                return

    def look(self, now: float) -> bool:
        """One turn; False when nobody is in the guard any more."""
        self.guard.hold_fast()
        usage = self.guard.usage()
        self._held_bytes, self._used_bytes = usage.held_bytes, usage.used_bytes
        pids = self.guard.pids()
        if not pids:
            return False
        policy = self.policy
        if policy.stage is Stage.ENDING:
            self._end(now, pids)
        elif not policy.still and self.guard.at_limit():
            self._act(policy.limit_met(now), now)
        else:
            self._act(policy.tick(now, self._held_bytes, self.limits.limit_bytes), now)
            if self._wants_insurance(now) and self._trainings.all_fresh():
                self._insurance.tried(now)
                self._act(policy.insure(now), now)
            elif self._renewal.due(now, policy.stage) and self._trainings.all_fresh():
                self._act(policy.insure(now), now)
        if policy.stage is Stage.COPYING:
            copies = self._trainings.finished(now)
            if copies is not None:
                if copies.complete or not policy.insuring:
                    self._take()
                if copies.complete:
                    self._insurance.copied(now)
                self._renewal.copied(now, policy.since_mono_s)
                self._act(policy.copied(now, copies), now)
        elif policy.stage is Stage.WAITING:
            self._wait_for_boundary(now)
        elif policy.stage in (Stage.HELD, Stage.ASIDE, Stage.LEAVING):
            self._act(self._job_control.hear(now, pids), now)
        self._follow(now, pids)
        self._write(now)
        self._trainings.tidy(now)
        return True

    def stand_at(self, stage: Stage) -> None:
        """After the end of an earlier supervisor: stand where it stood; before `open`."""
        record, policy = self.record, self.policy
        # What the group may hold now: with the reserve, where that was given.
        spent = stage in (Stage.REFUSING, Stage.ENDING)
        self.guard.limit_bytes = record.limit_bytes + (record.reserve_bytes if spent else 0)
        policy.since_mono_s = time.monotonic()
        policy.because = record.because
        if stage in (Stage.HELD, Stage.REFUSING, Stage.OPENED, Stage.ENDING):
            policy.stage = stage
            if stage is Stage.HELD:
                self.guard.freeze()
            elif stage is Stage.REFUSING:
                self._do(Do.REFUSE, policy.since_mono_s)
        elif not self.guard.at_limit():
            self.guard.thaw()  # whoever is at the limit is met there again, and copied

    def close(self) -> None:
        """The guard is empty, or is to be nobody's business any more."""
        self._trainings.close()
        if self._refusal is not None:
            self._refusal.take_back()
        if self._listener is not None:
            self._listener.close()
        self.guard.release()
        if self.guard.close():
            self.record.remove()

    # What the policy wants

    def _act(self, steps: Iterable[Do], now: float) -> None:
        for step in steps:
            self._do(step, now)

    def _do(self, step: Do, now: float) -> None:
        if step is Do.FREEZE:
            self.guard.freeze()
        elif step is Do.THAW:
            self.guard.thaw()
        elif step is Do.COPY:
            why = self.policy.because or "Its limit was met."
            if not self.policy.insuring:
                self.record.since_unix_s = time.time()
                self.record.note(time.time(), "limit", why)
            elif not self.policy.renewing:  # of which there may be hundreds
                self.record.note(time.time(), "copy", "Its limit is near.")
            self._write(now, always=True)
            self._trainings.copy(self.guard.pids(), self)
        elif step is Do.ASK:
            self._trainings.ask(self)
        elif step is Do.GIVE_LITTLE:
            self.limits.allow(max(self.limits.limit_bytes, self._used_bytes) + _LITTLE_BYTES)
        elif step is Do.GIVE_MOST:
            self.limits.allow(
                self.limits.limit_bytes + int(self.record.reserve_bytes * MOST_OF_RESERVE)
            )
        elif step is Do.GIVE_ALL:
            self.limits.allow(self.limits.limit_bytes + self.record.reserve_bytes)
        elif step is Do.TAKE_BACK:
            self.limits.allow(self.limits.limit_bytes)
        elif step is Do.OPEN:
            # First: without its limit it runs at once, and would be refused what it asks for.
            if self._refusal is not None:
                self._refusal.open_up(self.guard.pids())
            self.limits.open_up(self._held_bytes)
            self._arm()
        elif step is Do.REFUSE and self._refusal is not None:
            self._refusal.clamp(self.guard.pids())
        elif step is Do.ALLOW and self._refusal is not None:
            self._refusal.unclamp()
            self._follow_refusal(self.guard.pids())
        elif step is Do.REPORT:
            self._report(now)
        elif step is Do.END:
            self._killed_at = None
            self._end(now, self.guard.pids())

    def _end(self, now: float, pids: list[int]) -> None:
        """SIGTERM first where the program can still hear it, then SIGKILL, and let them die."""
        if self._killed_at is None:
            self._killed_at = now
            self.limits.allow(self.limits.limit_bytes + self.record.reserve_bytes)
            number = signal.SIGTERM
        elif now - self._killed_at > _TERM_S or self.guard.at_limit():
            number = signal.SIGKILL
        else:
            return
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, number)
        self.guard.thaw()  # nobody dies while frozen

    def _report(self, now: float) -> None:
        self.record.stage = self.policy.stage.value
        self.record.because = self.policy.because
        self.record.since_unix_s = time.time()
        self._take()
        text = messages.told(self.record)
        if self.policy.stage is Stage.CALM:
            text += self._job_control.goes_on()
        self.record.note(time.time(), self.policy.stage.value, text)
        self._write(now, always=True)
        messages.write(self.record.pid, text)
        self._trainings.tell_daemon(self)

    def _take(self) -> None:
        """What the trainings have brought."""
        copies = self._trainings.copies
        self.record.agents = max(copies.agents, self._trainings.agents)
        self.record.saved = copies.saved
        self.record.trouble = copies.why
        if self._trainings.rescues:
            self.record.rescues = self._trainings.rescues[-10:]
            self.record.saved_unix_s = self._trainings.saved_unix_s

    # What happens

    def _wait_for_boundary(self, now: float) -> None:
        if self._trainings.at_boundary():
            self._act(self.policy.boundary(now), now)
        elif self._trainings.all_answered(now):
            copies = self._trainings.copies
            if copies.complete:
                self._act(self.policy.saved_by_itself(now, copies.agents), now)
            else:
                self._act(self.policy.boundary(now), now)

    def _wants_insurance(self, now: float) -> bool:
        share = self._held_bytes / max(1, self.limits.limit_bytes)
        return self._insurance.due(now, share, self.policy.stage, self._trainings.agents)

    def _program_ended(self) -> None:
        if self._fd_of_program is not None:
            self.forget(self._fd_of_program)
            os.close(self._fd_of_program)
            self._fd_of_program = None

    def _heard(self, fd: int) -> None:
        self.guard.heard(fd)

    def _arm(self) -> None:
        for fd in self._armed:
            self.forget(fd)
        self._armed = []
        for fd, mask in self.guard.arm(int(self.limits.limit_bytes * _NEAR_SHARE)):
            self._armed.append(fd)
            self._handlers[fd] = lambda fd=fd: self._heard(fd)  # type: ignore[misc]
            self._poll.register(fd, mask)

    def _request(self, request: dict[str, Any]) -> str:
        """Raises ActionError: it cannot be, and why."""
        now = time.monotonic()
        if request.get("end") is True:
            self._act(self.policy.told_to_end(now), now)
            return f"{self.record.name} is being ended."
        if request.get("go_on") is True:
            self.record.follows_machine = False
            self._act(self.policy.told_to_go_on(now), now)
            return f"{self.record.name} goes on without a limit of its own."
        wanted, held = self.limits.wanted(request)
        self.record.follows_machine = False
        if self.policy.stage is Stage.OPENED:
            self.guard.hold_at_limit()
        self._set_limit(wanted)
        said = f"The limit of {self.record.name} is {format_bytes(wanted)} now"
        if wanted <= held:
            said += f"; it holds {format_bytes(held)} already and is held at once"
        else:
            self._act(self.policy.raised(now), now)
        self._write(now, always=True)
        return f"{said}."

    def _set_limit(self, bytes_: int) -> None:
        self.limits.set(bytes_)
        self._arm()
        self._follow_refusal(self.guard.pids())  # before anybody runs again

    # What goes on all the time

    def _follow(self, now: float, pids: list[int]) -> None:
        near = self._held_bytes > self.limits.limit_bytes * _NEAR_SHARE
        self._trainings.look(pids, near or self.policy.stage is not Stage.CALM)
        self._follow_refusal(pids)
        if now >= self._next_machine:
            self._next_machine = now + (pace.FASTEST_S if near else _MACHINE_EVERY_S)
            if not near:
                self.limits.keep_for(self._trainings.state_bytes())
            if self.record.follows_machine:
                self._follow_machine(now)

    def _follow_refusal(self, pids: list[int]) -> None:
        if self._refusal is not None and self.policy.stage is not Stage.OPENED:
            room = self.limits.limit_bytes - self._held_bytes
            limit, reserve = self.limits.limit_bytes, self.record.reserve_bytes
            self._refusal.follow(pids, room, limit, reserve)

    def _follow_machine(self, now: float) -> None:
        stage = self.policy.stage
        if stage not in (Stage.CALM, Stage.HELD):
            return
        limit = self.limits.by_machine(self._held_bytes, self._trainings.agents, stage)
        if stage is Stage.HELD:
            if limit > self._held_bytes + max(_ROOM_AGAIN_BYTES, self._held_bytes // 10):
                self._set_limit(limit)
                self._act(self.policy.raised(now), now)
        elif abs(limit - self.limits.limit_bytes) > self.limits.limit_bytes * _CHANGED_SHARE:
            self._set_limit(max(limit, cgroup.LEAST_LIMIT_BYTES))

    def _wait_s(self) -> float:
        return pace.wait_s(
            self.policy.stage,
            insuring=self._wants_insurance(time.monotonic()),
            told=self.guard.tells_near and self._used_bytes < self.limits.limit_bytes * _NEAR_SHARE,
            # Page cache may have met that long ago, and tells no more what the program takes.
            room_bytes=self.limits.limit_bytes - self._held_bytes,
        )

    def _write(self, now: float, always: bool = False) -> None:
        record = self.record
        # Whoever takes over holds what was on its way to stop.
        aside = self.policy.stage is Stage.ASIDE
        record.stage = (Stage.HELD if aside else self.policy.stage).value
        record.used_bytes = self._held_bytes
        record.because = self.policy.because
        record.agents = max(self._trainings.agents, record.agents)
        state = (record.stage, record.limit_bytes, record.agents, record.saved, record.standby_pid)
        if always or state != self._written or now >= self._next_write:
            self._written = state
            self._next_write = now + _WRITE_EVERY_S
            with suppress(OSError):
                record.write()
