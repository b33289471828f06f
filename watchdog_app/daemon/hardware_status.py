"""
Cards, heat and power in the status object of docs/protocol.md. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from watchdog_app.core.diagnosis import gpu_faults, throttling
from watchdog_app.core.model.agent import AllocatorMemory
from watchdog_app.core.model.decisions import Incident, Stage
from watchdog_app.core.model.devices import TaskDevices, holders, listed
from watchdog_app.core.model.hardware import FIGURES, Gpu, Hardware
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import Snapshot, Task
from watchdog_app.core.model.resource import ResourceKind

_SEVERITIES = ("ok", "note", "warning", "critical")
_LEVELS = dict(zip(_SEVERITIES, Level, strict=False))
MOST_PROCESSES = 128  # a card; the object has to fit into a message


def gpus(
    snapshot: Snapshot, tasks: Sequence[Task], incidents: Sequence[Incident]
) -> list[dict[str, Any]]:
    """`gpus[]`: one entry a card, and one a part of a card (MIG)."""
    hardware = snapshot.hardware
    owners = holders(tasks) if hardware.gpus else {}
    found = []
    for gpu in hardware.gpus:
        seen = verdict(gpu, incidents)
        level = _LEVELS[seen["severity"]].name.lower()
        found.append(_gpu(gpu, hardware, owners) | {"verdict": seen, "level": level})
    return found


def raise_levels(found: dict[str, Any]) -> None:
    """
    Give each GPU the worst level of itself, its resources and its incidents.

    Args:
        found: the status object; its `gpus` are changed.
    """
    for gpu in found["gpus"]:
        subjects = (gpu["id"], f"{gpu['id']}/slowdown", f"{gpu['id']}/shutdown")
        levels = [Level.of(gpu)]
        levels += [
            Level.of(one)
            for one in found["ceilings"]
            if one["kind"] in ("gpu_memory", "temperature") and one["subject"] in subjects
        ]
        levels += [Level.of(one) for one in found["incidents"] if one["subject"] == gpu["id"]]
        gpu["level"] = max(levels).name.lower()


def verdict(gpu: Gpu, incidents: Sequence[Incident]) -> dict[str, Any]:
    """How a card is: by its state, or by an open incident of it or of the driver that is worse."""
    fault = gpu_faults.STATES.get(gpu.state)
    level = 0 if fault is None else fault.severity + 1
    found: dict[str, Any] = {
        "severity": _SEVERITIES[level],
        "title": None if fault is None else fault.title,
        "why": None if fault is None else fault.text,
        "remedy": None if fault is None else fault.remedy(gpu.index),
        "device_works": fault is None or fault.device_works,
        "work_lost": fault is not None and fault.restart,
    }
    for each in incidents:
        if each.resource.kind is not ResourceKind.GPU_HEALTH or each.resource.subject not in (
            gpu.id,
            gpu.parent_id,
            None if each.device_works else "driver",  # with an updated driver its cards go on
        ):
            continue
        reached = min(int(each.stage), len(_SEVERITIES) - 1)
        if reached >= max(level, Stage.WATCH):
            level = reached
            found["severity"] = _SEVERITIES[level]
            found["title"] = found["title"] or gpu_faults.incident_title(each.device_works)
            found |= {"why": each.why, "remedy": " ".join(each.advice) or None}
            found["device_works"] = found["device_works"] and each.device_works
            found["work_lost"] = found["work_lost"] or each.work_lost
    return found


def hardware(snapshot: Snapshot) -> dict[str, Any]:
    """`hardware`: heat and power of the machine itself."""
    found = snapshot.hardware
    power, throttling = found.cpu_power, found.cpu_throttling
    read = found.gpus_mono_s
    return {
        "driver_version": found.driver_version,
        "gpus_age_s": None if read is None else max(0.0, snapshot.mono_s - read),
        "temperatures": [
            {
                "key": each.key,
                "label": each.label,
                "celsius": each.celsius,
                "slowdown_c": each.slowdown_c,
                "shutdown_c": each.shutdown_c,
                "is_cpu": each.is_cpu,
            }
            for each in found.temperatures
        ],
        "fans": [{"label": each.label, "rpm": each.rpm} for each in found.fans],
        "batteries": [
            {
                "name": each.name,
                "percent": each.percent,
                "discharging": each.discharging,
                "energy_j": each.energy_j,
                "full_j": each.full_j,
                "power_w": each.power_w,
            }
            for each in found.batteries
        ],
        "on_mains": found.on_mains,
        "cpu_power_w": None if power is None else power.watts,
        "cpu_power_limit_w": None if power is None else power.limit_w,
        "cpu_throttle_events": None if throttling is None else throttling.events,
    }


def of_task(devices: TaskDevices | None) -> dict[str, Any]:
    """What a task holds on the cards; null and an empty list where it is on none."""
    if devices is None:
        return {"gpu_memory_bytes": None, "gpus": []}
    return {
        "gpu_memory_bytes": devices.memory_bytes,
        "gpus": [
            {
                "id": use.id,
                "uuid": use.uuid,
                "index": use.index,
                "memory_bytes": use.memory_bytes,
            }
            for use in devices.uses
        ],
    }


def allocator(memory: AllocatorMemory) -> dict[str, Any]:
    """One entry of an agent's `allocators[]`."""
    return {
        "device": memory.device,
        "gpu_uuid": memory.gpu_uuid,
        "used_bytes": memory.used_bytes,
        "limit_bytes": memory.limit_bytes,
        "peak_bytes": memory.peak_bytes,
        "retries": memory.retries,
        "ooms": memory.ooms,
    }


def _gpu(gpu: Gpu, hardware: Hardware, owners: Mapping[int, Task]) -> dict[str, Any]:
    processes = sorted(listed(gpu, hardware), key=lambda each: -(each.memory_bytes or 0))
    notes = list(gpu.notes)
    if len(processes) > MOST_PROCESSES:
        notes.append(f"{len(processes) - MOST_PROCESSES} more processes are on it")
    return {
        "index": gpu.index,
        "id": gpu.id,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "bus_id": gpu.bus_id,
        "parent_uuid": next(
            (each.uuid or each.id for each in hardware.gpus if each.id == gpu.parent_id),
            gpu.parent_id,
        ),
        "state": gpu.state.value,
        **{name: getattr(gpu, name) for name in FIGURES},
        "unified_memory": gpu.unified_memory,
        "throttle_reasons": throttling.in_order(gpu.throttling),
        "remap_pending": gpu.remap_pending,
        "remap_failed": gpu.remap_failed,
        "recovery_action": gpu.recovery_action,
        "xids": [
            {
                "code": each.code,
                "meaning": None
                if (row := gpu_faults.of_xid(each.code)) is gpu_faults.UNKNOWN_XID
                else row.text,
                "at_unix_s": each.at_unix_s,
                "pid": each.pid,
            }
            for each in gpu.xids
        ],
        "processes": [
            {
                "pid": each.pid,
                "task": None
                if (task := _owner(each.foreign, owners.get(each.pid))) is None
                else task.key.pid,
                "name": None if task is None else task.name,
                "memory_bytes": each.memory_bytes,
                "foreign": each.foreign,
            }
            for each in processes[:MOST_PROCESSES]
        ],
        "notes": notes,
    }


def _owner(foreign: bool, task: Task | None) -> Task | None:
    return None if foreign else task
