"""
What is wrong with a card or its driver: from consecutive readings, with who was on it. Pure.

A card that is lost cannot say any more who was on it, and a program that its
fault has ended is gone: so both are remembered from before.
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

# A pid that the driver names in a fault is looked up among those of so long ago.
_REMEMBERED_S = 60.0


# Who was on a card so long before it failed was on it: a program that its fault has ended may be
# gone before the fault is read. The driver is asked every 5 s who is there: no less than that.
_LATELY_S = 5.5
_SILENT_S = 20.0  # a driver that is busy answers late
_UNREADABLE_S = 60.0
_UNREAD_S = 60.0  # nobody has read the cards for so long
_XID_S = 600.0  # a fault stays an incident for so long


# So old when it is first heard of: told by an earlier daemon, or nobody was there to be told.
_XID_NEWS_S = 60.0
_GROWN_S = 3600.0
_GONE_READINGS = 2
_ABSENT_S = 10.0
_GONE_S = 3600.0
_MOST_CODES = 4
_MOST_XIDS = 16  # a card


@dataclass(slots=True)
class _Card:
    """What is remembered of one card."""

    gpu: Gpu  # as it was read last
    state_since_mono_s: float
    well_mono_s: float  # when it was last read without a fault
    holders: dict[int, tuple[Contributor, float]] = field(default_factory=dict)  # by pid; seen when
    repaired_mono_s: float = float("-inf")  # when it last came back after it was lost
    missing: int = 0  # readings without it
    hit: tuple[Contributor, ...] = ()  # who was on it when it failed
    ecc_low: int | None = None
    ecc_grew: tuple[float, int] | None = None  # when, by how much
    noted: frozenset[tuple[int, float]] = frozenset()  # Xids that are known: code and time
    xids: list[tuple[float, XidEvent, tuple[Contributor, ...]]] = field(default_factory=list)


class DeviceHealth:
    """Follows every card over its readings. Bounded by the number of cards."""

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._read_mono_s: float | None = None

    def observe(self, snapshot: Snapshot, tasks: Sequence[Task]) -> Iterator[Finding]:
        """
        What is wrong now, in the order of the cards.

        Args:
            snapshot: one sample with its hardware.
            tasks: of the same sample.
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
        gone: list[_Card] = []
        cause = _driver_finding(self._cards.values(), now, unread, faults)
        if cause is not None:
            yield cause
        for card in self._cards.values():
            if cause is not None and (card.missing or card.gpu.state in _UNANSWERED):
                continue  # it follows from that
            if card.gpu.parent_id is not None and not card.missing:
                whole = self._cards.get(card.gpu.parent_id)
                if whole is not None and whole.gpu.state not in _WORKING:
                    continue  # a part is as its card is
            if card.missing:
                # A reader that is started anew has nothing to say for a moment.
                if card.missing >= _GONE_READINGS and now - card.state_since_mono_s >= _ABSENT_S:
                    gone.append(card)
            else:
                yield from self._card_findings(card, now, unread and cause is None)
        yield from _missing_card_findings(
            gone, bool(hardware.gpus), next(iter(faults.values()), None)
        )

    # Taking a reading

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
            # A card without figures (its reader begins anew) says nothing of who is on it.
            if gpu.state is GpuState.OK and hardware.gpus_mono_s is not None:
                card.well_mono_s = now
            listed = (gpu, *(part for part in hardware.gpus if part.parent_id == gpu.id))
            self._update_holders(card, listed, owners, now)
            self._count_errors(card, gpu, now)
            self._update_xids(card, gpu, now, snapshot.unix_s)
            card.hit = (card.hit or _recent_holders(card)) if gpu.state in _BROKEN else ()
            card.gpu = gpu

    def _mark_missing(self, gpu_id: str, card: _Card, now: float) -> None:
        if card.missing == 0:
            card.state_since_mono_s = now
            card.hit = card.hit or _recent_holders(card)
        card.missing += 1
        # Parts of a card come and go as it is divided anew; a card on which nobody was may have
        # been unplugged or handed to a virtual machine.
        if card.gpu.parent_id is not None or now - card.state_since_mono_s > _GONE_S:
            del self._cards[gpu_id]

    def _update_holders(
        self, card: _Card, listed: Sequence[Gpu], owners: Mapping[int, Task], now: float
    ) -> None:
        """Who is on it now, or on a part of it; forget who left some time ago."""
        for process in (process for gpu in listed for process in gpu.processes):
            task = None if process.foreign else owners.get(process.pid)
            if task is not None:
                card.holders[process.pid] = Contributor(task.key, task.name), now
        for pid, (_, at) in list(card.holders.items()):
            if card.well_mono_s - at > _REMEMBERED_S:
                del card.holders[pid]

    def _count_errors(self, card: _Card, gpu: Gpu, now: float) -> None:
        errors = gpu.ecc_uncorrected
        if errors is None:
            return
        if card.ecc_low is None or errors < card.ecc_low:  # a driver that was loaded anew
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
            # By its age alone: a clock that was set back makes every new one look old otherwise.
            if now_unix_s - event.at_unix_s > _XID_NEWS_S:
                continue
            found = gpu_faults.xid_fault(event.code)
            if found is not UNKNOWN_XID and not found.restart:
                continue  # what it is about shows in other figures, or needs nobody
            _add_xid(card, now, event)
        card.noted = frozenset((event.code, event.at_unix_s) for event in gpu.xids)
        # What is older than its coming back has been mended with it.
        since = max(now - _XID_S, card.repaired_mono_s)
        card.xids = [each for each in card.xids if each[0] >= since]

    # What it means

    def _card_findings(self, card: _Card, now: float, unread: bool) -> Iterator[Finding]:
        gpu = card.gpu
        since = now - card.state_since_mono_s
        codes = [event.code for _, event, _ in card.xids]
        state = STATES.get(gpu.state)
        if gpu.state in _BROKEN and state is not None:
            said = _describe_xids(codes)
            if said and gpu.state is GpuState.NEEDS_RESET:
                said = f"{state.text}; {said}"
            yield build_finding(state, gpu, card.hit, said)
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
            hit = _unique(holder for _, _, holders in card.xids for holder in holders)
            unknown = f": {row.text}" if row is UNKNOWN_XID else ""
            yield build_finding(row, gpu, hit, f"{_describe_xids(codes)}{unknown}")
        yield from self._memory_findings(card)
        if gpu.recovery_action is not None:
            row = gpu_faults.RECOVERIES.get(gpu.recovery_action, gpu_faults.RECOVERIES["reset"])
            action = clean(gpu.recovery_action).replace("_", " ")
            text = f"the driver asks for a recovery: {action}"
            yield build_finding(row, gpu, _recent_holders(card), text)

    @staticmethod
    def _memory_findings(card: _Card) -> Iterator[Finding]:
        gpu, here = card.gpu, _recent_holders(card)
        if gpu.remap_failed:
            yield build_finding(FAULTS[FaultKind.REMAP_FAILED], gpu, here)
        if card.ecc_grew is not None:
            number = card.ecc_grew[1]
            text = f"{number} memory error{'s' if number > 1 else ''} that could not be corrected"
            yield build_finding(FAULTS[FaultKind.ECC], gpu, here, text)
        if gpu.remap_pending:
            yield build_finding(FAULTS[FaultKind.REMAP_PENDING], gpu, here)


