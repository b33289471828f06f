"""
The status for clients, built from the last sample, and `fit`, which makes it fit one message. Pure.

Names and paths come from other programs. A limit on each could not bound their sum without cutting
ordinary ones. So the status is shortened only if it does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import shortened
from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.client.jsonrpc import MAX_LINE_BYTES
from watchdog_app.core.diagnosis import gpu_faults
from watchdog_app.core.explain.phrases import describe_past
from watchdog_app.core.explain.status import overview
from watchdog_app.core.model import decisions, devices, hardware, machine, resource
from watchdog_app.core.model import status as records
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Stage
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import SPECS, ResourceKey, ResourceKind
from watchdog_app.core.policy.engine import TickResult

_SEVERITIES = ("ok", "note", "warning", "critical")
_LEVELS = dict(zip(_SEVERITIES, Level, strict=False))

_ENVELOPE_BYTES = 16 * 1024  # for the message around it, and the sentence about omissions
_LARGE_ENTRY_BYTES = 8 * 1024  # an ordinary task takes a tenth of it
_LARGE_PART_BYTES = 64 * 1024
_MOST_ITEMS = 16  # in a list of an entry that is too large
_MOST_CHARS = 200
_MOST_FOREIGN_CHARS = 40  # non-ASCII; each can take twelve bytes
_STAGES = ("ok", "watch", "warn", "save", "pause")

Entry = Mapping[str, Any]
Rank = Callable[[Entry], tuple[Any, ...]]
# Largest share of the message for each list, the order of its entries, and its noun. Lists further
# down may use what earlier ones leave free.
_LISTS: dict[str, tuple[float, Rank, str]] = {
    "problems": (1 / 16, lambda _: (), "problems"),
    "incidents": (
        1 / 8,
        lambda each: (each["closed_unix_s"] is not None, _stage_order(each)),
        "incidents",
    ),
    # Resources of single processes are many; the machine has one of each.
    "resources": (
        3 / 16,
        lambda each: (_stage_order(each), each["kind"] == "rlimit_as", -(each["ratio"] or 0)),
        "resources",
    ),
    "gpus": (1 / 8, lambda _: (), "GPUs"),
    "tasks": (
        1.0,
        lambda each: (
            _stage_order(each),
            each["state"] not in ("paused", "stopped"),
            -(each["ram_bytes"] or 0),
        ),
        "tasks",
    ),
}


@dataclass(frozen=True, slots=True)
class AssessedSample:
    """One sample and the engine's result for it."""

    snapshot: machine.Snapshot
    tasks: tuple[machine.Task, ...]
    readings: tuple[resource.Reading, ...]
    result: TickResult
    agents: Mapping[ProcessKey, AgentState] = field(default_factory=dict)  # by task


def status(
    sample: AssessedSample | None,
    *,
    daemon: records.Daemon,
    host_name: str,
    paused: Iterable[ProcessKey],
    guards: Mapping[ProcessKey, records.Guard] | None = None,
    faults: Sequence[machine.Fault],
    now_unix_s: float,
) -> records.Status:
    """
    The whole status.

    Args:
        sample: the last sample; None before the first: only the daemon and the faults are known.
        daemon: the record of this daemon.
        host_name: the name of the machine.
        paused: tasks that watchdog has paused.
        guards: guards by task.
        faults: faults in force.
        now_unix_s: the current time, used before the first sample.
    """
    problems = [records.Problem.from_object(each) for each in faults]
    if sample is None:
        return records.Status(
            schema_version=records.SCHEMA_VERSION,
            time_unix_s=now_unix_s,
            level=Level.UNKNOWN,
            headline="the daemon has not measured yet",
            host=records.Host(name=host_name),
            daemon=daemon,
            problems=tuple(problems),
        )
    guards, paused_keys, result = guards or {}, set(paused), sample.result
    resources = tuple(_resource(each, result) for each in sample.readings)
    incidents = tuple(incident(each) for each in result.incidents)
    owners = devices.tasks_by_pid(sample.tasks) if sample.snapshot.hardware.gpus else {}
    gpus = tuple(_gpu(gpu, sample, owners) for gpu in sample.snapshot.hardware.gpus)
    on_gpus = devices.devices_by_task(sample.snapshot.hardware, sample.tasks)
    found = records.Status(
        schema_version=records.SCHEMA_VERSION,
        time_unix_s=sample.snapshot.unix_s,
        host=_host(sample, host_name),
        daemon=daemon,
        resources=resources,
        gpus=gpus,
        hardware=_hardware(sample.snapshot),
        tasks=tuple(
            _task(
                task,
                sample,
                task.key in paused_keys,
                on_gpus.get(task.key, ()),
                guards.get(task.key),
            )
            for task in sample.tasks
        ),
        incidents=incidents,
        problems=tuple(problems),
    )
    found.level, found.headline = overview(found)
    # Only after the overview: its headline names the exhausted resource, not the GPU that has it.
    raise_levels(gpus, resources, incidents)
    return found


