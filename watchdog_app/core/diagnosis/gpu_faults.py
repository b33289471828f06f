"""
The table of GPU and driver faults: severity, text and remedy.

Notifications, `watchdog explain`, status, doctor, tray and top take their text from here. They read
it directly, or from `gpus[].verdict` and the incident in the status object.

Source of the Xid codes: NVIDIA, "GPU Debug Guidelines" and the catalogue of Xid errors
(docs.nvidia.com/deploy/xid-errors), read in November 2026. A code outside the table is shown as a
number, without a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.decisions import Contributor, Stage
from watchdog_app.core.model.hardware import Gpu, GpuState, gpu_label
from watchdog_app.core.model.resource import ResourceKey, ResourceKind


class FaultKind(StrEnum):
    """Kind of a fault."""

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
    UPDATED = "updated"  # the driver was updated under the running system
    # Slowdowns, which `throttling` detects.
    HEAT = "heat"
    POWER_BRAKE = "power_brake"


# Remedies, gentlest first. For several faults the strongest remedy is shown.
_NOTHING = "Nothing has to be done."
_CATALOGUE = "Look it up in NVIDIA's catalogue of Xid errors; `sudo dmesg` has the whole line."
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
_OTHERS = ("AMD ", "Intel ")  # names of GPUs that nvidia-smi does not know
_REMEDIES = (_CATALOGUE, _NOTHING, _PROGRAM, _RESET, _MACHINE)
_HANGS = (
    "Look at `sudo dmesg | grep -iE 'nvrm|amdgpu|i915|xe '`. If the trainings on it hang, end them "
    "and start the machine again."
)


@dataclass(frozen=True, slots=True)
class GpuFault:
    """One row of the table: the meaning of a fault."""

    trouble: FaultKind
    stage: Stage  # WATCH: for information; SAVE: work is lost or has stopped
    device_works: bool  # False: the GPU or the driver is out of order
    restart: bool  # whether affected programs must be restarted
    title: str  # "is lost": follows the name of the GPU
    text: str  # description: a clause without a period
    help: str  # remedy: a sentence; {reset} stands for the command that resets the GPU
    codes: tuple[int, ...] = ()  # Xid codes
    kind: ResourceKind = ResourceKind.GPU_HEALTH  # kind of the incident's resource
    lasting: bool = False  # True: a state whose end is reported; False: an event

    @property
    def work_lost(self) -> bool:
        """Whether all data on the GPU is lost."""
        return self.restart and not self.device_works

    @property
    def card_lost(self) -> bool:
        """Whether the GPU itself is lost until somebody repairs it."""
        return self.lasting and self.work_lost

    @property
    def consequence(self) -> str:
        """The consequence for the programs on the GPU."""
        if self.work_lost:
            return "What programs held on it is lost: they have to be started again."
        if not self.device_works:
            return "What is on it may hang."
        if self.restart:
            return "The program that it hit has to be started again; the card itself works."
        return "Programs on it continue."

    def remedy(self, index: object, name: str = "") -> str:
        """Return the remedy. `index` and `name` are those of the GPU."""
        if name.startswith(_OTHERS):
            return self.help.replace(", with: `{reset}`", "")
        return self.help.replace("{reset}", reset_command(index)).replace("{index}", str(index))


def reset_command(index: object) -> str:
    """Return the command that resets a GPU."""
    # A reset needs a GPU that no process holds open, so stop the daemon's reader as well.
    return f"watchdog stop; sudo nvidia-smi --gpu-reset -i {index}; watchdog start"


_INFO, _WARNING, _CRITICAL = Stage.WATCH, Stage.WARN, Stage.SAVE
_WORKS, _BROKEN, _RESTART, _NO_RESTART = True, False, True, False


_LOWER = "sudo nvidia-smi -i {index} -pl WATTS"
_ROWS = (
    GpuFault(FaultKind.LOST, _CRITICAL, _BROKEN, _RESTART, "is lost",
             "it has fallen off the bus: the driver cannot reach it any more", _MACHINE,
             lasting=True),
    GpuFault(FaultKind.NEEDS_RESET, _CRITICAL, _BROKEN, _RESTART, "needs a reset",
             "it does not work until it is reset", _RESET, lasting=True),
    GpuFault(FaultKind.SILENT, _WARNING, _BROKEN, _NO_RESTART, "does not answer",
             "its driver does not answer; what is on it may hang", _HANGS, lasting=True),
    GpuFault(FaultKind.UNREADABLE, _INFO, _WORKS, _NO_RESTART, "cannot be read",
             "its driver answers with errors",
             "See whether the vendor's own tool can read it (nvidia-smi, amd-smi, xpu-smi); else "
             "start the machine again."),
    GpuFault(FaultKind.DRIVER, _WARNING, _BROKEN, _NO_RESTART, "has failed",
             "it answers about none of the cards; what is on them may hang",
             _HANGS.replace("trainings on it", "trainings"), lasting=True),
    GpuFault(FaultKind.UPDATED, _WARNING, _WORKS, _NO_RESTART,
             "was updated under the running system",
             "it was updated under the running system", "Restart the machine.", lasting=True),
    GpuFault(FaultKind.ECC, _WARNING, _WORKS, _NO_RESTART, "has memory errors",
             "memory errors that could not be corrected",
             f"Values on the card may be damaged: go back to a rescue from before. {_RESET}"),
    GpuFault(FaultKind.REMAP_FAILED, _WARNING, _WORKS, _NO_RESTART, "has faulty memory",
             "a faulty row of its memory could not be replaced",
             "Its memory wears out: have the card tested and replaced. "
             "Until then check results that come from it."),
    GpuFault(FaultKind.REMAP_PENDING, _INFO, _WORKS, _NO_RESTART, "wants a reset some time",
             "a faulty row of its memory is replaced at the next reset",
             "When its trainings have ended: `{reset}`."),
    GpuFault(FaultKind.HEAT, _WARNING, _WORKS, _NO_RESTART, "is clocked down for heat",
             "it has been clocked down for heat most of the last 2 min",
             f"Look at its fans and the air in front of them, or lower its power limit ({_LOWER}). "
             "The training on it is slower than it could be.",
             kind=ResourceKind.THROTTLING),
    GpuFault(FaultKind.POWER_BRAKE, _WARNING, _WORKS, _NO_RESTART, "is slowed by the power supply",
             "an external power brake slows it: the power supply asks for it",
             "Check the power supply and the card's power cables: a supply at its limit is what "
             "switches a machine off in the middle of a training.",
             kind=ResourceKind.THROTTLING),
)  # fmt: skip
FAULTS = {row.trouble: row for row in _ROWS}
STATES = {state: row for state in GpuState for row in _ROWS if row.trouble.value == state.value}


# Recovery actions of the driver, in the order of NVML's field 230, from 1.
RECOVERIES = {
    name: GpuFault(FaultKind.RECOVERY, _WARNING, _WORKS, _NO_RESTART, "asks for a recovery",
                   f"the driver asks for a recovery: {name.replace('_', ' ')}", remedy)
    for name, remedy in (
        ("reset", _RESET),
        ("reboot", "End the programs on this card, then start the machine again."),
        ("drain", "Let the trainings on it end, and start no new ones there."),
        ("drain_and_reset", "Let the trainings on it end, then reset it, with: `{reset}`."),
    )
}  # fmt: skip


_REPORTS = "reports a fault"


def _xid_error(text: str, remedy: str, *codes: int) -> GpuFault:
    """Build the row of a fault that ends programs. If only a reset helps, the GPU stops as well."""
    works = remedy == _PROGRAM
    stage = _WARNING if works else _CRITICAL
    return GpuFault(FaultKind.XID, stage, works, _RESTART, _REPORTS, text, remedy, codes)


def _xid_info(text: str, remedy: str, *codes: int) -> GpuFault:
    """Build the row of a fault that other figures show, or that needs no action."""
    return GpuFault(FaultKind.XID, _INFO, _WORKS, _NO_RESTART, _REPORTS, text, remedy, codes)


XIDS = (
    _xid_error("the card stopped working on a program", _PROGRAM, 8),
    _xid_error("graphics engine exception, often a program's faulty kernel", _PROGRAM, 13),
    _xid_error("memory page fault, an illegal address in a program", _PROGRAM, 31),
    _xid_error("invalid or damaged commands from a program", _PROGRAM, 32),
    _xid_error("a program's work was stopped by a fault of its own", _PROGRAM, 43),
    _xid_info("cleaned up after another fault, or an ended program", _PROGRAM, 45),
    _xid_error("double-bit memory error that could not be corrected", _RESET, 48),
    _xid_error("internal micro-controller halted", _RESET, 61, 62),
    _xid_info("a faulty row of memory is replaced at the next reset", _RESET, 63),
    _xid_error("a faulty row of memory could not be replaced", _RESET, 64),
    _xid_error("video processor exception", _PROGRAM, 68),
    _xid_error("graphics engine class error", _PROGRAM, 69),
    _xid_error("NVLink error", _RESET, 74),
    _xid_error("the card has fallen off the bus", _MACHINE, 79),
    _xid_info("many single-bit memory errors, all corrected", _NOTHING, 92),
    _xid_error("memory error, contained in one program", _PROGRAM, 94),
    _xid_error("memory error that may have reached every program on the card", _RESET, 95),
    _xid_error("a program's work did not give way to others in time", _RESET, 109),
    _xid_error("the card's own processor (GSP) does not answer", _RESET, 119),
    _xid_error("the card's own processor (GSP) failed", _RESET, 120),
    _xid_error("memory error that was not corrected", _RESET, 140),
    _xid_info("the driver asks for a recovery action", _NOTHING, 154),
)
UNKNOWN_XID = _xid_info("not in our table", _CATALOGUE)
TITLES: dict[str, str] = {
    row.trouble: row.title for row in (*_ROWS, *RECOVERIES.values(), UNKNOWN_XID)
}
_MOST_CODES = 4  # in one text
_BY_CODE = {code: row for row in XIDS for code in row.codes}


def xid_fault(code: int) -> GpuFault:
    """Return the row of an Xid; `UNKNOWN_XID` if the table lacks it."""
    return _BY_CODE.get(code, UNKNOWN_XID)


def xid_severity(code: int) -> int:
    """Return a rank of the remedy that an Xid needs; higher is worse."""
    return _REMEDIES.index(xid_fault(code).help)


def worst_xid_fault(codes: Iterable[int]) -> GpuFault:
    """Return the row of the worst of several Xids."""
    return xid_fault(max(codes, key=xid_severity))


def describe_xids(codes: Iterable[int]) -> str:
    """
    Return `Xid 79, the card has fallen off the bus`; of an unknown code just the number.

    The worst Xid is the first. Among equals, the first is the cause, others are consequences.
    """
    worst = sorted(dict.fromkeys(codes), key=xid_severity, reverse=True)[:_MOST_CODES]
    return "; ".join(
        f"Xid {code}, {_BY_CODE[code].text}" if code in _BY_CODE else f"Xid {code}"
        for code in worst
    )


def incident_title(device_works: bool) -> str:
    """Return the title of an incident, which follows the name of the GPU."""
    return _REPORTS if device_works else "is out of order"


@dataclass(frozen=True, slots=True)
class Finding:
    """A current fault of a GPU, its driver, its power supply or its cooling."""

    fault: GpuFault
    key: ResourceKey  # findings with the same key form one incident
    label: str  # "GPU 0 (NVIDIA H100)"
    text: str  # description: a clause without a period
    remedy: str  # a sentence
    tasks: tuple[Contributor, ...] = ()  # affected tasks


DRIVER = ResourceKey(ResourceKind.GPU_HEALTH, "driver")


def build_finding(
    fault: GpuFault,
    where: Gpu | None,
    affected: Iterable[Contributor],
    text: str = "",
    remedy: str = "",
) -> Finding:
    """
    Build a finding from a row of the table.

    Args:
        fault: the row.
        where: the GPU; None: the graphics driver.
        affected: affected tasks; a task may occur several times.
        text: replaces the text of the row.
        remedy: replaces the remedy of the row.
    """
    key, label, index, name = DRIVER, "the graphics driver", "INDEX", ""
    if where is not None:
        key, label = ResourceKey(fault.kind, where.id), gpu_label(where)
        index, name = str(where.index), where.name
    return Finding(
        fault,
        key,
        label,
        text or fault.text,
        remedy or fault.remedy(index, name),
        tuple(dict.fromkeys(affected)),
    )