_BROKEN = frozenset((GpuState.LOST, GpuState.NEEDS_RESET))
_WORKING = frozenset((GpuState.OK, GpuState.ASLEEP))
_UNANSWERED = frozenset((GpuState.SILENT, GpuState.UNREADABLE))
_UPDATED = "gpu.driver.updated"  # source of the fault that says so
_DRIVER = "gpu.driver"


def _driver_finding(
    cards: Iterable[_Card], now: float, unread: bool, faults: Mapping[str, Fault]
) -> Finding | None:
    """One cause for all cards: an update underneath, or a driver that answers about none."""
    updated = faults.get(_UPDATED)
    if updated is not None:
        # The jobs that run go on: it hits nobody yet.
        text, remedy = (
            clean(updated.message, 300).rstrip("."),
            clean(updated.remedy or "", 300),
        )
        return build_finding(FAULTS[FaultKind.UPDATED], DRIVER, (), text, remedy)
    here = [
        card
        for card in cards
        if not card.missing and card.gpu.parent_id is None
        and card.gpu.state is not GpuState.ASLEEP
    ]  # fmt: skip
    silent = [card for card in here if card.gpu.state is GpuState.SILENT]
    late = any(now - card.state_since_mono_s >= _SILENT_S for card in silent)
    fault = faults.get(_DRIVER)
    if not here or not (unread or (late and len(silent) == len(here))):
        return None
    if fault is None and len(here) < 2:
        return None  # that one is told by its name
    hit = _unique(holder for card in here for holder in _recent_holders(card))
    return _failed_driver_finding(fault, hit)