def incident(each: decisions.Incident) -> records.Incident:
    """An incident as clients and the journal see it."""
    is_fault = resource.is_condition(each.resource)
    is_gpu_fault = each.resource.kind is ResourceKind.GPU_HEALTH
    severity = _SEVERITIES[min(each.stage, len(_SEVERITIES) - 1)]
    return records.Incident.from_object(
        each,
        resource=kind_name(each.resource),
        subject=each.resource.subject,
        blame=SPECS[each.resource.kind].blame.value,
        stage=each.stage.name.lower(),
        peak=each.peak.name.lower(),
        severity=severity if is_fault else None,
        device_works=each.device_works if is_gpu_fault else None,
        reason=each.why,
        contributors=_contributors(each.contributors, is_fault=is_fault),
    )


def _contributors(
    found: Iterable[decisions.Contributor], *, is_fault: bool = False
) -> tuple[records.Contributor, ...]:
    return tuple(
        records.Contributor(
            pid=each.task.pid,
            name=each.name,
            # A task that used a broken GPU has not filled anything.
            slope_bytes_per_s=None if is_fault else each.slope_bytes_per_s,
            share=None if is_fault else each.share,
        )
        for each in found
    )


def kind_name(key: ResourceKey) -> str:
    """The name of a resource's kind for clients."""
    if key.kind is ResourceKind.GPU_HEALTH:
        return "gpu_fault"
    return key.kind.value


def task_state(task: machine.Task) -> str:
    """One word for the state of a process tree."""
    letters = {member.state for member in task.members}
    if task.paused:
        return "paused"
    if task.members and task.members[0].state == "Z":
        return "zombie"
    for letter, word in (("R", "running"), ("D", "disk")):
        if letter in letters:
            return word
    return "sleeping"


def raise_levels(
    gpus: Iterable[records.Gpu],
    resources: Iterable[records.Resource],
    incidents: Iterable[records.Incident],
) -> None:
    """
    Give each GPU the worst level of itself, its resources and its incidents.

    Args:
        gpus: these are changed.
        resources: of the same status.
        incidents: of the same status.
    """
    for gpu in gpus:
        subjects = (gpu.id, f"{gpu.id}/shutdown")
        levels = [gpu.level]
        levels += [
            each.level
            for each in resources
            if each.kind in ("gpu_memory", "temperature") and each.subject in subjects
        ]
        levels += [each.level for each in incidents if each.subject == gpu.id]
        gpu.level = max(levels)


def _host(sample: AssessedSample, name: str) -> records.Host:
    host, result = sample.snapshot.host, sample.result
    return records.Host.from_object(
        host,
        name=name,
        memory_total_bytes=host.total_bytes,
        memory_available_bytes=host.available_bytes,
        swap_in_bytes_per_s=result.swap.in_per_s,
        swap_out_bytes_per_s=result.swap.out_per_s,
        pressure_some_avg10_percent=host.pressure.some_avg10 if host.pressure else None,
        pressure_full_avg10_percent=host.pressure.full_avg10 if host.pressure else None,
    )


def _resource(reading: resource.Reading, result: TickResult) -> records.Resource:
    spec, assessment = SPECS[reading.key.kind], result.assessments.get(reading.key)
    blamed = result.blamed.get(reading.key, decisions.NOBODY)
    found = records.Resource.from_object(
        reading,
        kind=kind_name(reading.key),
        subject=reading.key.subject,
        used=_whole_bytes(reading.used, reading.unit),
        limit=_whole_bytes(reading.limit, reading.unit),
        ratio=reading.used / reading.limit if reading.limit > 0 else None,
        display=spec.display,
        on_icon=spec.on_icon,
        exhausted=spec.exhausted,
        stage="ok",
        growth="unknown",
        tasks=tuple(key.pid for key in reading.tasks),
        contributors=_contributors(blamed.contributors),
    )
    if assessment is not None:
        found.stage = assessment.stage.name.lower()
        found.level = assessment.level
        found.growth = assessment.regime.value
        found.slope_per_s = assessment.slope_per_s
        found.reason = assessment.why
        _set_eta(found, assessment.forecast)
    return found


