"""A row of the table of device faults as a finding."""

from __future__ import annotations

from watchdog_app.core.diagnosis import gpu_faults
from watchdog_app.core.model.decisions import Stage
from watchdog_app.doctor.finding import Finding, Severity

SEVERITIES = {
    Stage.WATCH: Severity.INFO,
    Stage.WARN: Severity.WARNING,
    Stage.SAVE: Severity.ERROR,
}


def of_fault(  # noqa: PLR0917 - the fields of a finding, in its order
    id_: str,
    fault: gpu_faults.GpuFault,
    name: str,
    index: object,
    commands: tuple[str, ...] = (),
    details: tuple[str, ...] = (),
) -> Finding:
    """What a fault of the card with this name and index means."""
    return Finding(
        id_,
        SEVERITIES[fault.stage],
        f"{name} {fault.title}: {fault.text}.",
        fault.consequence,
        fault.remedy(index),
        commands,
        details,
    )
