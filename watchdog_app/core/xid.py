"""
What the faults mean that NVIDIA's driver reports: Xid codes, and what helps.

Source: NVIDIA, "GPU Debug Guidelines" and the catalogue of Xid errors
(docs.nvidia.com/deploy/xid-errors), read in November 2026. A code that is not
listed is shown by its number alone, never guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cure(StrEnum):
    """What helps, gentlest first."""

    NOTHING = "nothing"  # word of something that needs nobody
    PROGRAM = "program"  # start the program again
    RESET = "reset"  # reset the card
    MACHINE = "machine"  # start the machine again, and look at the hardware


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one code says."""

    text: str  # after "Xid 79: "
    fatal: bool  # the program that was on the card has lost its state there
    cure: Cure


_TABLE: dict[int, Meaning] = {
    8: Meaning("the card stopped working on a program", True, Cure.PROGRAM),
    13: Meaning("graphics engine exception, often a program's faulty kernel", True, Cure.PROGRAM),
    31: Meaning("memory page fault, an illegal address in a program", True, Cure.PROGRAM),
    32: Meaning("invalid or damaged commands from a program", True, Cure.PROGRAM),
    43: Meaning("a program's work was stopped by a fault of its own", True, Cure.PROGRAM),
    45: Meaning("cleaned up after another fault, or an ended program", False, Cure.PROGRAM),
    48: Meaning("double-bit memory error that could not be corrected", True, Cure.RESET),
    61: Meaning("internal micro-controller halted", True, Cure.RESET),
    62: Meaning("internal micro-controller halted", True, Cure.RESET),
    63: Meaning("a faulty row of memory is replaced at the next reset", False, Cure.RESET),
    64: Meaning("a faulty row of memory could not be replaced", True, Cure.RESET),
    68: Meaning("video processor exception", True, Cure.PROGRAM),
    69: Meaning("graphics engine class error", True, Cure.PROGRAM),
    74: Meaning("NVLink error", True, Cure.RESET),
    79: Meaning("the card has fallen off the bus", True, Cure.MACHINE),
    92: Meaning("many single-bit memory errors, all corrected", False, Cure.NOTHING),
    94: Meaning("memory error, contained in one program", True, Cure.PROGRAM),
    95: Meaning("memory error that may have reached every program on the card", True, Cure.RESET),
    109: Meaning("a program's work did not give way to others in time", True, Cure.RESET),
    119: Meaning("the card's own processor (GSP) does not answer", True, Cure.RESET),
    120: Meaning("the card's own processor (GSP) failed", True, Cure.RESET),
    140: Meaning("memory error that was not corrected", True, Cure.RESET),
    154: Meaning("the driver asks for a recovery action", False, Cure.NOTHING),
}  # fmt: skip


def meaning(code: int) -> Meaning | None:
    """What a code says; None: it is not in the table."""
    return _TABLE.get(code)


def describe(code: int) -> str:
    """`Xid 79, the card has fallen off the bus`; the bare number of one that is not known."""
    found = _TABLE.get(code)
    return f"Xid {code}" if found is None else f"Xid {code}, {found.text}"


_RESET = (
    "End the programs on this card, this daemon included, and reset it, with: "
    "`{reset}`. If that fails, start the machine again."
)
_REMEDIES = {
    Cure.NOTHING: "Nothing has to be done.",
    Cure.PROGRAM: "Start the program again. If the same fault comes back, look for an illegal "
    "memory access (compute-sanitizer), then try another card.",
    Cure.RESET: _RESET,
    Cure.MACHINE: "Start the machine again. If it happens again, check the card's seating, its "
    "power cables, the power supply and its cooling.",
}
_RECOVERIES = {
    "reset": _RESET,
    "reboot": "End the programs on this card, then start the machine again.",
    "drain": "Let the trainings on it end, and start no new ones there.",
    "drain_and_reset": "Let the trainings on it end, then reset it, with: `{reset}`.",
}


def remedy(cure: Cure, index: int) -> str:
    """What to do, in a sentence; `index` is that of the card."""
    return _REMEDIES[cure].format(reset=reset(index))


def recovery(action: str, index: int) -> str:
    """The same for the recovery action that the driver names (NVML field 230)."""
    return _RECOVERIES.get(action, _RECOVERIES["reset"]).format(reset=reset(index))


def reset(index: int) -> str:
    """The command that resets a card."""
    # Nobody may hold it open then, our own reader included.
    return f"watchdog stop; sudo nvidia-smi --gpu-reset -i {index}; watchdog start"
