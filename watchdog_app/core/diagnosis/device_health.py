"""
Detect faults of GPUs and their driver from consecutive readings. Pure.

A lost GPU can no longer list its processes, and a program that a fault ended has disappeared. The
detector therefore remembers both from earlier readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from watchdog_app.base.text.plain import clean
from watchdog_app.core.diagnosis import gpu_faults
from watchdog_app.core.diagnosis.gpu_faults import (
    DRIVER,
    FAULTS,
    STATES,
    UNKNOWN_XID,
    FaultKind,
    Finding,
    build_finding,
)
from watchdog_app.core.model.decisions import Contributor
from watchdog_app.core.model.hardware import Gpu, GpuState, XidEvent
from watchdog_app.core.model.machine import Fault, Snapshot, Task

# Keep processes for this long, because the driver may name their pid in a later fault.
_REMEMBERED_S = 60.0


# A task was on a GPU if it was listed there this long before the fault. A program that the fault
# ended may disappear before the fault is read. The driver lists processes every 5 s, so the value
# must not be smaller.
_LATELY_S = 5.5
_SILENT_S = 20.0  # a busy driver answers late
_UNREADABLE_S = 60.0
_UNREAD_S = 60.0  # the GPUs count as unread after this long without a reading
_XID_S = 600.0  # a fault stays an incident for this long


# Ignore an Xid that is older than this when first read. An earlier daemon reported it, or no user
# was there to be notified.
_XID_NEWS_S = 60.0
_GROWN_S = 3600.0
_GONE_READINGS = 2
_ABSENT_S = 10.0
_GONE_S = 3600.0
_MOST_CODES = 4
_MOST_XIDS = 16  # per GPU


@dataclass(slots=True)
class _Card:
    """Remembered state of one GPU."""

    gpu: Gpu  # last reading
    state_since_mono_s: float
    last_ok_mono_s: float  # time of the last reading without a fault
    # by pid; with the time of the last list that contained it
    holders: dict[int, tuple[Contributor, float]] = field(default_factory=dict)
    repaired_mono_s: float = float("-inf")  # when the GPU last came back after it was lost
    missing: int = 0  # consecutive readings without this GPU
    affected: tuple[Contributor, ...] = ()  # tasks on the GPU when it failed
    ecc_low: int | None = None
    ecc_grew: tuple[float, int] | None = None  # time and number of new errors
    noted: frozenset[tuple[int, float]] = frozenset()  # known Xids, as code and time
    xids: list[tuple[float, XidEvent, tuple[Contributor, ...]]] = field(default_factory=list)


class DeviceHealth:
    """Track the health of every GPU. Bounded by the number of GPUs."""

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._read_mono_s: float | None = None

    def observe(self, snapshot: Snapshot, tasks: Sequence[Task]) -> Iterator[Finding]:
        """
        Yield the current faults, in the order of the GPUs.

        Args:
            snapshot: one sample with its hardware.
            tasks: tasks of the same sample.
        """
        hardware, now = snapshot.hardware, snapshot.mono_s
        faults = {
            fault.source: fault for fault in snapshot.faults if fault.source.startswith("gpu")
        }
        if not hardware.gpus and not self._cards and _UPDATED not in faults:
            return
        read = hardware.gpus_mono_s
        if read is None or read != self._read_mono_s:
            self._read_mono_s = read
            self._update_cards(snapshot, tasks)
        unread = read is not None and now - read > _UNREAD_S
        unlisted: list[_Card] = []
        cause = _driver_finding(self._cards.values(), now, unread, faults)
        if cause is not None:
            yield cause
        for card in self._cards.values():
            if cause is not None and (card.missing or card.gpu.state in _UNANSWERED):
                continue  # a consequence of the driver's fault
            if card.gpu.parent_id is not None and not card.missing:
                whole = self._cards.get(card.gpu.parent_id)
                if whole is not None and whole.gpu.state not in _WORKING:
                    continue  # a part of a GPU shares the state of the whole GPU
            if card.missing:
                # A restarted reader lists no GPUs for a moment.
                if card.missing >= _GONE_READINGS and now - card.state_since_mono_s >= _ABSENT_S:
                    unlisted.append(card)
            else:
                yield from self._card_findings(card, now, unread and cause is None)
        yield from _missing_card_findings(
            unlisted, bool(hardware.gpus), next(iter(faults.values()), None)
        )

    # Processing a reading

    def _update_cards(self, snapshot: Snapshot, tasks: Sequence[Task]) -> None:
        now, hardware = snapshot.mono_s, snapshot.hardware
        owners = {member.key.pid: task for task in tasks for member in task.members}
        seen = {gpu.id for gpu in hardware.gpus}
        for gpu_id, card in list(self._cards.items()):
            if gpu_id not in seen:
                self._mark_missing(gpu_id, card, now)
        for gpu in hardware.gpus:
            card = self._cards.setdefault(gpu.id, _Card(gpu, now, now))
            if card.gpu.state is not gpu.state or card.missing:
                card.state_since_mono_s = now
            card.missing = 0
            if card.gpu.state in _BROKEN and gpu.state not in _BROKEN:
                card.repaired_mono_s = now
            # A GPU without figures (its reader restarts) says nothing about its processes.
            if gpu.state is GpuState.OK and hardware.gpus_mono_s is not None:
                card.last_ok_mono_s = now
            listed = (gpu, *(part for part in hardware.gpus if part.parent_id == gpu.id))
            self._update_holders(card, listed, owners, now)
            self._count_errors(card, gpu, now)
            self._update_xids(card, gpu, now, snapshot.unix_s)
            card.affected = (card.affected or _recent_holders(card)) if gpu.state in _BROKEN else ()
            card.gpu = gpu

    def _mark_missing(self, gpu_id: str, card: _Card, now: float) -> None:
        if card.missing == 0:
            card.state_since_mono_s = now
            card.affected = card.affected or _recent_holders(card)
        card.missing += 1
        # Parts of a GPU disappear when it is partitioned again. A GPU without tasks may have been
        # unplugged or handed to a virtual machine.
        if card.gpu.parent_id is not None or now - card.state_since_mono_s > _GONE_S:
            del self._cards[gpu_id]

    def _update_holders(
        self, card: _Card, listed: Sequence[Gpu], owners: Mapping[int, Task], now: float
    ) -> None:
        """Record the tasks on the GPU or on a part of it. Forget tasks that left some time ago."""
        for process in (process for gpu in listed for process in gpu.processes):
            task = None if process.foreign else owners.get(process.pid)
            if task is not None:
                card.holders[process.pid] = Contributor(task.key, task.name), now
        for pid, (_, at) in list(card.holders.items()):
            if card.last_ok_mono_s - at > _REMEMBERED_S:
                del card.holders[pid]

    def _count_errors(self, card: _Card, gpu: Gpu, now: float) -> None:
        errors = gpu.ecc_uncorrected
        if errors is None:
            return
        if card.ecc_low is None or errors < card.ecc_low:  # the driver was reloaded
            card.ecc_low = errors
        elif errors > card.ecc_low:
            before = card.ecc_grew[1] if card.ecc_grew is not None else 0
            card.ecc_grew = now, before + errors - card.ecc_low
            card.ecc_low = errors
        if card.ecc_grew is not None and now - card.ecc_grew[0] > _GROWN_S:
            card.ecc_grew = None

    def _update_xids(self, card: _Card, gpu: Gpu, now: float, now_unix_s: float) -> None:
        for event in gpu.xids:
            if (event.code, event.at_unix_s) in card.noted:
                if event.pid is not None:
                    _set_xid_task(card, event)
                continue
            # Use only the event's age. A comparison with earlier events would make every new event
            # look old after somebody set the clock back.
            if now_unix_s - event.at_unix_s > _XID_NEWS_S:
                continue
            found = gpu_faults.xid_fault(event.code)
            if found is not UNKNOWN_XID and not found.restart:
                continue  # other figures show this fault, or it needs no action
            _add_xid(card, now, event)
        card.noted = frozenset((event.code, event.at_unix_s) for event in gpu.xids)
        # When a lost GPU came back, its earlier faults were repaired as well.
        since = max(now - _XID_S, card.repaired_mono_s)
        card.xids = [each for each in card.xids if each[0] >= since]

    # Deriving the findings

    def _card_findings(self, card: _Card, now: float, unread: bool) -> Iterator[Finding]:
        gpu = card.gpu
        since = now - card.state_since_mono_s
        codes = [event.code for _, event, _ in card.xids]
        state = STATES.get(gpu.state)
        if gpu.state in _BROKEN and state is not None:
            text = _describe_xids(codes)
            if text and gpu.state is GpuState.NEEDS_RESET:
                text = f"{state.text}; {text}"
            yield build_finding(state, gpu, card.affected, text)
            return
        if (gpu.state is GpuState.SILENT and since >= _SILENT_S) or (
            unread and gpu.state is not GpuState.ASLEEP
        ):
            yield build_finding(FAULTS[FaultKind.SILENT], gpu, _recent_holders(card))
        elif state is not None and gpu.state is GpuState.UNREADABLE and since >= _UNREADABLE_S:
            why = clean(gpu.notes[0], 120) if gpu.notes else "it cannot be watched"
            yield build_finding(state, gpu, (), f"{state.text}: {why}")
        if card.xids:
            row = gpu_faults.worst_xid_fault(codes)
            affected = _unique(holder for _, _, holders in card.xids for holder in holders)
            unknown = f": {row.text}" if row is UNKNOWN_XID else ""
            yield build_finding(row, gpu, affected, f"{_describe_xids(codes)}{unknown}")
        yield from self._memory_findings(card)
        if gpu.recovery_action is not None:
            row = gpu_faults.RECOVERIES.get(gpu.recovery_action, gpu_faults.RECOVERIES["reset"])
            action = clean(gpu.recovery_action).replace("_", " ")
            text = f"the driver asks for a recovery: {action}"
            yield build_finding(row, gpu, _recent_holders(card), text)

    @staticmethod
    def _memory_findings(card: _Card) -> Iterator[Finding]:
        gpu, holders = card.gpu, _recent_holders(card)
        if gpu.remap_failed:
            yield build_finding(FAULTS[FaultKind.REMAP_FAILED], gpu, holders)
        if card.ecc_grew is not None:
            number = card.ecc_grew[1]
            text = f"{number} memory error{'s' if number > 1 else ''} that could not be corrected"
            yield build_finding(FAULTS[FaultKind.ECC], gpu, holders, text)
        if gpu.remap_pending:
            yield build_finding(FAULTS[FaultKind.REMAP_PENDING], gpu, holders)


_BROKEN = frozenset((GpuState.LOST, GpuState.NEEDS_RESET))
_WORKING = frozenset((GpuState.OK, GpuState.ASLEEP))
_UNANSWERED = frozenset((GpuState.SILENT, GpuState.UNREADABLE))
_UPDATED = "gpu.driver.updated"  # source of the fault that reports a driver update
_DRIVER = "gpu.driver"


def _driver_finding(
    cards: Iterable[_Card], now: float, unread: bool, faults: Mapping[str, Fault]
) -> Finding | None:
    """Return one cause for all GPUs: an updated driver, or a driver that does not answer."""
    updated = faults.get(_UPDATED)
    if updated is not None:
        # Running jobs continue, so the update affects no task yet.
        text = clean(updated.message, 300).rstrip(".")
        remedy = clean(updated.remedy or "", 300)
        return build_finding(FAULTS[FaultKind.UPDATED], DRIVER, (), text, remedy)
    awake = [
        card
        for card in cards
        if not card.missing and card.gpu.parent_id is None
        and card.gpu.state is not GpuState.ASLEEP
    ]  # fmt: skip
    silent = [card for card in awake if card.gpu.state is GpuState.SILENT]
    late = any(now - card.state_since_mono_s >= _SILENT_S for card in silent)
    fault = faults.get(_DRIVER)
    if not awake or not (unread or (late and len(silent) == len(awake))):
        return None
    if fault is None and len(awake) < 2:
        return None  # a single GPU gets a finding under its own name
    affected = _unique(holder for card in awake for holder in _recent_holders(card))
    return _failed_driver_finding(fault, affected)


def _failed_driver_finding(
    fault: Fault | None, affected: tuple[Contributor, ...], text: str = ""
) -> Finding:
    """Build the finding of a failed driver, with the reader's message if there is one."""
    remedy = "" if fault is None else clean(fault.remedy or "", 300)
    text = text if fault is None else clean(fault.message, 200).rstrip(".")
    return build_finding(FAULTS[FaultKind.DRIVER], DRIVER, affected, text, remedy)


