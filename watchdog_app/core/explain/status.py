"""The state of a task, an incident or the machine in sentences: `watchdog explain`, headlines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from watchdog_app.base.text import quantities
from watchdog_app.base.text.plain import capitalize_first, clean, shell_argument
from watchdog_app.base.text.quantities import (
    format_bytes,
    format_duration,
    format_rate,
    limit_above,
)
from watchdog_app.base.text.terminal import counted
from watchdog_app.core.diagnosis import gpu_faults
from watchdog_app.core.explain import phrases
from watchdog_app.core.explain.agent_lines import agent_line, contributor_line, unsaved_reason
from watchdog_app.core.explain.saving import next_start_command, saving_notes
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Guard, Incident, MemoryParts, Resource, Status, Task

_STATES = {"disk": "waiting for the disk", "zombie": "ended, not yet collected by its parent"}

# Kinds of movement, for people.
_MOVES = {
    "flat": "steady",
    "linear": "growing steadily",
    "saturating": "growing ever more slowly",
    "staircase": "growing in steps",
    "sawtooth": "going up and down",
    "burst": "growing in a burst",
}
_SOON_S = 120.0  # a predicted exhaustion within this time is named before the evidence is certain
_BLINDING = ("gpu", "hardware", "machine", "engine")  # sources of problems that hide a danger


def describe_task(status: Status, task: Task, now_unix_s: float) -> str:
    """
    Describe one task: its usage, its forecast, its nearest limit, its incidents.

    Args:
        status: the status of the machine.
        task: one of its tasks.
        now_unix_s: current time, for ages.
    """
    lines = list(_usage(task))
    above = _resources_of_task(status, task)
    lines += _outlook_lines(status, task, above)
    lines += [] if task.past is None else [f"Earlier runs: {clean(task.past, 300)}."]
    if above:
        lines += ["", "Limits above it:", *_resource_lines(above)]
    lines += ["", *_agent_lines(task, now_unix_s)]
    for incident in task_incidents(status, task):
        lines += ["", describe_incident(incident, now_unix_s)]
    return "\n".join(lines)


def task_incidents(status: Status, task: Task) -> list[Incident]:
    """
    Return the open incidents that name a task, or whose resource limits it.

    Args:
        status: the status of the machine.
        task: one of its tasks.
    """
    above = {(each.kind, each.subject) for each in _resources_of_task(status, task)}
    return [
        each
        for each in status.incidents
        if _names(each, task) or (each.resource, each.subject) in above
    ]


def describe_machine(status: Status, now_unix_s: float) -> str:
    """
    Describe the machine: its most urgent fact, the relevant resources, the open incidents.

    Args:
        status: the status of the machine.
        now_unix_s: current time, for ages.
    """
    if status.level is Level.UNKNOWN:
        return "The daemon has not measured yet. Ask again in some seconds."
    watched = counted(len(status.tasks), "Python task")
    lines = [
        f"{status.level.word}: {clean(status.headline, 300)}. {watched} watched.",
        "",
        "Limits:",
        *_resource_lines(status.resources),
    ]
    for incident in status.incidents:
        lines += ["", describe_incident(incident, now_unix_s)]
    if not status.incidents:
        lines += ["", "No warning is open."]
    return "\n".join(lines)


def describe_incident(incident: Incident, now_unix_s: float) -> str:
    """
    Describe one incident: its level, age, reason, tasks and advice.

    Args:
        incident: open or closed.
        now_unix_s: current time, for its age.
    """
    since = format_duration(max(0.0, now_unix_s - (incident.opened_unix_s or now_unix_s)))
    label = clean(incident.label or incident.resource, 120)
    lines = [
        f"{label}: {incident.level.fault.lower()}, noticed {since} ago.",
        f"  Why: {clean(incident.reason or '?', 300)}.",
    ]
    lines += (f"  {contributor_line(incident, each)}" for each in incident.contributors)
    lines += (f"  To do: {line}" for line in incident.advice)
    if incident.resource == "stalled":
        tasks = (shell_argument(each.name or "", each.pid or 0) for each in incident.contributors)
        lines += (f"  See what each thread does: watchdog stacks {task}" for task in tasks)
    return "\n".join(lines)


def _resources_of_task(status: Status, task: Task) -> list[Resource]:
    return [each for each in status.resources if task.pid in each.tasks]


def _names(incident: Incident, task: Task) -> bool:
    return any(each.pid == task.pid for each in incident.contributors)


def _usage(task: Task) -> Iterator[str]:
    """Yield the state of a task, and its memory in RAM, in swap and on the GPUs."""
    state = _STATES.get(task.state or "", task.state)
    if task.guard is not None and task.guard.stopped:
        state = "stopped at its memory limit by its guard"
    more = f", {counted(task.children, 'worker')}" if task.children else ""
    kind = phrases.kind_text(task.kind)
    yield f"{clean(task.name or '?')} ({kind}, pid {task.pid}): {state}{more}."
    cpu = task.cpu_percent
    slope = task.slope_bytes_per_s
    trend = "" if slope is None else f", changing by {format_rate(slope)}" if slope else ", steady"
    yield (
        f"It holds {format_bytes(task.ram_bytes)} of RAM and {format_bytes(task.swap_bytes)} of "
        f"swap{trend}" + ("." if cpu is None else f", and uses {cpu:.0f} % of a core.")
    )
    for use in task.gpus:
        amount = "an unknown amount" if use.memory_bytes is None else format_bytes(use.memory_bytes)
        yield f"It holds {amount} of memory on GPU {use.index}."


def _outlook_lines(status: Status, task: Task, above: Sequence[Resource]) -> Iterator[str]:
    """Yield what the task runs out of first, what others fill up, or its GPU's fault."""
    if task.resource is not None:
        found = (task.resource, task.eta_s, task.reason)  # without a forecast the reason tells
        nearest = (one for one in above if (one.kind, one.eta_s, one.reason) == found)
        label = next((clean(one.label or one.kind, 120) for one in nearest), "its limit")
        why = "" if task.reason is None else f": {clean(task.reason, 300)}"
        end = quantities.eta(task.eta_s, task.eta_low_s, task.eta_high_s)
        meets = f"It meets {label} in {end}"
        if task.eta_s is None:
            meets = f"Nearest to it is {label}"
        yield f"{meets}{why}. Level: {task.level.word}."
        return
    broken = [
        each
        for each in status.incidents
        if each.is_gpu_fault and each.level >= Level.WARNING and _names(each, task)
    ]
    for incident in broken:
        what = gpu_faults.incident_title(bool(incident.device_works))
        yield f"{clean(incident.label or '?', 120)}, on which it was, {what} (see below)."
        if incident.work_lost:
            yield "What it held there is lost, or will be when the card is reset."
    ends = [each for each in above if each.eta_s is not None]
    if ends and not broken:
        first = min(ends, key=lambda each: each.eta_s or 0.0)
        label = capitalize_first(clean(first.label or "?", 120))
        yield f"{label} {first.end()}, but others make it grow."
    elif not broken:
        yield "Nothing points to an end: no forecast for it."


