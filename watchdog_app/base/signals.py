"""Signals that end a program, and threads of ours that must not get a program's signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

# Not SIGINT: Python handles it. Not the signals of faults: they leave no consistent state.
_ENDING = ("TERM", "HUP", "USR1", "USR2", "QUIT", "ALRM", "XCPU", "PWR")

_GRACE = "WATCHDOG_AGENT_GRACE_S"
_LONGEST_GRACE_S = 3600.0


def parse(names: Iterable[str]) -> tuple[signal.Signals, ...]:
    """
    The signals of these names.

    Args:
        names: such as "USR1" or "SIGUSR1".

    Raises:
        ValueError: a name is not of a signal that a training can be saved at.
    """
    found = []
    for name in names:
        short = str(name).upper().removeprefix("SIG")
        if short not in _ENDING or not hasattr(signal, f"SIG{short}"):
            raise ValueError(f"{name!r} is not one of these signals: {', '.join(_ENDING)}")
        found.append(signal.Signals[f"SIG{short}"])
    return tuple(found)


def grace_s(otherwise: float) -> float:
    """The setting `agent.grace_s`, seconds, if the environment has it."""
    try:
        wanted = float(os.environ[_GRACE])
    except (KeyError, ValueError):
        return otherwise
    return min(max(wanted, 0.0), _LONGEST_GRACE_S)


def block_in_thread() -> None:
    """
    Let no signal be delivered to the calling thread, which must be one of ours.

    A program may block a signal in all of its own threads; then it must not act in ours.
    """
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
