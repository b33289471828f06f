"""How wait(2) says that a process has ended. Pure."""

from __future__ import annotations

import signal

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