def _resource_lines(resources: Iterable[Resource]) -> Iterator[str]:
    """Yield a line per resource, without the dozens of temperatures that stay calm."""
    for each in resources:
        if each.level is Level.OK and each.eta_s is None and each.kind == "temperature":
            continue
        note = "" if each.note is None else f" ({clean(each.note, 120)})"
        level = quantities.of_limit(each.used, each.limit, each.unit)
        moves = _MOVES.get(each.growth, each.growth)
        ahead = f"{moves}, {each.end() or 'no end in sight'}"
        if each.growth == "unknown" and not each.end():
            ahead = "too few readings for a trend"
        yield f"  {clean(each.label or each.kind, 120)}{note}: {level}, {ahead}"


def _agent_lines(task: Task, now_unix_s: float) -> Iterator[str]:
    agent = task.agent
    if agent is None:
        yield (
            "No training with an agent runs in it now: it can be warned about and paused, but not "
            "saved. If it trains, it can be saved from its next start on after this command:"
        )
        yield f"  {next_start_command(task.kind, task.name, task.python)}"
        yield from saving_notes(task.framework)
        return
    yield f"Its agent: {agent_line(agent, now_unix_s)}."
    if agent.outdated:
        yield "It is outdated and cannot be asked to save: restart its kernel, or start it again."
    if agent.memory is not None:
        yield from memory_part_lines(agent.memory)
    if agent.save_s is not None:
        size = "" if agent.state_bytes is None else f" of {format_bytes(agent.state_bytes)}"
        yield f"A save{size} is expected to take {format_duration(agent.save_s)}."
    if agent.rescue is None:
        yield f"Its rescues go to {clean(agent.directory or '?', 200)}."
    else:
        yield f"The rescue is in {clean(agent.rescue.path or '?', 200)}."
    if agent.not_restored and not unsaved_reason(agent):
        lost = "; ".join(clean(each, 300) for each in agent.not_restored)
        yield f"A resume will not bring back: {lost}."


