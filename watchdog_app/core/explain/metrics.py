"""
The status as metrics for Prometheus and tools that read its format. Pure.

Names of tasks are the only labels that users choose. At most `MOST_TASKS` of them become labels,
so that a machine with many programs does not fill a metrics server.

Source: the OpenMetrics 1.0 specification; Prometheus text format 0.0.4.
"""

from __future__ import annotations

import math

from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.decisions import DecisionKind, OutcomeStatus
from watchdog_app.core.model.exits import CauseKind, cause_spec
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from watchdog_app.core.model.status import Daemon, Gpu, Resource, Status, Task

    Labels = dict[str, str]
    Sample = tuple[str, Labels, float | None]

MOST_TASKS = 20
_MOST_RESOURCES = 100
_OF_TASKS = ("guard", "rlimit_as", "gpu_allocator", "walltime")  # limits of one task
OTHERS = "(others)"
_LEVELS = ", ".join(f"{each.value} {each.name.lower()}" for each in Level)

# Name of each metric, in the order of the output: type and help text.
METRICS: dict[str, tuple[str, str]] = {
    "watchdog_build_info": ("gauge", "Version of the daemon, as a label."),
    "watchdog_sample_timestamp_seconds": ("gauge", "Time of the last sample."),
    "watchdog_level": ("gauge", f"Highest level of all parts: {_LEVELS}."),
    "watchdog_problems": ("gauge", "Parts that watchdog cannot watch."),
    "watchdog_incidents": ("gauge", "Open incidents by level."),
    "watchdog_resource_level": ("gauge", f"Level of a resource: {_LEVELS}."),
    "watchdog_resource_used_ratio": ("gauge", "Used part of a resource; 1 is its limit."),
    "watchdog_resource_used_bytes": ("gauge", "Used amount of a resource that has a size."),
    "watchdog_resource_limit_bytes": ("gauge", "Limit of a resource that has a size."),
    "watchdog_resource_growth_bytes_per_second": ("gauge", "Growth of a resource with a size."),
    "watchdog_resource_eta_seconds": (
        "gauge",
        "Predicted time until a resource is exhausted: median, and bounds of the 80 % interval.",
    ),
    "watchdog_gpu_level": ("gauge", f"Level of a GPU: {_LEVELS}."),
    "watchdog_gpu_memory_used_bytes": ("gauge", "Used memory of a GPU."),
    "watchdog_gpu_memory_total_bytes": ("gauge", "All memory of a GPU."),
    "watchdog_gpu_utilization_ratio": ("gauge", "Part of the time in which the GPU computed."),
    "watchdog_gpu_temperature_celsius": ("gauge", "Temperature of a GPU."),
    "watchdog_gpu_power_watts": ("gauge", "Power draw of a GPU."),
    "watchdog_tasks": ("gauge", "Python and Jupyter tasks that the daemon watches."),
    "watchdog_task_level": ("gauge", f"Level of the tasks of this name: {_LEVELS}."),
    "watchdog_task_ram_bytes": ("gauge", "Resident memory of the tasks of this name."),
    "watchdog_task_swap_bytes": ("gauge", "Swapped-out memory of the tasks of this name."),
    "watchdog_task_gpu_memory_bytes": ("gauge", "GPU memory of the tasks of this name."),
    "watchdog_task_eta_seconds": (
        "gauge",
        "Predicted time until the first resource of these tasks is exhausted.",
    ),
    "watchdog_task_unsaved": ("gauge", "Trainings of this name that no agent can save."),
    "watchdog_task_paused": ("gauge", "Tasks of this name that watchdog has stopped."),
    "watchdog_task_rescue_timestamp_seconds": ("gauge", "Time of the last rescue."),
    "watchdog_actions": ("counter", "Notifications, saves, pauses and resumes by result."),
    "watchdog_deaths": ("counter", "Unwanted ends of tasks by cause."),
    "watchdog_daemon_samples": ("counter", "Samples that the daemon took."),
    "watchdog_daemon_missed_samples": ("counter", "Samples that came late."),
    "watchdog_daemon_resident_memory_bytes": ("gauge", "Resident memory of the daemon."),
    "watchdog_daemon_cpu_ratio": ("gauge", "Use of one core by the daemon, over a minute."),
    "watchdog_daemon_protection": ("gauge", "1: watchdog acts; 0: it only watches."),
}


