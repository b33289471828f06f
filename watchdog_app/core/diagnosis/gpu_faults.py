"""
The one table of the faults of a card or its driver: how bad each is, its words, and what helps.

Notifications, `watchdog explain`, status, doctor, tray and top take their words from here, directly
or from `gpus[].verdict` and the incident in the status object.

Source of the Xid codes: NVIDIA, "GPU Debug Guidelines" and the catalogue of Xid errors
(docs.nvidia.com/deploy/xid-errors), read in November 2026. A code that is not
listed is shown by its number alone, never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from watchdog_app.core.model.hardware import GpuState


class Severity(IntEnum):
    """How much it matters."""

    INFO = 0  # good to know
    WARNING = 1
    CRITICAL = 2  # work is lost or stands still


class FaultKind(StrEnum):
    """What is wrong."""

    LOST = "lost"
    NEEDS_RESET = "needs_reset"
    XID = "xid"
    RECOVERY = "recovery"
    ECC = "ecc"
    REMAP_FAILED = "remap_failed"
    REMAP_PENDING = "remap_pending"
    SILENT = "silent"
    UNREADABLE = "unreadable"
    DRIVER = "driver"
    UPDATED = "updated"  # the driver, under the running system
    # Something brakes; `throttling` finds these.
    HEAT = "heat"
    POWER_BRAKE = "power_brake"
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    CPU_HEAT = "cpu_heat"
    UNPLUGGED = "unplugged"


TITLES: dict[str, str] = {  # after "GPU 0"
    FaultKind.LOST: "is lost",
    FaultKind.NEEDS_RESET: "needs a reset",
    FaultKind.XID: "reports a fault",
    FaultKind.RECOVERY: "asks for a recovery",
    FaultKind.ECC: "has memory errors",
    FaultKind.REMAP_FAILED: "has faulty memory",
    FaultKind.REMAP_PENDING: "wants a reset some time",
    FaultKind.SILENT: "does not answer",
    FaultKind.UNREADABLE: "cannot be read",
    FaultKind.DRIVER: "has failed",
    FaultKind.UPDATED: "was updated under the running system",
    FaultKind.HEAT: "is clocked down for heat",
    FaultKind.POWER_BRAKE: "is held back by the power supply",
    FaultKind.HARDWARE_SLOWDOWN: "is slowed down by its power supply",
    FaultKind.CPU_HEAT: "is clocked down for heat",
}


# Remedies, gentlest first; of several faults the strongest remedy is named.
_NOTHING = "Nothing has to be done."
_LOOK_UP = "Look it up in NVIDIA's catalogue of Xid errors; `sudo dmesg` has the whole line."
_PROGRAM = (
    "Start the program again. If the same fault comes back, look for an illegal "
    "memory access (compute-sanitizer), then try another card."
)
_RESET = (
    "End the programs on this card, this daemon included, and reset it, with: "
    "`{reset}`. If that fails, start the machine again."
)
_MACHINE = (
    "Start the machine again. If it happens again, check the card's seating, its "
    "power cables, the power supply and its cooling."
)
_REMEDIES = (_LOOK_UP, _NOTHING, _PROGRAM, _RESET, _MACHINE)
_HANGS = (
    "Look at `sudo dmesg | grep -i nvrm`. If the trainings on it stand still, end them and "
    "start the machine again."
)


@dataclass(frozen=True, slots=True)
class GpuFault:
    """One row: what a fault means."""

    trouble: FaultKind
    text: str  # what is the case: a clause without a point
    help: str  # what to do: a sentence; {reset} stands for the command that resets the card
    severity: Severity = Severity.WARNING
    device_works: bool = True  # False: the card or the driver is out of order
    restart: bool = False  # programs that it hit have to be started again
    codes: tuple[int, ...] = ()  # Xid

    @property
    def title(self) -> str:
        """`is lost`: after the name of the card."""
        return TITLES[self.trouble]

    @property
    def consequence(self) -> str:
        """What it means for the programs on the card."""
        if not self.device_works and self.restart:
            return "What programs held on it is lost: they have to be started again."
        if not self.device_works:
            return "What is on it may stand still."
        if self.restart:
            return "The program that it hit has to be started again; the card itself goes on."
        return "Programs on it go on."

    def remedy(self, index: object) -> str:
        """What to do; `index` is that of the card."""
        return self.help.replace("{reset}", reset(index))


def reset(index: object) -> str:
    """The command that resets a card."""
    # Nobody may hold it open then, our own reader included.
    return f"watchdog stop; sudo nvidia-smi --gpu-reset -i {index}; watchdog start"


def _row(  # noqa: PLR0917 - the columns of the table
    trouble: FaultKind, severity: Severity, works: bool, restart: bool, text: str, remedy: str
) -> GpuFault:
    return GpuFault(trouble, text, remedy, severity, works, restart)


_INFO, _WARNING, _CRITICAL = Severity
_WORKS, _STOPPED, _ENDS, _GOES_ON = True, False, True, False
FAULTS = {
    row.trouble: row
    for row in (
        _row(FaultKind.LOST, _CRITICAL, _STOPPED, _ENDS,
             "it has fallen off the bus: the driver cannot reach it any more", _MACHINE),
        _row(FaultKind.NEEDS_RESET, _CRITICAL, _STOPPED, _ENDS,
             "it does not work until it is reset", _RESET),
        _row(FaultKind.SILENT, _WARNING, _STOPPED, _GOES_ON,
             "its driver does not answer; what is on it may stand still", _HANGS),
        _row(FaultKind.UNREADABLE, _INFO, _WORKS, _GOES_ON, "its driver answers with errors",
             "See whether nvidia-smi can read it; else start the machine again."),
        _row(FaultKind.DRIVER, _WARNING, _STOPPED, _GOES_ON,
             "it answers about none of the cards; what is on them may stand still",
             _HANGS.replace("trainings on it", "trainings")),
        _row(FaultKind.UPDATED, _WARNING, _WORKS, _GOES_ON,
             "it was updated under the running system", "Restart the machine."),
        _row(FaultKind.ECC, _WARNING, _WORKS, _GOES_ON,
             "memory errors that could not be corrected",
             f"Values on the card may be damaged: go back to a rescue from before. {_RESET}"),
        _row(FaultKind.REMAP_FAILED, _WARNING, _WORKS, _GOES_ON,
             "a faulty row of its memory could not be replaced",
             "Its memory wears out: have the card tested and replaced. "
             "Until then check results that come from it."),
        _row(FaultKind.REMAP_PENDING, _INFO, _WORKS, _GOES_ON,
             "a faulty row of its memory is replaced at the next reset",
             "When its trainings have ended: `{reset}`."),
    )
}  # fmt: skip
STATES = {
    GpuState.LOST: FAULTS[FaultKind.LOST],
    GpuState.NEEDS_RESET: FAULTS[FaultKind.NEEDS_RESET],
    GpuState.SILENT: FAULTS[FaultKind.SILENT],
    GpuState.UNREADABLE: FAULTS[FaultKind.UNREADABLE],
}


# What the driver asks for, in the order of NVML's field 230, from 1.
RECOVERIES = {
    name: _row(FaultKind.RECOVERY, _WARNING, _WORKS, _GOES_ON,
               f"the driver asks for a recovery: {name.replace('_', ' ')}", remedy)
    for name, remedy in (
        ("reset", _RESET),
        ("reboot", "End the programs on this card, then start the machine again."),
        ("drain", "Let the trainings on it end, and start no new ones there."),
        ("drain_and_reset", "Let the trainings on it end, then reset it, with: `{reset}`."),
    )
}  # fmt: skip


def _xid(text: str, remedy: str, *codes: int) -> GpuFault:
    """A fault that ends programs: those that only a reset mends stop the card as well."""
    works = remedy == _PROGRAM
    severity = _WARNING if works else _CRITICAL
    return GpuFault(FaultKind.XID, text, remedy, severity, works, True, codes)


def _word(text: str, remedy: str, code: int) -> GpuFault:
    """Ends nothing: other figures show it, or it needs no action."""
    return GpuFault(FaultKind.XID, text, remedy, _INFO, codes=(code,))


XIDS = (
    _xid("the card stopped working on a program", _PROGRAM, 8),
    _xid("graphics engine exception, often a program's faulty kernel", _PROGRAM, 13),
    _xid("memory page fault, an illegal address in a program", _PROGRAM, 31),
    _xid("invalid or damaged commands from a program", _PROGRAM, 32),
    _xid("a program's work was stopped by a fault of its own", _PROGRAM, 43),
    _word("cleaned up after another fault, or an ended program", _PROGRAM, 45),
    _xid("double-bit memory error that could not be corrected", _RESET, 48),
    _xid("internal micro-controller halted", _RESET, 61, 62),
    _word("a faulty row of memory is replaced at the next reset", _RESET, 63),
    _xid("a faulty row of memory could not be replaced", _RESET, 64),
    _xid("video processor exception", _PROGRAM, 68),
    _xid("graphics engine class error", _PROGRAM, 69),
    _xid("NVLink error", _RESET, 74),
    _xid("the card has fallen off the bus", _MACHINE, 79),
    _word("many single-bit memory errors, all corrected", _NOTHING, 92),
    _xid("memory error, contained in one program", _PROGRAM, 94),
    _xid("memory error that may have reached every program on the card", _RESET, 95),
    _xid("a program's work did not give way to others in time", _RESET, 109),
    _xid("the card's own processor (GSP) does not answer", _RESET, 119),
    _xid("the card's own processor (GSP) failed", _RESET, 120),
    _xid("memory error that was not corrected", _RESET, 140),
    _word("the driver asks for a recovery action", _NOTHING, 154),
)
UNKNOWN_XID = GpuFault(FaultKind.XID, "not in our table", _LOOK_UP, _INFO)
_BY_CODE = {code: row for row in XIDS for code in row.codes}


def of_xid(code: int) -> GpuFault:
    """The row of an Xid; `UNKNOWN_XID` where there is none."""
    return _BY_CODE.get(code, UNKNOWN_XID)


def gravity(code: int) -> int:
    """How much an Xid asks for."""
    return _REMEDIES.index(of_xid(code).help)


def worst(codes: Iterable[int]) -> GpuFault:
    """Of several Xids the row that asks for most."""
    return of_xid(max(codes, key=gravity))


def describe(code: int) -> str:
    """`Xid 79, the card has fallen off the bus`; the bare number of one that is not known."""
    found = of_xid(code)
    return f"Xid {code}" if found is UNKNOWN_XID else f"Xid {code}, {found.text}"


def incident_title(device_works: bool) -> str:
    """What an incident says of its card."""
    return "reports a fault" if device_works else "is out of order"