def memory_part_lines(parts: MemoryParts) -> Iterator[str]:
    """Yield lines on the parts of a training's memory, largest first."""
    named = [
        ("weights", parts.weights_bytes),
        ("gradients", parts.gradients_bytes),
        ("optimizer", parts.optimizer_bytes),
        ("activations", parts.activations_bytes),
        *((clean(each.what or "?", 60), each.bytes) for each in parts.buffers),
    ]
    known = sorted(((name, size) for name, size in named if size), key=lambda each: -each[1])
    if known:
        batch = "" if parts.batch_size is None else f" at batch {parts.batch_size}"
        said = ", ".join(f"{name} {format_bytes(size)}" for name, size in known)
        yield f"Its memory{batch}: {said}."
        rest = (parts.resident_bytes or 0) - sum(size for _, size in known)
        if rest > 0:
            yield f"Besides: {format_bytes(rest)} of Python, libraries and what is not known."
    per_step = parts.python_blocks_per_step
    if per_step is not None and per_step >= 1:
        yield f"Python keeps {per_step:,.0f} more objects with each step."


def overview(status: Status) -> tuple[Level, str]:
    """
    Return the level of this machine, and its most urgent fact without a period at its end.

    Args:
        status: a status whose level and headline are not set yet.
    """
    suspended = [task for task in status.tasks if task.waits]
    suspended.sort(key=lambda task: _stopped_guard(task) is None)
    stopped = bool(suspended) and _stopped_guard(suspended[0]) is not None
    waiting = {task.pid for task in suspended}
    dangers = [
        one
        for one in status.resources
        if not (stopped and one.kind == "guard")
        # A paused program does not fill its address space, and its limit kills no other.
        and not (one.kind == "rlimit_as" and waiting & set(one.tasks))
    ]
    dangers.sort(key=lambda one: (_eta_s(one), -(one.ratio or 0.0)))
    open_ones = [each for each in status.incidents if not _concerns_only(each, suspended)]
    levels = [*(each.level for each in dangers), *(each.level for each in open_ones)]
    level = max([*levels, *(each.level for each in status.gpus)], default=Level.OK)
    if level >= Level.WARNING:
        for danger in dangers:
            if danger.level is level:
                return level, f"{_end(danger)}{_whose(danger, status.incidents)}"
        return level, _fault_text(status, level, open_ones)
    if suspended:
        return Level.WARNING, _suspended_text(suspended)
    for problem in status.problems:
        if problem.source.partition(".")[0] in _BLINDING:
            return Level.WARNING, clean(problem.message.partition(". ")[0].rstrip("."), 200)
    # Report a possible danger, otherwise a save in progress, otherwise that all is well.
    watched = next((each for each in dangers if each.level is Level.WATCH), None)
    if watched is not None:
        end = "growing, no danger yet" if watched.eta_s is None else _end(watched, certain=False)
        return level, f"{end}{_whose(watched, status.incidents)}"
    for task in status.tasks:
        if task.agent is not None and task.agent.saving:
            return level, f"saving {clean(task.name or '?')}"
    notes = "" if level is Level.OK else "; see the notes"
    first = next((one for one in dangers if one.kind != "walltime"), None)
    if first is not None and _eta_s(first) < _SOON_S:
        if first.fatal or (first.unit == "bytes" and first.kind != "disk"):
            return (
                level,
                f"growing, too early to tell where it ends{_whose(first, status.incidents)}{notes}",
            )
        return level, f"no danger to a training: {_end(first)} if it continues{notes}"
    return level, f"nothing is about to run out{notes}"