def _missing_card_findings(
    unlisted: Sequence[_Card], others_listed: bool, fault: Fault | None
) -> Iterator[Finding]:
    """Yield GPUs that disappeared from the list: one of several, or all after a driver failure."""
    if unlisted and not others_listed and (fault is not None or len(unlisted) > 1):
        affected = _unique(holder for card in unlisted for holder in card.affected)
        yield _failed_driver_finding(fault, affected, "no card is listed any more")
        return
    for card in unlisted:
        if card.affected:
            yield build_finding(
                FAULTS[FaultKind.LOST], card.gpu, card.affected, "it is no longer there"
            )


def _affected_by_xid(event: XidEvent, card: _Card) -> tuple[Contributor, ...]:
    """Return the program that the driver names, otherwise every task on the GPU."""
    if event.pid is not None and event.pid in card.holders:
        return (card.holders[event.pid][0],)
    return _recent_holders(card)


def _set_xid_task(card: _Card, event: XidEvent) -> None:
    """Add the program of an Xid. The driver reported the Xid first, the kernel log its program."""
    for place, (at, known, _) in enumerate(card.xids):
        if known.pid is None and (known.code, known.at_unix_s) == (event.code, event.at_unix_s):
            card.xids[place] = at, event, _affected_by_xid(event, card)


