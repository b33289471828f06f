"""Exit statuses as signals and text, and which exits to report."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.exits import Cause, CauseKind, ExitFacts

_NOTED_S = 10.0  # a normal exit after a shorter run is not even recorded
# a failure after a shorter run needs no notification: its user still watches the program
_NEWS_S = 60.0

# Messages of PyTorch, concurrent.futures and joblib about a lost worker.
_LOST_WORKER = re.compile(
    r"DataLoader worker .*(?:killed by signal: Killed|exited unexpectedly)"
    r"|BrokenProcessPool|TerminatedWorkerError"
)


def lost_worker(error: str) -> bool:
    """Whether an uncaught exception ("Class: message") says that a worker process was killed."""
    return _LOST_WORKER.search(error) is not None


def should_notify(cause: Cause, agent: AgentState | None) -> bool:
    """
    Whether this exit deserves a notification.

    People end their own programs all day. Without a sign of a memory problem, only the end of a
    running training is news. It is not news after Ctrl-C, a plain kill or a normal exit.

    Args:
        cause: cause of the exit.
        agent: the last state of its agent; None without an agent.
    """
    if cause.spec.notify is False:
        return False  # the guard has already reported what it did
    if cause.news or cause.spec.notify:
        return True
    return (
        agent is not None
        and agent.training
        and not cause.spec.by_itself
        and not any(name in cause.text for name in ("SIGINT", "SIGTERM", "SIGHUP"))
    )


def journal_level(
    facts: ExitFacts, cause: Cause, *, seen: bool, kernel: bool, age_s: float, cared_for: bool
) -> bool | None:
    """
    Return how the journal records an exit.

    Args:
        facts: facts about the exit.
        cause: cause of the exit.
        seen: whether a sample contained the process.
        kernel: whether it was a Jupyter kernel.
        age_s: how long it ran; 0 if unknown.
        cared_for: whether it had an agent that had not reported the end of its training.

    Returns:
        True: a death. False: an exit that is recorded for later questions. None: not recorded.
    """
    if (cared_for and not cause.spec.by_itself) or cause.news or cause.spec.notify is not None:
        return True
    if not seen:
        return None
    failed = crashed(facts.wait_status) or cause.kind in (CauseKind.FAILED, CauseKind.KILLED)
    if failed and (kernel or age_s >= _NEWS_S):
        return True
    odd = cause.kind is not CauseKind.ENDED
    return False if odd or kernel or age_s >= _NOTED_S else None


class KillCount(NamedTuple):
    """The kernel's count of kills for memory, from a process's last sample to its end."""

    of_group: bool  # count of its memory group; False: count of the machine
    before: int
    after: int
    elsewhere: int  # kills whose victims are known to be other processes

    @property
    def excludes(self) -> bool:
        """Whether the count shows that the kernel did not kill this process."""
        return self.after - self.before <= self.elsewhere


def kill_count(facts: ExitFacts) -> KillCount | None:
    """Return the count of the group, otherwise of the machine. None: neither could be read."""
    for of_group, before, after, elsewhere in (
        (True, facts.group_kills_before, facts.group_kills_after, facts.group_kills_elsewhere),
        (False, facts.host_kills_before, facts.host_kills_after, facts.host_kills_elsewhere),
    ):
        if before is not None and after is not None:
            return KillCount(of_group, before, after, elsewhere)
    return None


CRASHES = frozenset(
    number
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
    if (number := getattr(signal, name, None)) is not None
)


def signal_of(wait_status: int | None) -> int | None:
    """Return the signal that ended the process. None: no signal, or unknown."""
    if wait_status is None:
        return None
    return wait_status & 0x7F or None


def signal_name(number: int) -> str:
    """Return `SIGKILL`, or `signal 35` for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def crashed(wait_status: int | None) -> bool:
    """Whether this is the status of a crash."""
    return signal_of(wait_status) in CRASHES
