"""Explain the state of a task, the machine or an incident: `watchdog explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from watchdog_app.base.text.plain import clean, shell_argument
from watchdog_app.base.text.quantities import format_bytes, format_duration, format_rate
from watchdog_app.core.diagnosis import gpu_faults
from watchdog_app.core.diagnosis.stall_reasons import StallReason
from watchdog_app.core.explain import phrases
from watchdog_app.core.model import devices
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Assessment, Contributor, Incident, Stage, TaskOutlook
from watchdog_app.core.model.hardware import Hardware
from watchdog_app.core.model.machine import HostMemory, Task
from watchdog_app.core.model.resource import (
    SPECS,
    Blame,
    Reading,
    ResourceKey,
    ResourceKind,
    Scope,
    is_condition,
)
from watchdog_app.core.model.status import MemoryParts

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for the disk",
    "T": "paused",
    "t": "stopped by a debugger",
    "Z": "ended, not yet collected by its parent",
}
_STAGES = {
    Stage.OK: "no danger",
    Stage.WATCH: "sampled more often",
    Stage.WARN: "a warning is shown",
    Stage.SAVE: "saving what agents can save",
    Stage.PAUSE: "the very end: paused where that is allowed",
}


# A fault or a slowdown has no time to exhaustion, so its stages need other words.
_SEVERITIES = {
    Stage.OK: "over",
    Stage.WATCH: "for information",
    Stage.WARN: "needs attention",
    Stage.SAVE: "critical",
}


def describe_task(
    task: Task,
    outlook: TaskOutlook | None,
    agent: AgentState | None,
    *,
    state: str | None = None,
    hardware: Hardware | None = None,
    readings: Sequence[Reading],
    assessments: Mapping[ResourceKey, Assessment],
    incidents: Iterable[Incident],
    now_unix_s: float,
) -> str:
    """
    Describe one task: its usage, its forecast, its nearest limit, its incidents.

    Args:
        task: task of the latest sample.
        outlook: its outlook; None: not known yet.
        agent: its agent; None without an agent.
        state: its state in words, if a pause or its guard gives it; None: as the kernel reports it.
        hardware: hardware of the latest sample; None: the GPUs are left out.
        readings: every resource of the latest sample.
        assessments: by resource.
        incidents: open incidents.
        now_unix_s: current time, for ages.
    """
    incidents = tuple(incidents)
    lines = list(_usage(task, outlook, state))
    if hardware is not None:
        lines += _cards_of_task(task, agent, hardware)
    task_readings = [reading for reading in readings if task.key in reading.tasks]
    lines += _outlook_lines(task, outlook, task_readings, assessments, incidents)
    if task_readings:
        lines += ["", "Limits above it:"]
        lines += _resources(task_readings, assessments)
    lines += ["", *_agent(agent, now_unix_s)]
    for incident in incidents:
        if any(each.task == task.key for each in incident.contributors) or any(
            reading.key == incident.resource for reading in task_readings
        ):
            lines += ["", describe_incident(incident, now_unix_s)]
    return "\n".join(lines)


def _outlook_lines(
    task: Task,
    outlook: TaskOutlook | None,
    task_readings: Sequence[Reading],
    assessments: Mapping[ResourceKey, Assessment],
    incidents: Sequence[Incident],
) -> Iterator[str]:
    """Yield what the task runs out of first, what others fill up, or its GPU's fault."""
    if outlook is not None and outlook.resource is not None:
        yield _forecast_text(
            next((each for each in task_readings if each.key == outlook.resource), None), outlook
        )
        return
    broken = [
        each
        for each in incidents
        if each.resource.kind is ResourceKind.GPU_HEALTH
        and each.stage >= Stage.WARN
        and any(contributor.task == task.key for contributor in each.contributors)
    ]
    for each in broken:
        what = gpu_faults.incident_title(each.device_works)
        yield f"{clean(each.label, 120)}, on which it was, {what} (see below)."
        if each.work_lost:
            yield "What it held there is lost, or will be when the card is reset."
    if broken:
        return
    ends = [
        (known.forecast, reading)
        for reading in task_readings
        if (known := assessments.get(reading.key)) is not None and known.forecast is not None
    ]
    if ends:
        first, reading = min(ends, key=lambda each: each[0].eta_s)
        yield (
            f"It is not what makes it grow: {phrases.end_text(reading, clean(reading.label, 120))} "
            f"{phrases.format_forecast(first)}."
        )
    else:
        yield "Nothing points to an end: no forecast for it."


