"""The state of the whole machine as one level and one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from watchdog_app.base.text import quantities
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import limit_above
from watchdog_app.core.explain import phrases
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Guard, Incident, Resource, Status, Task

_SOON_S = 120.0  # a predicted exhaustion within this time is named before the evidence is certain
_BLINDING = ("gpu", "hardware", "machine", "engine")  # sources of problems that hide a danger


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
