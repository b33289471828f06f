"""
Detect faults and slowdowns of GPUs and their driver from consecutive readings. Pure.

A lost GPU can no longer list its processes, and a program that a fault ended has disappeared. The
detector therefore remembers both from earlier readings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.core.diagnosis import gpu_faults
from watchdog_app.core.diagnosis.gpu_faults import (
    FAULTS,
    STATES,
    UNKNOWN_XID,
    FaultKind,
    Finding,
    build_finding,
)
from watchdog_app.core.model import devices
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import (
    Contributor,
    Evidence,
    Incident,
    Observation,
    Problem,
    Stage,
    Topic,
)
from watchdog_app.core.model.hardware import ClockEvent, Gpu, GpuState, XidEvent
from watchdog_app.core.model.machine import Fault, ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import ResourceKey, ResourceKind, is_condition

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
_MOST_XIDS = 16  # per GPU

# Least seconds between reports. Heat that comes and goes with every epoch opens an incident each
# time.
_QUIET_S = {Stage.WATCH: 86_400.0, Stage.WARN: 3600.0, Stage.SAVE: 0.0}
_ENDED_S = 300.0  # keep a fault this long, so that a later death of its task can name it
_MOST_AFFECTED = 8
_MOST_ADVICE = 3

_THERMAL = {ClockEvent.SOFTWARE_THERMAL, ClockEvent.HARDWARE_THERMAL}

# Slowdowns of GPUs by heat and by the power supply.
_BIN_S, _BINS = 15.0, 8  # readings are counted in bins, 2 min in all
_HEAT_SHARE, _HEAT_CLEAR = 0.5, 0.2
_BRAKE_S, _BRAKES = 60.0, 3
_BRAKE_CLEAR_S = 600.0


class _Slowdowns:
    """The current slowdowns of one GPU: `found`."""

    def __init__(self) -> None:
        self.found: frozenset[FaultKind] = frozenset()
        # Of each bin its end, its readings, and the hot ones of them.
        self._bins: deque[tuple[float, int, int]] = deque(maxlen=_BINS + 1)
        self._brakes = deque([float("-inf")] * _BRAKES, maxlen=_BRAKES)  # times of the last ones

    def add(self, now: float, events: frozenset[str]) -> None:
        """
        Add one reading.

        Args:
            now: monotonic seconds.
            events: why the GPU lowers its clocks now; values of `ClockEvent`.
        """
        if not self._bins or now >= self._bins[-1][0]:
            self._bins.append((now + _BIN_S, 0, 0))
        end, readings, hot = self._bins.pop()
        self._bins.append((end, readings + 1, hot + bool(events & _THERMAL)))
        if ClockEvent.POWER_BRAKE in events:
            self._brakes.append(now)
        found = set()
        lately = [each for each in self._bins if each[0] > now - _BIN_S * _BINS]
        hot_share = sum(each[2] for each in lately) / sum(each[1] for each in lately)
        least = _HEAT_CLEAR if FaultKind.HEAT in self.found else _HEAT_SHARE
        if len(lately) >= _BINS and hot_share >= least:
            found.add(FaultKind.HEAT)
        recent = now - self._brakes[-1] <= _BRAKE_CLEAR_S
        if now - self._brakes[0] <= _BRAKE_S or (recent and FaultKind.POWER_BRAKE in self.found):
            found.add(FaultKind.POWER_BRAKE)
        self.found = frozenset(found)


class _Xid(NamedTuple):
    """The last Xid with one code, of one program."""

    mono_s: float
    at_unix_s: float
    tasks: tuple[Contributor, ...]  # tasks that it hit


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
    ecc_last: int | None = None
    ecc_new: int = 0  # errors that came since, lately
    ecc_grew_mono_s: float = float("-inf")  # when the last of them came
    noted: frozenset[tuple[int, float]] = frozenset()  # known Xids, as code and time
    # Current Xids by code and pid, so that a repeated fault does not displace others.
    xids: dict[tuple[int, int | None], _Xid] = field(default_factory=dict)
    slowdowns: _Slowdowns = field(default_factory=_Slowdowns)


class DeviceHealth:
    """Track the health of every GPU. Bounded by the number of GPUs."""

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._read_mono_s: float | None = None

    def observe(self, snapshot: Snapshot, tasks: Sequence[Task]) -> Iterator[Finding]:
        """
        Yield the current faults, then the slowdowns, in the order of the GPUs.

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
        # A restarted reader lists no GPUs for a moment.
        unlisted = [
            card
            for card in self._cards.values()
            if card.missing >= _GONE_READINGS and now - card.state_since_mono_s >= _ABSENT_S
        ]
        cause = _driver_finding(self._cards.values(), now, unread, faults)
        if cause is None and unlisted and not hardware.gpus and (faults or len(unlisted) > 1):
            fault = next(iter(faults.values()), None)
            affected = (holder for card in unlisted for holder in card.affected)
            text = "no card is listed any more"
            cause = _build_driver_finding(FaultKind.DRIVER, fault, affected, text)
        if cause is not None:
            yield cause
        for card in self._cards.values():
            if card.missing or (cause is not None and card.gpu.state in _UNANSWERED):
                continue  # reported below, or a consequence of the driver's fault
            whole = self._cards.get(card.gpu.parent_id or "")
            if whole is not None and whole.gpu.state not in _WORKING:
                continue  # a part of a GPU shares the state of the whole GPU
            yield from _card_findings(card, now, unread and cause is None)
        for card in unlisted:
            if cause is None and card.affected:
                row = FAULTS[FaultKind.LOST]
                yield build_finding(row, card.gpu, card.affected, "it is no longer there")
        for card in self._cards.values():
            if not card.missing:
                yield from _slowdown_findings(card, tasks)

    # Processing a reading

    def _update_cards(self, snapshot: Snapshot, tasks: Sequence[Task]) -> None:
        now, hardware = snapshot.mono_s, snapshot.hardware
        owners = devices.tasks_by_pid(tasks)
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
            if (
                gpu.parent_id is None and gpu.throttling is not None
            ):  # parts share their GPU's clocks
                card.slowdowns.add(now, gpu.throttling)
            card.affected = (card.affected or _recent_holders(card)) if gpu.state in _BROKEN else ()
            card.gpu = gpu

    def _mark_missing(self, gpu_id: str, card: _Card, now: float) -> None:
        if card.missing == 0:
            card.state_since_mono_s = now
            card.slowdowns = _Slowdowns()
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
        errors, last = gpu.ecc_uncorrected, card.ecc_last
        if errors is not None and last is not None and errors > last:
            card.ecc_new, card.ecc_grew_mono_s = card.ecc_new + errors - last, now
        card.ecc_last = last if errors is None else errors
        if now - card.ecc_grew_mono_s > _GROWN_S:
            card.ecc_new = 0

    def _update_xids(self, card: _Card, gpu: Gpu, now: float, now_unix_s: float) -> None:
        for event in gpu.xids:
            if (event.code, event.at_unix_s) in card.noted:
                # The driver reports an Xid first, the kernel log its program a moment later.
                unnamed = card.xids.get((event.code, None))
                if event.pid and unnamed is not None and unnamed.at_unix_s == event.at_unix_s:
                    _name_xid(card, event)
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
        card.xids = {key: each for key, each in card.xids.items() if each.mono_s >= since}


