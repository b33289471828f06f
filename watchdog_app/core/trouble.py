"""What can be wrong with a card, its driver, or what feeds and cools it: the records of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from watchdog_app.base.text.plain import plain
from watchdog_app.core.hardware import Gpu
from watchdog_app.core.outlook import CeilingKey, CeilingKind
from watchdog_app.core.records import ProcessKey


class Severity(IntEnum):
    """How much it matters."""

    INFO = 0  # good to know
    WARNING = 1
    CRITICAL = 2  # work is lost or stands still


class Trouble(StrEnum):
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
    # Something brakes; `core.slowdowns` finds these.
    HEAT = "heat"
    POWER_BRAKE = "power_brake"
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    POWER_CAP = "power_cap"
    CPU_HEAT = "cpu_heat"
    UNPLUGGED = "unplugged"


class Holder(NamedTuple):
    """A task that was on a card."""

    key: ProcessKey
    name: str


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is wrong now."""

    trouble: Trouble
    key: CeilingKey  # conditions with one key are one incident
    label: str  # "GPU 0 (NVIDIA H100)"
    severity: Severity
    text: str  # what is the case: a clause without a point
    cure: str  # what to do: a sentence
    tasks: tuple[Holder, ...] = ()  # whom it hits
    fatal: bool = False  # these have lost what they held on the card

    @property
    def device_works(self) -> bool:
        """Whether the card goes on: a program's own fault (Xid 31) does not stop it."""
        if self.trouble is Trouble.XID:
            return self.severity < Severity.CRITICAL
        return self.trouble not in _STOPPED

    @property
    def work_lost(self) -> bool:
        """Whether what was held on the card is gone."""
        return self.fatal and not self.device_works


_STOPPED = frozenset((Trouble.LOST, Trouble.NEEDS_RESET, Trouble.SILENT, Trouble.DRIVER))


def gpu_label(gpu: Gpu) -> str:
    """`GPU 0 (NVIDIA H100)`: as a person tells the cards apart."""
    if gpu.parent_uuid is None:
        return f"GPU {gpu.index} ({plain(gpu.name, 40)})"
    return f"{gpu_place(gpu)} ({plain(gpu.name, 40)}, MIG)"


def gpu_place(gpu: Gpu) -> str:
    """`GPU 0`; of a MIG instance `GPU 0 part 2`."""
    if gpu.parent_uuid is None:
        return f"GPU {gpu.index}"
    return f"GPU {gpu.index} part" + ("" if gpu.part is None else f" {gpu.part}")


def condition(  # noqa: PLR0917 - the fields of a record, in its order
    trouble: Trouble,
    gpu: Gpu,
    severity: Severity,
    text: str,
    cure: str,
    hit: tuple[Holder, ...] = (),
    fatal: bool = False,
) -> Condition:
    """What is wrong with one card."""
    key = CeilingKey(CeilingKind.GPU_HEALTH, gpu.uuid)
    return Condition(trouble, key, gpu_label(gpu), severity, text, cure, hit, fatal)
