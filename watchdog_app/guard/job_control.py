"""
What a shell and its terminal want of a program that is held: Ctrl-C, Ctrl-Z, fg, kill.

Who stands still at the limit takes no signal. One that ends lets it out, with the reserve to end
in; one that stops lets it run for as long as it takes to stop, so that its shell has the terminal
again. Then it is held as before.
"""

from __future__ import annotations

import signal

from watchdog_app.base.linux.process import read_stat, signals
from watchdog_app.guard import messages
from watchdog_app.guard.policy import Stage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.guard.policy import Do, Policy
    from watchdog_app.guard.record import GuardRecord

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
_ENDS_MASK = sum(1 << (number - 1) for number in _ENDS)
_STOPS = (signal.SIGTSTP, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU)
_STOPS_MASK = sum(1 << (number - 1) for number in _STOPS)
_MOST = 100  # of a storm of forks only the program itself is asked


class JobControl:
    """Of one guard."""

    def __init__(self, record: GuardRecord, policy: Policy) -> None:
        self._record = record
        self._policy = policy
        self._stopped = False  # for its shell: frozen, it does not look like that

    def hear(self, now: float, pids: list[int]) -> list[Do]:
        """What is to be done while it is held, or is on its way to stop or to end."""
        policy, pid = self._policy, self._record.pid
        if policy.stage is Stage.LEAVING:
            return policy.stays(now) if _is_stopped(pid) else []
        if self._stopped and _in_foreground(pid):
            self._stopped = False  # by fg: nobody else tells why nothing happens
            messages.write(pid, messages.still_held(self._record))
        stops = False
        # A signal for the program, or for a kernel below a server, lets everybody out.
        for each in pids if len(pids) <= _MOST else [pid]:
            waiting, taken = signals(each)
            if waiting & _ENDS_MASK:
                return policy.interrupted(now)
            stops = stops or bool(taken & _STOPS_MASK)
        if policy.stage is Stage.HELD:
            return policy.stopped(now) if stops else []
        if stops:
            return []
        self._stopped = _is_stopped(pid)
        return policy.stands_aside()

    def goes_on(self) -> str:
        """What is to be said besides when it is let go on; empty where there is nothing."""
        stopped, self._stopped = self._stopped, False
        return " It was stopped, as with Ctrl-Z: fg lets it run." if stopped else ""


def _is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it, as Ctrl-Z does."""
    stat = read_stat(pid)
    return stat is not None and stat.state == "T"


def _in_foreground(pid: int) -> bool:
    """Whether its terminal listens to it: not after Ctrl-Z, and again after fg."""
    stat = read_stat(pid)
    return stat is not None and stat.pgrp == stat.tty_pgrp