def _card_findings(card: _Card, now: float, unread: bool) -> Iterator[Finding]:
    """Yield the faults of a listed GPU. `unread`: it has not been read for a while."""
    gpu, holders = card.gpu, _recent_holders(card)
    since = now - card.state_since_mono_s
    codes = [code for code, _ in card.xids]
    state = STATES.get(gpu.state)
    if gpu.state in _BROKEN and state is not None:
        text = gpu_faults.describe_xids(codes)
        if text and gpu.state is GpuState.NEEDS_RESET:
            text = f"{state.text}; {text}"
        yield build_finding(state, gpu, card.affected, text)
        return
    if (gpu.state is GpuState.SILENT and since >= _SILENT_S) or (
        unread and gpu.state is not GpuState.ASLEEP
    ):
        yield build_finding(FAULTS[FaultKind.SILENT], gpu, holders)
    elif state is not None and gpu.state is GpuState.UNREADABLE and since >= _UNREADABLE_S:
        why = clean(gpu.notes[0], 120) if gpu.notes else "it cannot be watched"
        yield build_finding(state, gpu, (), f"{state.text}: {why}")
    if card.xids:
        row = gpu_faults.worst_xid_fault(codes)
        affected = (task for each in card.xids.values() for task in each.tasks)
        unknown = f": {row.text}" if row is UNKNOWN_XID else ""
        yield build_finding(row, gpu, affected, f"{gpu_faults.describe_xids(codes)}{unknown}")
    if gpu.remap_failed:
        yield build_finding(FAULTS[FaultKind.REMAP_FAILED], gpu, holders)
    if card.ecc_new:
        number = card.ecc_new
        text = f"{number} memory error{'s' if number > 1 else ''} that could not be corrected"
        yield build_finding(FAULTS[FaultKind.ECC], gpu, holders, text)
    if gpu.remap_pending:
        yield build_finding(FAULTS[FaultKind.REMAP_PENDING], gpu, holders)
    if gpu.recovery_action is not None:
        row = gpu_faults.RECOVERIES.get(gpu.recovery_action, gpu_faults.RECOVERIES["reset"])
        action = clean(gpu.recovery_action).replace("_", " ")
        text = f"the driver asks for a recovery: {action}"
        yield build_finding(row, gpu, holders, text)