def describe_machine(
    host: HostMemory,
    tasks: Sequence[Task],
    *,
    readings: Sequence[Reading],
    assessments: Mapping[ResourceKey, Assessment],
    incidents: Sequence[Incident],
    now_unix_s: float,
) -> str:
    """
    Describe the machine: its memory, the relevant resources, the open incidents.

    Args:
        host: memory of the machine.
        tasks: tasks of the latest sample.
        readings: every resource of the latest sample.
        assessments: by resource.
        incidents: open incidents.
        now_unix_s: current time, for ages.
    """
    watched = "1 Python task is" if len(tasks) == 1 else f"{len(tasks)} Python tasks are"
    lines = [
        f"{format_bytes(host.available_bytes)} of {format_bytes(host.total_bytes)} RAM is available"
        + (
            f", {format_bytes(host.swap_free_bytes)} of {format_bytes(host.swap_total_bytes)} "
            "swap is free"
            if host.swap_total_bytes
            else ", there is no swap"
        )
        + f". {watched} watched.",
        "",
        "Limits:",
        *_resources(readings, assessments),
        "",
    ]
    if not incidents:
        lines.append("No warning is open.")
    for index, incident in enumerate(incidents):
        lines += [""] * bool(index) + [describe_incident(incident, now_unix_s)]
    return "\n".join(lines)


def describe_incident(incident: Incident, now_unix_s: float) -> str:
    """
    Describe one incident: its age, severity, reason, tasks and advice.

    Args:
        incident: open or closed.
        now_unix_s: current time, for its age.
    """
    since = format_duration(max(0.0, now_unix_s - incident.opened_unix_s))
    label, broken = clean(incident.label, 120), is_condition(incident.resource)
    worst = "" if incident.peak <= incident.stage else f" (at worst: {_STAGES[incident.peak]})"
    head = f"{label}: in danger for {since}; now {_STAGES[incident.stage]}{worst}."
    if broken:
        head = f"{label}: noticed {since} ago; {_SEVERITIES.get(incident.stage, 'critical')}."
    lines = [head, f"  {'What' if broken else 'Why'}: {clean(incident.why, 300)}."]
    lines += (f"  {_contributor_text(incident, each)}" for each in incident.contributors)
    if not broken and not incident.contributors:
        lines.append("  No watched task makes it grow.")
    lines += (f"  To do: {line}" for line in incident.advice)
    return "\n".join(lines)


def _contributor_text(incident: Incident, each: Contributor) -> str:
    """Return the role of a task in an incident."""
    who, kind = f"{clean(each.name)} (pid {each.task.pid})", incident.resource.kind
    if is_condition(incident.resource):
        return f"{'It was on it' if kind is ResourceKind.GPU_HEALTH else 'It concerns'}: {who}"
    if SPECS[kind].blame is Blame.WORK:
        return f"{who}: {each.share:.0%} of the work"
    return f"{who}: {each.share:.0%} of the growth, {format_rate(each.slope_bytes_per_s)}"


def _usage(task: Task, outlook: TaskOutlook | None, state: str | None) -> Iterator[str]:
    state = state or _STATES.get(task.members[0].state, "running")
    workers = len(task.members) - 1
    more = "" if not workers else f", {workers} worker{'s' if workers > 1 else ''}"
    yield f"{clean(task.name)} ({phrases.KINDS[task.kind]}, pid {task.key.pid}): {state}{more}."
    cpu = None if outlook is None else outlook.cpu_percent
    trend = None if outlook is None else outlook.trend_bytes_per_s
    yield (
        f"It holds {format_bytes(task.rss_bytes)} of RAM and {format_bytes(task.swap_bytes)} of "
        f"swap, changing by {format_rate(trend)}"
        + ("." if cpu is None else f", and uses {cpu:.0f} % of a core.")
    )


def _forecast_text(reading: Reading | None, outlook: TaskOutlook) -> str:
    label = "its limit" if reading is None else clean(reading.label, 120)
    why = "" if outlook.why is None else f": {clean(outlook.why, 300)}"
    meets = f"It meets {label} {phrases.format_forecast(outlook.forecast)}"
    if outlook.forecast is None:
        meets = f"Nearest to it is {label}"
    return f"{meets}{why}. Stage: {outlook.stage.name.lower()} ({_STAGES[outlook.stage]})."