def metrics_text(status: Status, *, open_metrics: bool = True) -> str:
    """
    The metrics of a status.

    Args:
        status: the status of the daemon.
        open_metrics: False: the older text format, for the textfile collector of node_exporter.
    """
    samples: dict[str, dict[str, str]] = {}  # by metric: values by labels, which are unique
    for name, labels, value in _samples(status):
        if value is not None:
            inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
            shown = f"{{{inner}}}" if inner else ""
            samples.setdefault(name, {}).setdefault(shown, _format(value))
    lines = []
    for name, (kind, help_) in METRICS.items():
        if name not in samples:
            continue
        full = f"{name}_total" if kind == "counter" else name
        family = name if open_metrics else full
        lines += [f"# HELP {family} {help_}", f"# TYPE {family} {kind}"]
        lines += [f"{full}{labels} {value}" for labels, value in samples[name].items()]
    return "\n".join([*lines, "# EOF"] if open_metrics else lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format(value: float) -> str:
    if not math.isfinite(value):
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")
    return str(int(value)) if value == int(value) else repr(float(value))


def _samples(status: Status) -> Iterator[Sample]:
    yield "watchdog_sample_timestamp_seconds", {}, status.time_unix_s
    yield "watchdog_level", {}, status.level
    yield "watchdog_problems", {}, len(status.problems)
    by_name = _tasks_by_name(status.tasks)
    for level in Level:
        count = sum(each.level is level for each in status.incidents)
        yield "watchdog_incidents", {"level": level.name.lower()}, count
    worst_first = sorted(status.resources, key=lambda each: (-each.level, -(each.ratio or 0.0)))
    for resource in worst_first[:_MOST_RESOURCES]:
        yield from _resource(resource, status, by_name)
    for gpu in status.gpus:
        yield from _gpu(gpu)
    yield "watchdog_tasks", {}, len(status.tasks)
    for name, tasks in by_name.items():
        yield from _tasks(name, tasks)
    if status.daemon is not None:
        yield from _daemon(status.daemon)


def _resource(resource: Resource, status: Status, names: Container[str]) -> Iterator[Sample]:
    labels = {"kind": resource.kind, "name": _resource_name(resource, status, names)}
    yield "watchdog_resource_level", labels, resource.level
    yield "watchdog_resource_used_ratio", labels, resource.ratio
    if resource.unit == "bytes":
        yield "watchdog_resource_used_bytes", labels, resource.used
        yield "watchdog_resource_limit_bytes", labels, resource.limit
        yield "watchdog_resource_growth_bytes_per_second", labels, resource.slope_per_s
    high_s = resource.eta_high_s
    if resource.eta_s is not None and high_s is None:
        high_s = math.inf
    bounds = {"low": resource.eta_low_s, "median": resource.eta_s, "high": high_s}
    for bound, eta_s in bounds.items():
        yield "watchdog_resource_eta_seconds", {**labels, "bound": bound}, eta_s


def _resource_name(resource: Resource, status: Status, names: Container[str]) -> str:
    """
    A name without the pid or the path of a task; of equal resources the worst is a series.

    Args:
        resource: a resource of the status.
        status: has its task.
        names: tasks of other names are `OTHERS`.
    """
    if resource.kind == "disk":
        return "rescues"
    if resource.kind in _OF_TASKS:
        task = status.task(resource.tasks[0]) if resource.tasks else None
        name = clean(task.name or "") if task is not None else OTHERS
        return name if name in names else OTHERS
    return clean(resource.label or resource.kind)


def _gpu(gpu: Gpu) -> Iterator[Sample]:
    labels = {
        "gpu": "" if gpu.index is None else str(gpu.index),
        "id": clean(gpu.id or ""),
        "name": clean(gpu.name or ""),
    }
    yield "watchdog_gpu_level", labels, gpu.level
    yield "watchdog_gpu_memory_used_bytes", labels, gpu.memory_used_bytes
    yield "watchdog_gpu_memory_total_bytes", labels, gpu.memory_total_bytes
    yield "watchdog_gpu_utilization_ratio", labels, _ratio(gpu.utilization_percent)
    yield "watchdog_gpu_temperature_celsius", labels, gpu.temperature_c
    yield "watchdog_gpu_power_watts", labels, gpu.power_w


def _tasks_by_name(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """
    Tasks by name; those beyond the first `MOST_TASKS` names as one group.

    Highest level and most memory come first. Doubled memory changes the place, a little does not.
    """
    found: dict[str, list[Task]] = {}
    for task in sorted(
        tasks, key=lambda t: (-t.level, -(t.ram_bytes or 0).bit_length(), t.name or "", t.pid)
    ):
        name = clean(task.name or "")
        known = name in found or len(found) < MOST_TASKS
        found.setdefault(name if known else OTHERS, []).append(task)
    return found


def _tasks(name: str, tasks: Sequence[Task]) -> Iterator[Sample]:
    labels = {"task": name}
    rescues = [each.agent.rescue for each in tasks if each.agent and each.agent.rescue]
    yield "watchdog_task_level", labels, max(each.level for each in tasks)
    for field in ("ram_bytes", "swap_bytes", "gpu_memory_bytes"):
        yield f"watchdog_task_{field}", labels, _sum([getattr(each, field) for each in tasks])
    ends = [each.eta_s for each in tasks if each.eta_s is not None]
    yield "watchdog_task_eta_seconds", labels, min(ends, default=None)
    yield "watchdog_task_unsaved", labels, sum(each.can_save is False for each in tasks)
    yield "watchdog_task_paused", labels, sum(each.waits for each in tasks)
    saved = [each.saved_unix_s for each in rescues if each.saved_unix_s is not None]
    yield "watchdog_task_rescue_timestamp_seconds", labels, max(saved, default=None)


def _daemon(daemon: Daemon) -> Iterator[Sample]:
    yield "watchdog_build_info", {"version": clean(daemon.version or "unknown")}, 1
    # A counter begins at 0: Prometheus sees no increase in a series that begins at 1.
    actions = {(each.what, each.result): each.count for each in daemon.actions}
    for action in DecisionKind:
        for result in OutcomeStatus:
            labels = {"action": action.value, "result": result.value}
            yield "watchdog_actions", labels, actions.get((action, result), 0)
    deaths = {each.what: each.count for each in daemon.deaths}
    for cause in CauseKind:
        if not cause_spec(cause).by_itself:
            yield "watchdog_deaths", {"cause": cause.value}, deaths.get(cause, 0)
    yield "watchdog_daemon_samples", {}, daemon.samples
    yield "watchdog_daemon_missed_samples", {}, daemon.missed_samples
    yield "watchdog_daemon_resident_memory_bytes", {}, daemon.rss_bytes
    yield "watchdog_daemon_cpu_ratio", {}, _ratio(daemon.cpu_percent)
    if daemon.protection is not None:
        yield "watchdog_daemon_protection", {}, daemon.protection.on is not False


def _sum(values: Sequence[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
