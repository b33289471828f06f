"""What driver and daemon say about each card: does it answer, is it healthy, may it be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from watchdog_app.base.codec import objects
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.diagnosis.gpu_faults import (
    FAULTS,
    RECOVERIES,
    STATES,
    FaultKind,
    GpuFault,
    reset_command,
    worst_xid_fault,
    xid_fault,
)
from watchdog_app.core.model.decisions import Stage
from watchdog_app.core.model.hardware import GpuState
from watchdog_app.core.model.levels import Level
from watchdog_app.doctor import driver, gpu, versions
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity
from watchdog_app.doctor.gpu import Driver
from watchdog_app.doctor.machine import libraries, module_loaded
from watchdog_app.machine.gpu import events, pci
from watchdog_app.machine.gpu.nvml_driver import Code

_PROHIBITED, _EXCLUSIVE = 2, (1, 3)  # nvmlComputeMode_t; 1 is an old form of 3
_LITTLE_LEFT = 0.15
_SEVERITIES = {Stage.WATCH: Severity.INFO, Stage.WARN: Severity.WARNING, Stage.SAVE: Severity.ERROR}
_LEVEL_SEVERITIES = {Level.CRITICAL: Severity.ERROR, Level.WARNING: Severity.WARNING}
_STATES = {str(state): row for state, row in STATES.items()}


def check_driver(facts: Facts) -> Iterator[Finding]:
    """Ask the driver, in a child process, since it may hang or crash."""
    machine = facts.machine
    loaded = module_loaded(machine)
    # Another check already reports a card without a kernel module.
    if not (loaded or facts.expects_gpu) or (facts.cards and not loaded):
        return
    if facts.asleep:
        yield facts.finding("driver.answer.asleep")
        return
    if not libraries(machine, "libnvidia-ml.so.1"):
        return
    answer = facts.driver()
    if answer.hung_in:
        yield facts.finding("driver.hung.driver", call=answer.hung_in, seconds=answer.seconds)
    elif answer.crashed_in:
        yield facts.finding("driver.crashed", call=answer.crashed_in, about="", error=answer.error)
    elif answer.answers:
        yield from _check_cards(facts, answer)
    elif answer.code == Code.VERSION_MISMATCH:
        # `driver.check` reports mismatched libraries, with the versions
        if not driver.mismatched_libraries(machine):
            yield facts.finding("driver.api-mismatch")
    elif answer.code in (Code.UNKNOWN, Code.NO_PERMISSION) and machine.container:
        yield facts.finding("driver.container-lost", error=answer.error)
    elif answer.code == Code.LIBRARY_NOT_FOUND:
        yield facts.finding("driver.answer.no-library")
    elif answer.code is None:
        yield facts.finding("driver.answer.none", reason=answer.error)
    else:
        yield facts.finding("driver.init-failed", error=answer.error)


def _check_cards(facts: Facts, answer: Driver) -> Iterator[Finding]:
    yield facts.fine(
        "driver.answer",
        version=versions.format_driver_version(answer.version) or "of unknown version",
        cuda=versions.format_version(answer.cuda) or "unknown",
        cards=", ".join(map(gpu.label, answer.usable)) or "no card",
    )
    program = facts.machine.command("nvidia-smi") or "not on the PATH; nothing depends on it"
    yield facts.fine("driver.nvidia-smi", program=program)
    if not answer.cards:
        yield facts.finding("driver.no-cards")
    for card in answer.cards:
        if card.get("failed_in"):
            yield _failed_card(facts, card, answer)
        elif card.get("state") == GpuState.LOST:
            yield _fault_finding(facts, "driver.gpu-lost", FAULTS[FaultKind.LOST], card)
        elif card.get("state") == GpuState.NEEDS_RESET:
            yield _fault_finding(
                facts, "driver.reset-required", FAULTS[FaultKind.NEEDS_RESET], card
            )
        elif card not in answer.usable:
            yield facts.finding("driver.gpu-error", card=gpu.label(card), error=card.get("error"))


def _failed_card(facts: Facts, card: dict[str, Any], answer: Driver) -> Finding:
    """Report a card on which the driver hung or crashed; the other cards were read anyway."""
    name, call = gpu.label(card), card["failed_in"]
    if not card.get("hung"):
        about, error = f", asked about {name}", card.get("error")
        return facts.finding("driver.crashed", call=call, about=about, error=error)
    # The value of CUDA_VISIBLE_DEVICES that hides the cards that do not answer.
    others = ",".join(str(one.get("index")) for one in answer.usable) or "-1"
    words = {"call": call, "seconds": answer.seconds, "others": others}
    return facts.finding("driver.hung.card", card=name, **words)


def _fault_finding(
    facts: Facts, entry: str, fault: GpuFault, card: dict[str, Any], *details: str
) -> Finding:
    """Build the finding of a row of the fault table for a card."""
    index = card.get("index")
    return facts.finding(
        entry,
        *details,
        severity=_SEVERITIES[fault.stage],
        card=gpu.label(card),
        index=index,
        title=fault.title,
        text=fault.text,
        consequence=fault.consequence,
        remedy=fault.remedy(index),
        reset=reset_command(index),
    )


def check(facts: Facts) -> Iterator[Finding]:
    """Check every card: the kernel log, the daemon and the driver."""
    yield from _xids(facts)
    if not facts.expects_gpu or not libraries(facts.machine, "libnvidia-ml.so.1"):
        return
    known = list(_daemon_findings(facts))
    yield from (finding for _, finding in known)
    named = {gpu_id.partition("/")[0] for gpu_id, _ in known}
    for card in facts.driver().usable:
        found = [*_health(facts, card), *_sharing(facts, card)]
        yield from found
        if not found and pci.short_address(card.get("bus_id")) not in named:
            yield facts.fine("driver.card", card=gpu.label(card))


def _daemon_findings(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """
    Yield the id and the finding of each card for which the daemon knows a problem.

    The daemon has watched for longer than the doctor runs. A card that answers now may have
    reported a fault a minute ago.
    """
    status, named = facts.daemon(), set()
    for incident in objects(status, "incidents"):
        if incident.get("resource") != "gpu_fault":
            continue
        subject, advice = str(incident.get("subject")), incident.get("advice")
        named.add(subject)
        names = [str(one.get("name")) for one in objects(incident, "contributors")]
        yield (
            subject,
            facts.finding(
                "driver.incident.open",
                *((f"hit: {', '.join(names)}",) if names else ()),
                severity=_LEVEL_SEVERITIES.get(Level.from_json(incident), Severity.INFO),
                label=incident.get("label"),
                reason=incident.get("reason"),
                advice=" ".join(map(str, advice)) if isinstance(advice, list) else "",
            ),
        )
    for card in objects(status, "gpus"):
        gpu_id, row = str(card.get("id")), _STATES.get(str(card.get("state")))
        if row is not None and not {gpu_id, gpu_id.partition("/")[0]} & named:
            yield gpu_id, _fault_finding(facts, "driver.incident.state", row, card)


def _health(facts: Facts, card: dict[str, Any]) -> Iterator[Finding]:
    recovery = RECOVERIES.get(str(card.get("recovery_action")))
    if recovery is not None:
        yield _fault_finding(facts, "driver.recovery", recovery, card)
    if card.get("remap_failed"):
        yield _fault_finding(facts, "driver.remap-failed", FAULTS[FaultKind.REMAP_FAILED], card)
    elif card.get("remap_pending") or card.get("retired_pending"):
        yield _fault_finding(facts, "driver.remap-pending", FAULTS[FaultKind.REMAP_PENDING], card)
    if card.get("ecc_uncorrected"):
        count = f"{card['ecc_uncorrected']} since the driver was loaded"
        yield _fault_finding(facts, "driver.ecc", FAULTS[FaultKind.ECC], card, count)
    width, most = card.get("pcie_width"), card.get("pcie_width_max")
    if width and most and width < most:
        yield _card_finding(facts, "driver.pcie-width", card, width=width, most=most)


def _sharing(facts: Facts, card: dict[str, Any]) -> Iterator[Finding]:
    if card.get("compute_mode") == _PROHIBITED:
        yield _card_finding(facts, "driver.compute-mode.prohibited", card)
    elif card.get("compute_mode") in _EXCLUSIVE:
        yield _card_finding(facts, "driver.compute-mode.exclusive", card)
    if card.get("partitioned") and not card.get("mig_uuids"):
        yield _card_finding(facts, "driver.mig-empty", card)
    if card.get("persistence") == 0 and not facts.machine.is_wsl:
        yield _card_finding(facts, "driver.persistence", card)
    total, free = card.get("memory_total_bytes"), card.get("memory_free_bytes")
    if total and free is not None and free < _LITTLE_LEFT * total:
        names = {one.pid: one.name for one in facts.processes()}
        held = sorted(card.get("processes") or [], key=lambda one: one[1] or 0, reverse=True)
        holders = [
            f"pid {pid} ({names.get(pid, 'not in this container, or ended')}): {format_bytes(used)}"
            for pid, used, *_ in held[:8]
        ]
        yield _card_finding(facts, "driver.memory-taken", card, *holders, free=free, total=total)


def _card_finding(
    facts: Facts, entry: str, card: dict[str, Any], *details: str, **values: Any
) -> Finding:
    words = {"card": gpu.label(card), "index": card.get("index")}
    return facts.finding(entry, *details, **words | values)


def _xids(facts: Facts) -> Iterator[Finding]:
    """Report GPU faults in the kernel log since boot."""
    counts: dict[int, list[str]] = {}
    for line in facts.machine.kernel_log() or ():
        event = events.parse_line(line, 0.0)
        if event is not None:
            counts.setdefault(event.code, []).append(line)
    if counts:
        codes, works = sorted(counts), all(xid_fault(code).device_works for code in counts)
        yield facts.finding(
            "driver.xid",
            *[counts[code][-1] for code in codes][:8],
            severity=Severity.INFO if works else Severity.WARNING,
            faults=[f"{len(counts[code])} x Xid {code} ({xid_fault(code).text})" for code in codes],
            consequence=worst_xid_fault(counts).consequence,
            remedy=worst_xid_fault(counts).remedy("INDEX"),
        )
