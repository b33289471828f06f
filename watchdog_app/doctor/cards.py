"""The state of each card that answers: health, who may use it, what is left of its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.doctor import daemon_word, driver_files, gpu
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine

_EXCLUSIVE_PROCESS, _PROHIBITED = 3, 2  # nvmlComputeMode_t; 1 is an old form of 3
_RECOVERY = {
    1: ("a reset", "sudo nvidia-smi --gpu-reset -i {index}"),
    2: ("a restart of the machine", "sudo reboot"),
    3: ("its programs to be ended", "nvidia-smi -i {index}"),
    4: ("its programs to be ended and a reset", "sudo nvidia-smi --gpu-reset -i {index}"),
}
_LITTLE_LEFT = 0.15
_XIDS = {
    13: "an error in a program's kernel", 31: "a program's wrong memory access",
    43: "a program was stopped", 45: "clean-up after another error",
    48: "a double-bit memory error", 63: "a memory row was replaced",
    64: "a memory row could not be replaced", 74: "an NVLink error",
    79: "the card fell off the bus", 94: "a contained memory error",
    95: "an uncontained memory error", 109: "a context switch timed out",
    119: "its firmware (GSP) did not answer", 120: "an error in its firmware (GSP)",
    154: "it asks for a recovery action",
}  # fmt: skip
_PROGRAMS_OWN = {13, 31, 43, 45}  # end one program and leave the card well


def check(facts: Facts) -> Iterator[Finding]:
    """Every card, the worst of each."""
    yield from _xids(facts)
    if not facts.expects_gpu or not driver_files.libraries(facts.machine, "libnvidia-ml.so.1"):
        return
    known = list(daemon_word.cards(facts))
    yield from (finding for _, finding in known)
    told = {uuid for uuid, _ in known}
    for card in facts.driver().usable:
        found = [*_health(card), *_sharing(card, facts)]
        yield from found
        if not found and not told & {card.get("uuid"), *(card.get("mig_uuids") or ())}:
            yield fine("driver.card", f"{gpu.label(card)} is healthy and may be used.")


def _health(card: dict[str, Any]) -> Iterator[Finding]:
    name, index = gpu.label(card), card.get("index")
    needed = _RECOVERY.get(card.get("recovery") or 0)
    if needed:
        yield Finding(
            "driver.recovery",
            Severity.ERROR,
            f"{name} says that it needs {needed[0]} after an error.",
            "Trainings on it fail or compute wrongly until then.",
            "Save, end what runs on it, then:",
            (needed[1].format(index=index),),
        )
    remap = card.get("remap") or []  # correctable, uncorrectable, pending, failure
    if len(remap) == 4 and remap[3]:
        yield Finding(
            "driver.remap-failed",
            Severity.ERROR,
            f"{name} has run out of spare memory rows to replace broken ones.",
            "The next memory error there ends the training on it.",
            "Have the card replaced; the report names the error for the vendor.",
            (f"nvidia-smi -q -i {index} -d ROW_REMAPPER,ECC", "sudo nvidia-bug-report.sh"),
        )
    elif (len(remap) == 4 and remap[2]) or card.get("retired_pending"):
        yield Finding(
            "driver.remap-pending",
            Severity.WARNING,
            f"{name} has found broken memory and replaces it at its next reset.",
            "Until then a training can hit the same place and end (Xid 94, 95 or 48).",
            "Reset the card at the next pause between trainings.",
            (f"sudo nvidia-smi --gpu-reset -i {index}",),
        )
    if card.get("ecc_volatile"):
        yield Finding(
            "driver.ecc",
            Severity.WARNING,
            f"{name} has had {card['ecc_volatile']} uncorrectable memory errors since the driver "
            "was loaded.",
            "Each ends the training whose data it hits.",
            "Reset the card; if they come back, have it replaced.",
            (f"nvidia-smi -q -i {index} -d ECC", f"sudo nvidia-smi --gpu-reset -i {index}"),
        )
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
    mig = card.get("mig")
    if mig and mig[0] == 1 and card.get("mig_uuids") == []:
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
        _, found, rest = line.partition("NVRM: Xid (")
        code = rest.partition("): ")[2].partition(",")[0].strip()
        if found and code.isdigit():
            counts.setdefault(int(code), []).append(line)
        elif "NVRM" in line and "fallen off the bus" in line:
            counts.setdefault(79, []).append(line)
    if not counts:
        return
    shown = ", ".join(
        f"{len(of)} x Xid {code} ({_XIDS.get(code, 'see the catalogue')})"
        for code, of in sorted(counts.items())
    )
    yield Finding(
        "driver.xid",
        Severity.INFO if set(counts) <= _PROGRAMS_OWN else Severity.WARNING,
        f"The driver has reported faults since the machine started: {shown}.",
        "Each ended at least one program on that card.",
        "13, 31, 43 and 45 mostly are a program's own; 79 asks for a look at power and seating; "
        "48, 63, 64, 94 and 95 are the card's memory.",
        ("sudo dmesg | grep -i xid",),
        tuple(of[-1] for _, of in sorted(counts.items()))[:8],
    )
