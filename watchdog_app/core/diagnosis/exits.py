"""Exit statuses as signals and words, and which ends are worth telling."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.exits import Cause, CauseKind, ExitFacts

_NOTED_S = 10.0  # of what ran for less than that a good end is not even noted ...
_NEWS_S = 60.0  # ... and a failure sooner than that is what its user looks at anyway

# What PyTorch, concurrent.futures and joblib say when one is gone.
_LOST_WORKER = re.compile(
    r"DataLoader worker .*(?:killed by signal: Killed|exited unexpectedly)"
    r"|BrokenProcessPool|TerminatedWorkerError"
)


def lost_worker(error: str) -> bool:
    """Whether an uncaught exception ("Class: message") says that a worker process was killed."""
    return _LOST_WORKER.search(error) is not None


def should_notify(cause: Cause, agent: AgentState | None) -> bool:
    """
    Whether a notification of this exit is wanted.

    People end their own programs all day. Without a sign of memory only the end of a running
    training is news. It is none after Ctrl-C, a plain kill or an end of its own.

    Args:
        cause: of the exit.
        agent: the last state of its agent; None without one.
    """
    if cause.spec.notify is False:
        return False  # its guard has told of that itself, as it did it
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
    What an end is for the journal.

    Args:
        seen: it was in a look.
        kernel: it was a Jupyter kernel.
        age_s: how long it ran; 0 where that is not known.
        cared_for: an agent in it had not said that its training is over.

    Returns:
        True: a death. False: an end that is noted for who asks. None: not worth a line.
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
    """The kernel's count of its kills for memory, from when a process was last seen to its end."""

    of_group: bool  # in its memory group; False: on the machine
    before: int
    after: int
    elsewhere: int  # kills whose victims are known to be others

    @property
    def excludes(self) -> bool:
        """Whether the kernel has not killed this process."""
        return self.after - self.before <= self.elsewhere


def kill_count(facts: ExitFacts) -> KillCount | None:
    """The count of its group, else that of the machine; None: neither could be read."""
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
    """The signal that ended it; None: none did, or it is not known."""
    if wait_status is None:
        return None
    return wait_status & 0x7F or None


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 35` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def crashed(wait_status: int | None) -> bool:
    """Whether this is the status of a crash."""
    return signal_of(wait_status) in CRASHES