def _failed_driver_finding(
    fault: Fault | None, hit: tuple[Contributor, ...], text: str = ""
) -> Finding:
    """The driver has failed, in the words of the reader where it has any."""
    remedy = "" if fault is None else clean(fault.remedy or "", 300)
    text = text if fault is None else clean(fault.message, 200).rstrip(".")
    return build_finding(FAULTS[FaultKind.DRIVER], DRIVER, hit, text, remedy)


def _missing_card_findings(
    gone: Sequence[_Card], others_there: bool, fault: Fault | None
) -> Iterator[Finding]:
    """Cards that are not listed any more: one of several, or all because the driver is gone."""
    if gone and not others_there and (fault is not None or len(gone) > 1):
        hit = _unique(holder for card in gone for holder in card.hit)
        yield _failed_driver_finding(fault, hit, "no card is listed any more")
        return
    for card in gone:
        if card.hit:
            yield build_finding(FAULTS[FaultKind.LOST], card.gpu, card.hit, "it is no longer there")


def _affected_by_xid(event: XidEvent, card: _Card) -> tuple[Contributor, ...]:
    """The program that the driver names; otherwise every task on the card."""
    if event.pid is not None and event.pid in card.holders:
        return (card.holders[event.pid][0],)
    return _recent_holders(card)


def _set_xid_task(card: _Card, event: XidEvent) -> None:
    """The kernel log has said meanwhile whose fault it was, of which the driver told first."""
    for place, (at, known, _) in enumerate(card.xids):
        if known.pid is None and (known.code, known.at_unix_s) == (event.code, event.at_unix_s):
            card.xids[place] = at, event, _affected_by_xid(event, card)


def _add_xid(card: _Card, now: float, event: XidEvent) -> None:
    """One entry a code and program: a fault that repeats itself drives no other out."""
    hit = _affected_by_xid(event, card)
    for place, (_, known, before) in enumerate(card.xids):
        if (known.code, known.pid) == (event.code, event.pid):
            card.xids[place] = now, event, _unique((*before, *hit))
            return
    if len(card.xids) >= _MOST_XIDS:
        card.xids.remove(
            min(card.xids, key=lambda each: (gpu_faults.xid_severity(each[1].code), each[0]))
        )
    card.xids.append((now, event, hit))


def _recent_holders(card: _Card) -> tuple[Contributor, ...]:
    """Who is on it, or was when it was last well."""
    return _unique(
        holder for holder, at in card.holders.values() if card.well_mono_s - at <= _LATELY_S
    )


def _unique(holders: Iterable[Contributor]) -> tuple[Contributor, ...]:
    return tuple(dict.fromkeys(holders))


def _describe_xids(codes: Sequence[int]) -> str:
    # The worst first; of those alike the first tells what went wrong, the others follow from it.
    worst = sorted(dict.fromkeys(codes), key=gpu_faults.xid_severity, reverse=True)
    return "; ".join(gpu_faults.describe_xid(code) for code in worst[:_MOST_CODES])