def _slowdown_findings(card: _Card, tasks: Sequence[Task]) -> Iterator[Finding]:
    gpu = card.gpu
    for kind in sorted(card.slowdowns.found):
        users = devices.tasks_on_gpu(gpu.processes, devices.tasks_by_pid(tasks))
        on_it = [Contributor(task.key, task.name) for task in users]
        text = FAULTS[kind].text
        if kind is FaultKind.HEAT and gpu.temperature_c is not None:
            text += f" at {gpu.temperature_c:.0f} °C"
        yield build_finding(FAULTS[kind], gpu, on_it, text)


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
        return _build_driver_finding(FaultKind.UPDATED, updated, ())
    awake = [
        card
        for card in cards
        if not card.missing and card.gpu.parent_id is None
        and card.gpu.state is not GpuState.ASLEEP
    ]  # fmt: skip
    late = any(now - card.state_since_mono_s >= _SILENT_S for card in awake)
    silent = late and all(card.gpu.state is GpuState.SILENT for card in awake)
    fault = faults.get(_DRIVER)
    if not awake or not (unread or silent):
        return None
    if fault is None and len(awake) < 2:
        return None  # a single GPU gets a finding under its own name
    affected = (holder for card in awake for holder in _recent_holders(card))
    return _build_driver_finding(FaultKind.DRIVER, fault, affected)


def _build_driver_finding(
    kind: FaultKind, fault: Fault | None, affected: Iterable[Contributor], text: str = ""
) -> Finding:
    """Build a finding of the driver, with the reader's message if there is one."""
    remedy = "" if fault is None else clean(fault.remedy or "", 300)
    text = text if fault is None else clean(fault.message, 300).rstrip(".")
    return build_finding(FAULTS[kind], None, affected, text, remedy)


def _add_xid(card: _Card, mono_s: float, event: XidEvent) -> None:
    """Add an Xid with the program that the driver names, otherwise with every task on the GPU."""
    key, affected = (event.code, event.pid), _recent_holders(card)
    if event.pid in card.holders:
        affected = (card.holders[event.pid][0],)
    if key in card.xids:
        affected = _unique((*card.xids[key].tasks, *affected))
    elif len(card.xids) >= _MOST_XIDS:
        del card.xids[min(card.xids, key=lambda each: gpu_faults.xid_severity(each[0]))]
    card.xids[key] = _Xid(mono_s, event.at_unix_s, affected)


def _name_xid(card: _Card, event: XidEvent) -> None:
    """Give an Xid its program. Its place stays, because the first Xid is the cause."""
    unnamed, named = (event.code, None), (event.code, event.pid)
    found = card.xids[unnamed]
    if event.pid in card.holders:
        found = found._replace(tasks=(card.holders[event.pid][0],))
    card.xids = {
        named if key == unnamed else key: found if key == unnamed else each
        for key, each in card.xids.items()
    }


def _recent_holders(card: _Card) -> tuple[Contributor, ...]:
    """Return the tasks that are on the GPU, or were there when it last worked."""
    return _unique(
        holder for holder, at in card.holders.values() if card.last_ok_mono_s - at <= _LATELY_S
    )


def _unique(holders: Iterable[Contributor]) -> tuple[Contributor, ...]:
    return tuple(dict.fromkeys(holders))


