"""
The status object of docs/protocol.md, from what the last tick found. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base.text.quantities import size_above
from watchdog_app.core.explain.overview import Card, overview
from watchdog_app.core.model import devices
from watchdog_app.core.model.agent import AgentState, MemoryParts
from watchdog_app.core.model.decisions import Assessment, Forecast, Incident, Stage
from watchdog_app.core.model.devices import TaskDevices
from watchdog_app.core.model.hardware import gpu_label
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import Fault, ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import SPECS, Reading, is_condition
from watchdog_app.core.policy.engine import TickResult
from watchdog_app.daemon import hardware_status

SCHEMA_VERSION = 1
MOST_TASKS = 500  # in one object: it has to fit into a message; the largest are shown


@dataclass(frozen=True, slots=True)
class Look:
    """One tick as clients see it."""

    snapshot: Snapshot
    tasks: tuple[Task, ...]
    readings: tuple[Reading, ...]
    result: TickResult
    agents: Mapping[ProcessKey, AgentState] = field(default_factory=dict)  # by task


def status(
    look: Look | None,
    *,
    daemon: Mapping[str, Any],
    host_name: str,
    paused: Iterable[ProcessKey],
    guards: Mapping[ProcessKey, dict[str, Any]] | None = None,
    faults: Sequence[Fault],
    now_unix_s: float,
) -> dict[str, Any]:
    """The whole object; with no look yet it holds the daemon and the faults alone."""
    ours = set(paused)
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "time_unix_s": now_unix_s,
        "level": Level.UNKNOWN.name.lower(),
        "headline": "the daemon has not measured yet",
        "host": _host(look, host_name),
        "daemon": dict(daemon),
        "ceilings": [],
        "gpus": [],
        "hardware": None,
        "processes": [],
        "incidents": [],
        "errors": [
            {"source": fault.source, "message": fault.message, "remedy": fault.remedy}
            for fault in faults
        ],
    }
    if look is None:
        return found
    found["time_unix_s"] = look.snapshot.unix_s
    assessments = look.result.assessments
    found["ceilings"] = [_resource(r, assessments.get(r.key)) for r in look.readings]
    shown = look.tasks
    if len(shown) > MOST_TASKS:
        shown = tuple(sorted(shown, key=lambda task: -task.rss_bytes)[:MOST_TASKS])
        found["errors"].append(
            {
                "source": "status",
                "message": f"{len(look.tasks)} tasks are watched; "
                f"the {MOST_TASKS} that hold most memory are listed.",
                "remedy": None,
            }
        )
    found["gpus"] = hardware_status.gpus(look.snapshot, look.tasks, look.result.incidents)
    found["hardware"] = hardware_status.hardware(look.snapshot)
    on_cards = devices.by_task(look.snapshot.hardware, look.tasks)
    found["processes"] = [
        _task(task, look, task.key in ours, on_cards.get(task.key), (guards or {}).get(task.key))
        for task in shown
    ]
    found["incidents"] = [incident(each) for each in look.result.incidents]
    summary = overview(
        tasks=look.tasks,
        readings=look.readings,
        assessments=assessments,
        incidents=look.result.incidents,
        agents=look.agents,
        cards=[
            Card(
                gpu_label(gpu),
                Level.of(entry),
                entry["verdict"]["title"] or "",
            )
            for gpu, entry in zip(look.snapshot.hardware.gpus, found["gpus"], strict=True)
        ],
        faults=faults,
        paused=ours,
        held={
            key: f"{bag['pid']} {size_above(max(bag['limit_bytes'], bag['used_bytes']))}"
            for key, bag in (guards or {}).items()
            if bag["held"]
        },
    )
    found["level"], found["headline"] = summary.level.name.lower(), summary.headline
    hardware_status.raise_levels(found)  # afterwards: the headline names what fills up, not its GPU
    return found


def incident(each: Incident) -> dict[str, Any]:
    """An incident as clients and the journal see it."""
    broken = is_condition(each.resource)
    return {
        "id": each.id,
        "ceiling": each.resource.kind.value,
        "subject": each.resource.subject,
        "label": each.label,
        "blame": SPECS[each.resource.kind].blame.value,
        "stage": _stage(each.stage),
        "level": each.level.name.lower(),
        "peak": _stage(each.peak),
        "opened_unix_s": each.opened_unix_s,
        "closed_unix_s": each.closed_unix_s,
        "why": each.why,
        "advice": list(each.advice),
        "culprits": [
            {
                "pid": contributor.task.pid,
                "name": contributor.name,
                # Who was on a broken card has not filled anything.
                "slope_bytes_per_s": None if broken else _finite(contributor.slope_bytes_per_s),
                "share": None if broken else _finite(contributor.share),
            }
            for contributor in each.contributors
        ],
    }


def _host(look: Look | None, name: str) -> dict[str, Any]:
    if look is None:
        return {"name": name}
    host = look.snapshot.host
    return {
        "name": name,
        "memory_total_bytes": host.total_bytes,
        "memory_available_bytes": host.available_bytes,
        "swap_total_bytes": host.swap_total_bytes,
        "swap_free_bytes": host.swap_free_bytes,
        "swap_in_bytes_per_s": look.result.swap_in_bytes_per_s,
        "swap_out_bytes_per_s": look.result.swap_out_bytes_per_s,
        "shm_used_bytes": host.shm_used_bytes,
        "shm_limit_bytes": host.shm_limit_bytes,
        "pressure_some_avg10_percent": host.pressure.some_avg10 if host.pressure else None,
        "pressure_full_avg10_percent": host.pressure.full_avg10 if host.pressure else None,
    }


def _resource(reading: Reading, assessment: Assessment | None) -> dict[str, Any]:
    ratio = reading.used / reading.limit if reading.limit > 0 else None
    spec = SPECS[reading.key.kind]
    found: dict[str, Any] = {
        "kind": reading.key.kind.value,
        "subject": reading.key.subject,
        "label": reading.label,
        "used": _whole(reading.used, reading.unit),
        "limit": _whole(reading.limit, reading.unit),
        "unit": reading.unit,
        "ratio": ratio,
        "lethal": reading.fatal,
        "display": spec.display.value,
        "on_icon": spec.on_icon,
        "exhausted": (spec.exhausted_fatal if reading.fatal else "") or spec.exhausted,
        "note": reading.note,
        "stage": "ok",
        "level": "ok",
        "regime": "unknown",
        "slope_per_s": None,
        **_eta(None),
        "why": None,
        "tasks": [key.pid for key in reading.tasks],
    }
    if assessment is not None:
        found |= {
            "stage": _stage(assessment.stage),
            "level": assessment.level.name.lower(),
            "regime": assessment.regime.value,
            "slope_per_s": _finite(assessment.slope_per_s),
            **_eta(assessment.forecast),
            "why": assessment.why,
        }
    return found


def _task(
    task: Task,
    look: Look,
    ours: bool,
    on_cards: TaskDevices | None,
    bag: dict[str, Any] | None,
) -> dict[str, Any]:
    info = task.info
    outlook = look.result.tasks.get(task.key)
    return {
        "pid": task.key.pid,
        "start_time": task.key.start_time,
        "name": task.name,
        "kind": task.kind.value,
        "notebook": info.notebook,
        "script": info.script,
        "kernel_id": info.kernel_id,
        "user": info.user,
        "started_unix_s": info.started_unix_s,
        # A pause of a moment ago is not in the look yet; one that ended is gone from `ours`.
        "state": "paused" if ours else "held" if bag and bag["held"] else state(task),
        "paused_by_watchdog": ours,
        "children": len(task.members) - 1,
        "ram_bytes": task.rss_bytes,
        "swap_bytes": task.swap_bytes,
        **hardware_status.of_task(on_cards),
        "cpu_percent": _rounded(outlook.cpu_percent if outlook else None, 1),
        "trend_bytes_per_s": _finite(outlook.trend_bytes_per_s) if outlook else None,
        **_eta(outlook.forecast if outlook else None),
        "ceiling": outlook.resource.kind.value if outlook and outlook.resource else None,
        "stage": _stage(outlook.stage) if outlook else "ok",
        "level": outlook.level.name.lower() if outlook else "ok",
        "why": outlook.why if outlook else None,
        "agent": _agent(look.agents.get(task.key)),
        "airbag": bag,
    }


def state(task: Task) -> str:
    """One word for a process tree: what its user would say that it does."""
    letters = {member.state for member in task.members}
    if task.paused:
        return "paused"
    if task.members and task.members[0].state == "Z":
        return "zombie"
    for letter, word in (("R", "running"), ("D", "disk")):
        if letter in letters:
            return word
    return "sleeping"


def _agent(view: AgentState | None) -> dict[str, Any] | None:
    if view is None:
        return None
    rescue = view.rescue
    return {
        "pid": view.key.pid,
        "framework": view.framework,
        "directory": view.directory,
        "training": view.training,
        "step": view.step,
        "epoch": view.epoch,
        "batch": view.batch,
        "loss": view.loss,
        "step_s": view.step_s,
        "save_s": view.save_s,
        "state_bytes": view.state_bytes,
        "saving": view.saving,
        "allocators": [hardware_status.allocator(each) for each in view.allocators],
        "memory": _memory(view.memory),
        "rescue": None
        if rescue is None
        else {
            "path": rescue.path,
            "step": rescue.step,
            "bytes": rescue.bytes,
            "seconds": rescue.seconds,
            "saved_unix_s": rescue.saved_unix_s,
        },
    }


def _memory(parts: MemoryParts | None) -> dict[str, Any] | None:
    if parts is None:
        return None
    return {
        "batch_size": parts.batch_size,
        "weights_bytes": parts.weights_bytes,
        "gradients_bytes": parts.gradients_bytes,
        "optimizer_bytes": parts.optimizer_bytes,
        "activations_bytes": parts.activations_bytes,
        "resident_bytes": parts.resident_bytes,
        "base_bytes": parts.base_bytes,
        "buffers": [{"what": each.what, "bytes": each.bytes} for each in parts.buffers],
        "python_blocks": parts.python_blocks,
        "python_blocks_per_step": parts.python_blocks_per_step,
    }


def _eta(forecast: Forecast | None) -> dict[str, float | None]:
    if forecast is None:
        return {"eta_s": None, "eta_low_s": None, "eta_high_s": None}
    return {
        "eta_s": _finite(forecast.eta_s),
        "eta_low_s": _finite(forecast.low_s),
        "eta_high_s": _finite(forecast.high_s),
    }


def _stage(stage: Stage) -> str:
    return stage.name.lower()


def _whole(value: float, unit: str) -> float | int:
    return int(value) if unit == "bytes" and math.isfinite(value) else value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
