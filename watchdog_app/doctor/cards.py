"""The state of each card that answers: health, who may use it, what is left of its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.diagnosis.gpu_faults import (
    FAULTS,
    RECOVERIES,
    FaultKind,
    of_xid,
    reset,
    worst,
)
from watchdog_app.doctor import daemon_word, driver_files, gpu
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine
from watchdog_app.doctor.gpu_fault import of_fault
from watchdog_app.machine.gpu import events, pci

_EXCLUSIVE_PROCESS, _PROHIBITED = 3, 2  # nvmlComputeMode_t; 1 is an old form of 3
_LITTLE_LEFT = 0.15


def check(facts: Facts) -> Iterator[Finding]:
    """Every card, the worst of each."""
    yield from _xids(facts)
    if not facts.expects_gpu or not driver_files.libraries(facts.machine, "libnvidia-ml.so.1"):
        return
    known = list(daemon_word.cards(facts))
    yield from (finding for _, finding in known)
    told = {gpu_id.partition("/")[0] for gpu_id, _ in known}
    for card in facts.driver().usable:
        found = [*_health(card), *_sharing(card, facts)]
        yield from found
        if not found and pci.short_address(card.get("bus_id")) not in told:
            yield fine("driver.card", f"{gpu.label(card)} is healthy and may be used.")


def _health(card: dict[str, Any]) -> Iterator[Finding]:
    name, index = gpu.label(card), card.get("index")
    recovery = RECOVERIES.get(str(card.get("recovery_action")))
    if recovery is not None:
        yield of_fault("driver.recovery", recovery, name, index)
    if card.get("remap_failed"):
        commands = (f"nvidia-smi -q -i {index} -d ROW_REMAPPER,ECC", "sudo nvidia-bug-report.sh")
        row = FAULTS[FaultKind.REMAP_FAILED]
        yield of_fault("driver.remap-failed", row, name, index, commands)
    elif card.get("remap_pending") or card.get("retired_pending"):
        row = FAULTS[FaultKind.REMAP_PENDING]
        yield of_fault("driver.remap-pending", row, name, index, (reset(index),))
    if card.get("ecc_uncorrected"):
        commands = (f"nvidia-smi -q -i {index} -d ECC", reset(index))
        more = (f"{card['ecc_uncorrected']} since the driver was loaded",)
        yield of_fault("driver.ecc", FAULTS[FaultKind.ECC], name, index, commands, more)
    width, most = card.get("pcie_width"), card.get("pcie_width_max")
    if width and most and width < most:
        yield Finding(
            "driver.pcie-width",
            Severity.INFO,
            f"{name} uses {width} of its {most} PCIe lanes.",
            "Some slots have no more; where yours has, a card that is badly seated or a riser "
            "cable loses lanes first and the whole card later.",
            "Compare with the slot; seat the card again.",
            (f"nvidia-smi -q -i {index} | grep -A 12 'GPU Link Info'",),
        )


def _sharing(card: dict[str, Any], facts: Facts) -> Iterator[Finding]:
    name, index = gpu.label(card), card.get("index")
    if card.get("compute_mode") == _PROHIBITED:
        yield Finding(
            "driver.compute-mode",
            Severity.ERROR,
            f"{name} is closed to computing (compute mode Prohibited).",
            "CUDA finds no usable device.",
            "Open it.",
            (f"sudo nvidia-smi -i {index} -c DEFAULT",),
        )
    elif card.get("compute_mode") in (1, _EXCLUSIVE_PROCESS):
        yield Finding(
            "driver.compute-mode",
            Severity.WARNING,
            f"{name} takes one process at a time (compute mode Exclusive_Process).",
            "A second notebook on it fails with 'all CUDA-capable devices are busy'.",
            "Open it to several, unless that is wanted.",
            (f"sudo nvidia-smi -i {index} -c DEFAULT",),
        )
    if card.get("partitioned") and not card.get("mig_uuids"):
        yield Finding(
            "driver.mig-empty",
            Severity.ERROR,
            f"{name} is in MIG mode and has no instance.",
            "Such a card cannot be used as a whole: CUDA finds no device on it.",
            "Make instances, or switch MIG off.",
            (
                f"nvidia-smi mig -i {index} -lgip",
                f"sudo nvidia-smi mig -i {index} -cgi 0 -C",
                f"sudo nvidia-smi -i {index} -mig 0",
            ),
        )
    if card.get("persistence") == 0 and not facts.machine.is_wsl:
        yield Finding(
            "driver.persistence",
            Severity.INFO,
            f"Persistence mode of {name} is off.",
            "The driver lets go of the card when its last program ends: each start takes seconds "
            "longer, and power limits are forgotten. On a laptop it saves the battery.",
            "On a workstation or server, keep it on.",
            ("sudo systemctl enable --now nvidia-persistenced",),
        )
    total, free = card.get("memory_total_bytes"), card.get("memory_free_bytes")
    if total and free is not None and free < _LITTLE_LEFT * total:
        yield _full(card, facts, free, total)


def _full(card: dict[str, Any], facts: Facts, free: int, total: int) -> Finding:
    names = {one.pid: one.name for one in facts.processes()}
    held = sorted(card.get("processes") or [], key=lambda one: one[1] or 0, reverse=True)
    details = [
        f"pid {pid} ({names.get(pid, 'not in this container, or ended')}): {format_bytes(used)}"
        for pid, used in held[:8]
    ]
    return Finding(
        "driver.memory-taken",
        Severity.WARNING,
        f"{format_bytes(free)} of {format_bytes(total)} of {gpu.label(card)} is free.",
        "A training that starts now gets an out-of-memory error at once; one that grows, soon.",
        "End what is no longer needed: a notebook keeps its GPU memory until its kernel is shut "
        "down.",
        ("watchdog status", f"nvidia-smi -i {card.get('index')}"),
        tuple(details),
    )


def _xids(facts: Facts) -> Iterator[Finding]:
    """Faults that the kernel log holds since boot."""
    lines = facts.machine.kernel_log()
    if not lines:
        return
    counts: dict[int, list[str]] = {}
    for line in lines:
        event = events.parse_line(line, 0.0)
        if event is not None:
            counts.setdefault(event.code, []).append(line)
    if not counts:
        return
    shown = ", ".join(
        f"{len(of)} x Xid {code} ({of_xid(code).text})" for code, of in sorted(counts.items())
    )
    yield Finding(
        "driver.xid",
        Severity.INFO if all(of_xid(code).device_works for code in counts) else Severity.WARNING,
        f"The driver has reported faults since the machine started: {shown}.",
        worst(counts).consequence,
        worst(counts).remedy("INDEX"),
        ("sudo dmesg | grep -i xid",),
        tuple(of[-1] for _, of in sorted(counts.items()))[:8],
    )