def _resources(
    readings: Sequence[Reading], assessments: Mapping[ResourceKey, Assessment]
) -> Iterator[str]:
    """Yield a line per resource, without the dozens of temperatures that stay calm."""
    for reading in readings:
        known = assessments.get(reading.key)
        quiet = known is None or (known.stage is Stage.OK and known.forecast is None)
        if quiet and SPECS[reading.key.kind].scope is Scope.HEAT:
            continue
        note = "" if reading.note is None else f" ({clean(reading.note, 120)})"
        level = phrases.format_level(reading.used, reading.limit, reading.unit)
        ahead = ""
        if known is not None:
            ahead = f", {known.regime.value}, {phrases.format_forecast(known.forecast)}"
        yield f"  {clean(reading.label, 120)}{note}: {level}{ahead}"


def _agent(agent: AgentState | None, now_unix_s: float) -> Iterator[str]:
    if agent is None:
        yield (
            "No training with an agent runs in it now: it can be warned about and paused, but not "
            "saved. Trainings are saved in a notebook after %load_ext watchdog_app.agent, in a "
            "script that is started by watchdog exec -- python train.py."
        )
        return
    at = "" if agent.step is None else f", at step {agent.step}"
    yield f"Its agent ({clean(agent.framework)}) {'trains' if agent.training else 'waits'}{at}."
    if agent.outdated:
        yield "It is outdated and cannot be asked to save: restart its kernel, or start it again."
    if agent.memory is not None:
        yield from memory_part_lines(agent.memory)
    if agent.save_s is not None:
        size = "" if agent.state_bytes is None else f" of {format_bytes(agent.state_bytes)}"
        yield f"A save{size} is expected to take {format_duration(agent.save_s)}."
    if agent.rescue is None:
        yield f"It has not saved anything yet; rescues go to {clean(agent.directory, 200)}."
    else:
        age = phrases.format_age(max(0.0, now_unix_s - agent.rescue.saved_unix_s))
        yield (
            f"Its newest rescue is of step {agent.rescue.step}, {age}, in "
            f"{clean(agent.rescue.path, 200)}."
        )
    if agent.not_restored:
        lost = "; ".join(clean(each, 300) for each in agent.not_restored)
        yield f"A resume will not bring back: {lost}."


def memory_part_lines(parts: MemoryParts) -> Iterator[str]:
    """Yield lines on the parts of a training's memory, largest first."""
    named = [
        ("weights", parts.weights_bytes),
        ("gradients", parts.gradients_bytes),
        ("optimizer", parts.optimizer_bytes),
        ("activations", parts.activations_bytes),
        *((clean(each.what or "", 60), each.bytes) for each in parts.buffers),
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


def _cards_of_task(task: Task, agent: AgentState | None, hardware: Hardware) -> Iterator[str]:
    """
    Yield the memory of a task on the GPUs, and the share that its framework has allocated.

    Args:
        task: the task to describe.
        agent: its agent; None without an agent.
        hardware: hardware of the latest sample.
    """
    for use in devices.devices_by_task(hardware, (task,)).get(task.key, ()):
        amount = "an unknown amount" if use.memory_bytes is None else format_bytes(use.memory_bytes)
        yield f"It holds {amount} of memory on GPU {use.index}."
    for held in agent.allocators if agent is not None else ():
        yield (
            f"Its framework has allocated {format_bytes(held.used_bytes)} of "
            f"{format_bytes(held.limit_bytes)} on {clean(held.device)}"
            + ("" if held.peak_bytes is None else f", {format_bytes(held.peak_bytes)} at most")
            + ("" if not held.retries else f"; {held.retries} allocations had to be retried")
            + "."
        )


def stall_lines(reasons: Sequence[StallReason], task: Task) -> Iterator[str]:
    """
    Yield the evidence of the most likely reason, and the command that shows all threads.

    Args:
        reasons: reasons of a stalled task, most likely first.
        task: the stalled task.
    """
    for reason in reasons[:1]:
        yield f"Most likely {reason.text}:"
        yield from (f"- {clean(each, 200)}" for each in reason.reasons)
    yield f"See what each thread does: watchdog stacks {shell_argument(task.name, task.key.pid)}"