def _eta_s(resource: Resource) -> float:
    return math.inf if resource.eta_s is None else resource.eta_s


def _whose(danger: Resource, incidents: Sequence[Incident]) -> str:
    """
    Return text such as `: train.ipynb grows by 20.0 MiB/s, 95 % of the growth`.

    In an incident, its table shows the growth, so the name suffices. Empty if nothing is known, or
    if the label names the task.
    """
    if danger.kind == "walltime":
        return ""
    for each in incidents:
        if each.contributors and (each.resource, each.subject) == (danger.kind, danger.subject):
            return f": {clean(each.contributors[0].name or '?')}"
    for one in danger.contributors[:1]:
        growth = quantities.growth(one.slope_bytes_per_s, one.share)
        return f": {clean(one.name or '?')} {growth}"
    return ""


def _end(resource: Resource, *, certain: bool = True) -> str:
    """
    Return `RAM full in about 4 min`; while it is not certain `at this pace RAM is full in about
    4 min; it may level off`.
    """
    label = clean(resource.label or "?", 80)
    if resource.eta_s is None:
        how = "nearly full" if resource.unit == "bytes" else "close to its limit"
        return f"{label} {how}"
    how = resource.exhausted
    if resource.kind == "temperature":
        label = phrases.heated_device(label)
        how = "will switch off from heat"
    elif resource.kind == "walltime":
        label = label.removeprefix("time of ")
    elif not certain:
        how = f"is {how}"
    end = f"{label} {how} {phrases.format_eta(resource.eta_s)}"
    return end if certain else f"at this pace {end}; it may level off"


def _concerns_only(incident: Incident, suspended: Sequence[Task]) -> bool:
    """Whether all tasks that an incident names are stopped. The incident is then not a danger."""
    pids = {contributor.pid for contributor in incident.contributors}
    return bool(pids) and pids <= {task.pid for task in suspended} and not incident.is_fault


def _fault_text(status: Status, level: Level, open_ones: Sequence[Incident]) -> str:
    """Return the incident of this level, otherwise the GPU."""
    for incident in open_ones:
        if incident.level is level:
            return f"{clean(incident.label or '?', 80)}: {clean(incident.reason or '?', 200)}"
    gpu = next(each for each in status.gpus if each.level is level)
    return f"{clean(gpu.label)} ({clean(gpu.name or '?', 40)}) {gpu.title or 'has a fault'}"


def _suspended_text(tasks: Sequence[Task]) -> str:
    """Name the first task that waits for the user."""
    who = clean(tasks[0].name or "?") + (f" and {len(tasks) - 1} more" if len(tasks) > 1 else "")
    guard = _stopped_guard(tasks[0])
    if guard is None:
        return f"paused: {who}"
    more = f"{guard.pid} {limit_above(guard.limit_bytes or 0, guard.used_bytes or 0)}"
    return f"stopped at its memory limit: {who}; give it more: watchdog limit {more}"


def _stopped_guard(task: Task) -> Guard | None:
    """Return the guard that has stopped a task. None: no guard has."""
    return task.guard if task.guard is not None and task.guard.stopped else None
