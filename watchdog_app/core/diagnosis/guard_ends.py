"""An airbag in an end: it ended the program, held it, or refused it memory. Pure."""

from __future__ import annotations

import signal

from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.diagnosis.exits import CRASHES, signal_name, signal_of
from watchdog_app.core.model.exits import Cause, CauseKind, Certainty, ExitFacts


def ended_by_it(facts: ExitFacts) -> Cause | None:
    """However it took that: a program that handles SIGTERM ends with a status of its own."""
    ended = None if facts.airbag is None else facts.airbag.ended
    return None if ended is None else Cause(CauseKind.AIRBAG, plain(ended, 300), Certainty.EXACT)


def refused(facts: ExitFacts) -> Cause | None:
    """An unread error of its own, just after its airbag refused it more memory."""
    if facts.airbag is None or not facts.airbag.refused or facts.said_bye:
        return None
    if facts.words is not None and facts.words.error is not None:
        return None  # it said itself what it was
    number = signal_of(facts.wait_status)
    if facts.wait_status in (None, 0) or number not in (None, signal.SIGABRT, signal.SIGSEGV):
        return None
    return Cause(
        CauseKind.PROGRAM_MEMORY,
        "ended by an error of its own, most likely a MemoryError: its airbag refused it further "
        f"memory at its limit of {format_bytes(facts.airbag.limit_bytes)}",
        Certainty.LIKELY,
    )


def while_held(facts: ExitFacts) -> Cause | None:
    """An end by somebody's hand while it was held: Ctrl-C, a closed terminal, a kill."""
    held = None if facts.airbag is None else facts.airbag.held
    number = signal_of(facts.wait_status)
    by_itself = facts.wait_status is not None and number is None
    if held is None or by_itself or number in CRASHES:
        return None
    how = "" if number is None else f" by {signal_name(number)}"
    if number is None and "interrupted" in held:
        how = " by a signal (Ctrl-C, a closed terminal, or a kill)"
    return Cause(CauseKind.AIRBAG, f"ended{how} {plain(held, 200)}", Certainty.EXACT)