class DeviceProblems:
    """Faults and slowdowns of GPUs and drivers."""

    def __init__(self) -> None:
        self._health = DeviceHealth()
        self._lasting: set[ResourceKey] = set()
        self._faults: dict[ProcessKey, tuple[float, str]] = {}
        # The last state of the agents on GPUs, including trainings that died with their GPU.
        self._agents: dict[ProcessKey, tuple[float, AgentState]] = {}

    @property
    def faults(self) -> dict[ProcessKey, str]:
        """Tasks that recently lost a GPU, with the fault."""
        return {key: text for key, (_, text) in self._faults.items()}

    def observe(
        self, observation: Observation, incidents: Mapping[ResourceKey, Incident]
    ) -> Iterator[Problem]:
        """
        Yield the problems of this sample, then the problems that ended.

        Args:
            observation: one sample of the machine.
            incidents: open incidents, by key.
        """
        self._lasting &= incidents.keys()
        tasks = tuple(observation.tasks.values())
        found: dict[ResourceKey, list[Finding]] = {}
        for finding in self._health.observe(observation.snapshot, tasks):
            found.setdefault(finding.key, []).append(finding)
        self._update_recent(observation, found)
        for key, findings in found.items():
            findings.sort(key=lambda each: -each.fault.stage)
            yield self._problem(key, findings, incidents.get(key), observation.snapshot.unix_s)
        for key, incident in incidents.items():
            if key not in found and is_condition(key) and key.kind is not ResourceKind.STALLED:
                yield self._ended_problem(key, incident, observation.snapshot)

    def _update_recent(
        self, observation: Observation, found: Mapping[ResourceKey, Sequence[Finding]]
    ) -> None:
        now = observation.snapshot.mono_s
        for finding in (each for findings in found.values() for each in findings):
            for task in finding.tasks if finding.fault.restart else ():
                self._faults[task.task] = now, f"{finding.label}: {finding.text}"
        if observation.snapshot.hardware.gpus:
            for key, agents in observation.agents.items():
                self._agents[key] = now, agents[0]
        for kept in (self._faults, self._agents):
            for key in [key for key, (at, _) in kept.items() if now - at > _ENDED_S]:
                del kept[key]

    def _problem(
        self,
        key: ResourceKey,
        findings: Sequence[Finding],
        incident: Incident | None,
        unix_s: float,
    ) -> Problem:
        first, worst = findings[0], findings[0].fault
        faults = [each.fault for each in findings]
        if any(each.lasting for each in faults):
            self._lasting.add(key)
        affected = tuple(dict.fromkeys(task for each in findings for task in each.tasks))
        affected = affected[:_MOST_AFFECTED]
        if not affected and incident is not None:
            affected = incident.contributors  # the tasks that it affected when it began
        topic = Topic.FAULT if key.kind is ResourceKind.GPU_HEALTH else Topic.SLOWED
        if worst.card_lost:
            topic = Topic.GPU_LOST
        agent = self._agents.get(affected[0].task, (0.0, None))[1] if affected else None
        work_lost = any(each.work_lost for each in faults)
        why = "; ".join(dict.fromkeys(each.text for each in findings))
        return Problem(
            key,
            first.label,
            worst.stage,
            why,
            reason=why,
            evidence={
                "card_works": int(not work_lost),
                "topic": topic.value,
                "trouble": worst.trouble.value,
                "label": first.label,
                "fatal": int(worst.restart),
                "name": affected[0].name if affected else None,
                "others": ", ".join(each.name for each in affected[1:4]) or None,
                "more": len(affected[4:]),
                "step": None if agent is None else agent.step,
                **rescue_figures(None if agent is None else agent.rescue, unix_s),
            },
            advice=tuple(dict.fromkeys(each.remedy for each in findings))[:_MOST_ADVICE],
            tasks=affected,
            facts=frozenset(each.trouble.value for each in faults),
            device_works=all(each.device_works for each in faults),
            work_lost=work_lost,
            when_off=worst.card_lost,
            quiet_s=_QUIET_S[worst.stage],
        )

    def _ended_problem(self, key: ResourceKey, incident: Incident, snapshot: Snapshot) -> Problem:
        # A GPU that is missing from the readings may work or not, so report nothing.
        answers = key.kind is not ResourceKind.GPU_HEALTH or any(
            gpu.state in _WORKING and key.subject in (gpu.id, "driver")
            for gpu in snapshot.hardware.gpus
        )
        return Problem(
            key,
            incident.label,
            Stage.OK,
            incident.why,
            reason=f"{incident.label} answers again" if key in self._lasting and answers else "",
            evidence={"topic": Topic.RESOLVED.value, "label": incident.label},
        )


def rescue_figures(rescue: RescueRecord | None, unix_s: float) -> Evidence:
    """
    Return where a rescue is, its step, and its age.

    Args:
        rescue: None: the task has no rescue.
        unix_s: current time.
    """
    return {
        "path": None if rescue is None else rescue.path,
        "rescue_step": None if rescue is None else rescue.step,
        "rescue_age_s": None if rescue is None else max(0.0, unix_s - rescue.saved_unix_s),
    }