def _add_xid(card: _Card, now: float, event: XidEvent) -> None:
    """Keep one entry per code and program, so that a repeated fault does not displace others."""
    affected = _affected_by_xid(event, card)
    for place, (_, known, before) in enumerate(card.xids):
        if (known.code, known.pid) == (event.code, event.pid):
            card.xids[place] = now, event, _unique((*before, *affected))
            return
    if len(card.xids) >= _MOST_XIDS:
        card.xids.remove(
            min(card.xids, key=lambda each: (gpu_faults.xid_severity(each[1].code), each[0]))
        )
    card.xids.append((now, event, affected))


def _recent_holders(card: _Card) -> tuple[Contributor, ...]:
    """Return the tasks that are on the GPU, or were there when it last worked."""
    return _unique(
        holder for holder, at in card.holders.values() if card.last_ok_mono_s - at <= _LATELY_S
    )


def _unique(holders: Iterable[Contributor]) -> tuple[Contributor, ...]:
    return tuple(dict.fromkeys(holders))


def _describe_xids(codes: Sequence[int]) -> str:
    # The worst first. Among equals, the first is the cause and the others are consequences.
    worst = sorted(dict.fromkeys(codes), key=gpu_faults.xid_severity, reverse=True)
    return "; ".join(gpu_faults.describe_xid(code) for code in worst[:_MOST_CODES])