def _set_eta(record: records.Resource | records.Task, forecast: decisions.Forecast | None) -> None:
    if forecast is not None:
        record.eta_s, record.eta_low_s = forecast.eta_s, forecast.low_s
        record.eta_high_s = number_or_none(forecast.high_s)  # infinite: unbounded


def _task(
    task: machine.Task,
    sample: AssessedSample,
    paused_by_us: bool,
    on_gpus: Sequence[records.GpuUse],
    guard: records.Guard | None,
) -> records.Task:
    state = "stopped" if guard and guard.stopped else task_state(task)
    outlook, agent = sample.result.tasks.get(task.key), sample.agents.get(task.key)
    found = records.Task.from_object(
        task.info,
        pid=task.key.pid,
        start_time=task.key.start_time,
        name=task.name,
        kind=task.kind.value,
        # A recent pause is not in the sample yet; an ended one is not in `paused` any more.
        state="paused" if paused_by_us else state,
        paused_by_watchdog=paused_by_us,
        children=len(task.members) - 1,
        ram_bytes=task.rss_bytes,
        swap_bytes=task.swap_bytes,
        gpu_memory_bytes=devices.total_memory_bytes(on_gpus) if on_gpus else None,
        gpus=tuple(on_gpus),
        stage="ok",
        framework=agent.framework if agent else task.framework,
        can_save=_can_save(agent, unsaved=task.key in sample.result.unsaved),
        agent=_agent(agent) if agent else None,
        guard=guard,
    )
    past = sample.result.past.get(task.key)
    if past is not None:
        given = guard.limit_bytes if guard and guard.state != "unlimited" else None
        found.past = describe_past(past, task.name, given)
        found.past_verdict = past.verdict.value
        found.expected_bytes = past.expected or None
    if outlook is not None:
        found.cpu_percent = None if outlook.cpu_percent is None else round(outlook.cpu_percent, 1)
        found.slope_bytes_per_s = outlook.trend_bytes_per_s
        found.resource = kind_name(outlook.resource) if outlook.resource else None
        nearest = outlook.assessment
        if nearest is not None:
            found.stage, found.level = nearest.stage.name.lower(), nearest.level
            found.reason = nearest.why
            _set_eta(found, nearest.forecast)
    return found


def _can_save(agent: AgentState | None, *, unsaved: bool) -> bool | None:
    if agent is not None and agent.training:
        return not agent.outdated
    return False if unsaved else None


def _agent(agent: AgentState) -> records.Agent:
    rescue = agent.rescue
    return records.Agent.from_object(
        agent,
        pid=agent.key.pid,
        resumes_itself=None if rescue is None else not rescue.by_lines,
        rescue=rescue and records.Rescue.from_object(rescue),
    )


def _gpu(
    gpu: hardware.Gpu, sample: AssessedSample, owners: Mapping[int, machine.Task]
) -> records.Gpu:
    health = gpu_health(gpu, sample.result.incidents)
    processes = sorted(
        devices.listed_processes(gpu, sample.snapshot.hardware),
        key=lambda each: -(each.memory_bytes or 0),
    )
    return records.Gpu.from_object(
        gpu,
        partition=hardware.partition(gpu),
        state=gpu.state.value,
        level=_LEVELS[health.severity],
        health=health,
        throttling=None if gpu.throttling is None else _sort_clock_events(gpu.throttling),
        events=tuple(
            records.GpuEvent.from_object(
                each, text=None if row is gpu_faults.UNKNOWN_XID else row.text
            )
            for each in gpu.xids
            for row in (gpu_faults.xid_fault(each.code),)
        ),
        processes=tuple(_gpu_process(each, owners) for each in processes),
        notes=gpu.notes,
    )


def _sort_clock_events(events: frozenset[str]) -> tuple[str, ...]:
    """Return the known events in the order of `ClockEvent`, then the others by name."""
    known = [event.value for event in hardware.ClockEvent if event in events]
    return (*known, *sorted(events - set(known)))


