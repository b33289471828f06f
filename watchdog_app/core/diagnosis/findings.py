"""What can be wrong with a card, its driver, or what feeds and cools it: the records of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from watchdog_app.core.diagnosis.gpu_faults import FaultKind, GpuFault, Severity
from watchdog_app.core.model.hardware import Gpu, gpu_label
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import ResourceKey, ResourceKind


class TaskRef(NamedTuple):
    """A task that was on a card."""

    key: ProcessKey
    name: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong now."""

    trouble: FaultKind
    key: ResourceKey  # conditions with one key are one incident
    label: str  # "GPU 0 (NVIDIA H100)"
    severity: Severity
    text: str  # what is the case: a clause without a point
    remedy: str  # what to do: a sentence
    tasks: tuple[TaskRef, ...] = ()  # whom it hits
    restart: bool = False  # these have to be started again
    device_works: bool = True

    @property
    def work_lost(self) -> bool:
        """Whether what was held on the card is gone."""
        return self.restart and not self.device_works


def finding(
    fault: GpuFault, gpu: Gpu | None, hit: tuple[TaskRef, ...], text: str = "", remedy: str = ""
) -> Finding:
    """
    A fault of one card or of the driver; `text` and `remedy` replace those of its row.

    Args:
        fault: the row of the fault table.
        gpu: the card; None for the driver.
        hit: tasks that it affects.
        text: replaces the text of the row.
        remedy: replaces the remedy of the row.
    """
    key = ResourceKey(ResourceKind.GPU_HEALTH, "driver" if gpu is None else gpu.id)
    return Finding(
        fault.trouble,
        key,
        "the graphics driver" if gpu is None else gpu_label(gpu),
        fault.severity,
        text or fault.text,
        remedy or fault.remedy("INDEX" if gpu is None else gpu.index),
        hit,
        fault.restart,
        fault.device_works,
    )