def _gpu_process(
    process: hardware.GpuProcess, owners: Mapping[int, machine.Task]
) -> records.GpuProcess:
    task = None if process.foreign else owners.get(process.pid)
    return records.GpuProcess.from_object(
        process, task=task.key.pid if task else None, name=task.name if task else process.name
    )


def gpu_health(gpu: hardware.Gpu, incidents: Collection[decisions.Incident]) -> records.Health:
    """
    The health of a GPU: from its state, or from a worse open incident of it or its driver.

    Args:
        gpu: as last read.
        incidents: the open incidents.
    """
    fault = gpu_faults.STATES.get(gpu.state)
    worst = 0 if fault is None else int(fault.stage)
    found = records.Health(severity=_SEVERITIES[worst], device_works=True)
    if fault is not None:
        found.title, found.reason = fault.title, fault.text
        found.remedy = fault.remedy(gpu.index, gpu.name)
        found.device_works, found.work_lost = fault.device_works, fault.restart
    for each in incidents:
        if each.resource.kind is not ResourceKind.GPU_HEALTH or each.resource.subject not in (
            gpu.id,
            gpu.parent_id,
            # with an updated driver, its GPUs keep working
            None if each.device_works else "driver",
        ):
            continue
        reached = min(int(each.stage), len(_SEVERITIES) - 1)
        if reached >= max(worst, Stage.WATCH):
            worst = reached
            found.severity = _SEVERITIES[worst]
            found.title = found.title or gpu_faults.incident_title(each.device_works)
            found.reason, found.remedy = each.why, " ".join(each.advice) or None
            found.device_works = found.device_works and each.device_works
            found.work_lost = found.work_lost or each.work_lost
    return found


def _hardware(snapshot: machine.Snapshot) -> records.Hardware:
    found = snapshot.hardware
    read_mono_s = found.gpus_mono_s
    return records.Hardware.from_object(
        found,
        gpus_age_s=None if read_mono_s is None else max(0.0, snapshot.mono_s - read_mono_s),
    )


def _whole_bytes(value: float, unit: str) -> float:
    return int(value) if unit == "bytes" and abs(value) < float("inf") else value


def fit(status: dict[str, Any], most_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
    """
    The same status with as many tasks, resources and incidents as one message holds.

    Tasks that are in danger or paused come first, then the largest. Long texts and lists of too
    large entries are cut. `problems` says how many entries are left out.

    Args:
        status: as `core.model.status.Status` encodes it.
        most_bytes: size of the message.
    """
    found = dict(status)
    for name in ("host", "daemon", "hardware"):
        if _size(found[name]) > _LARGE_PART_BYTES:
            found[name] = _truncate(found[name])
    rest = {name: value for name, value in found.items() if name not in _LISTS}
    left = most_bytes - _ENVELOPE_BYTES - _size(rest)
    missing = []
    for name, (share, rank, word) in _LISTS.items():
        kept, size = _fit_entries(status[name], min(left, int(share * most_bytes)), rank)
        left -= size
        found[name] = kept
        if len(kept) < len(status[name]):
            missing.append(f"{len(status[name]) - len(kept)} of {len(status[name])} {word}")
    left_out = f" Left out: {', '.join(missing)}." if missing else ""
    message = f"The status is too long for one message: long texts in it are cut.{left_out}"
    found["problems"] = [
        *found["problems"],
        {"source": "status", "message": message, "remedy": None},
    ]
    return found


def _fit_entries(entries: list[Entry], room: int, rank: Rank) -> tuple[list[Entry], int]:
    """The entries that fit, chosen by rank and kept in their order; and their size in bytes."""
    chosen: dict[int, Entry] = {}
    used = 0
    for index in sorted(range(len(entries)), key=lambda index: rank(entries[index])):
        entry = entries[index]
        size = _size(entry) + 1
        if size > _LARGE_ENTRY_BYTES:
            entry = _truncate(entry)
            size = _size(entry) + 1
        if used + size <= room:
            chosen[index] = entry
            used += size
    return [chosen[index] for index in sorted(chosen)], used


def _stage_order(entry: Entry) -> int:
    return -_STAGES.index(entry["stage"])


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def _truncate(value: Any) -> Any:
    if isinstance(value, str):
        return shortened(value, _MOST_CHARS if value.isascii() else _MOST_FOREIGN_CHARS)
    if isinstance(value, Mapping):
        return {key: _truncate(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_truncate(item) for item in value[:_MOST_ITEMS]]
    return value
