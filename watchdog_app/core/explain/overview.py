"""The state of the whole machine as one level and one sentence."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from watchdog_app.base.text.plain import clean
from watchdog_app.core.explain import phrases
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Assessment, Incident
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import Fault, ProcessKey, Task
from watchdog_app.core.model.resource import (
    SPECS,
    Reading,
    ResourceKey,
    ResourceKind,
    Scope,
    is_condition,
)

_SOON_S = 120.0  # a predicted exhaustion within this time is named before the evidence is certain
_NEARLY_FULL = 0.98  # share of a GPU's memory
_BLINDING = ("gpu", "hardware", "machine", "engine")  # sources of faults that hide a danger


class Card(NamedTuple):
    """A GPU and its fault."""

    label: str
    level: Level
    title: str  # "is lost"; empty if the GPU works


class Overview(NamedTuple):
    """First line of every screen."""

    level: Level
    headline: str  # without a period at its end


def overview(
    *,
    tasks: Sequence[Task],
    readings: Sequence[Reading],
    assessments: Mapping[ResourceKey, Assessment],
    incidents: Sequence[Incident],
    agents: Mapping[ProcessKey, AgentState],
    cards: Sequence[Card],
    faults: Sequence[Fault],
    paused: Collection[ProcessKey],
    stopped: Mapping[ProcessKey, str],
) -> Overview:
    """
    Return the most urgent fact about this machine.

    Args:
        tasks: tasks of the latest sample.
        readings: readings of the same sample.
        assessments: by resource.
        incidents: open incidents.
        agents: by task.
        cards: every GPU.
        faults: what cannot be measured, and why.
        paused: tasks that watchdog has paused.
        stopped: tasks stopped at the limit of `watchdog exec`, with the PID and the size to give
            `watchdog limit`.
    """
    names = {task.key: clean(task.name) for task in tasks}
    suspended = [key for key in (*stopped, *paused) if key in names]
    names_by_resource = {
        each.resource: each.contributors[0].name for each in incidents if each.contributors
    }
    dangers = [
        _Danger(assessments[reading.key], reading, names_by_resource.get(reading.key))
        for reading in readings
        if reading.key in assessments and not (stopped and reading.key.kind is ResourceKind.GUARD)
    ]
    dangers.sort(key=lambda each: (each.eta_s, -each.assessment.ratio))
    open_ones = [each for each in incidents if not _concerns_only(each, suspended)]
    levels = [*(each.level for each in dangers), *(each.level for each in open_ones)]
    level = max([*levels, *(each.level for each in cards)], default=Level.OK)
    if level >= Level.WARNING:
        return Overview(level, _worst_text(level, dangers, open_ones, cards))
    if suspended:
        first, *others = suspended
        who = names[first] + (f" and {len(others)} more" if others else "")
        text = f"paused: {who}"
        if first in stopped:
            text = (
                f"stopped at its memory limit: {who}; give it more: watchdog limit {stopped[first]}"
            )
        return Overview(Level.WARNING, text)
    fault = next((each for each in faults if each.source.partition(".")[0] in _BLINDING), None)
    if fault is not None:
        return Overview(Level.WARNING, clean(fault.message.partition(". ")[0].rstrip("."), 200))
    # Report a possible danger, otherwise a save in progress, otherwise that all is well.
    for each in dangers:
        if each.eta_s < _SOON_S and each.ends:
            text = f"{each.end(certain=False)} (not certain yet){each.task_suffix}"
            return Overview(Level.WATCH, text)
    for key, agent in agents.items():
        if agent.saving and key in names:
            return Overview(level, f"saving {names[key]}")
    growing = next((each for each in dangers if each.level is Level.WATCH), None)
    if growing is not None:
        return Overview(level, f"growing, no danger yet{growing.task_suffix}")
    notes = "" if level is Level.OK else "; see the notes"
    soon = dangers[0].end() if dangers and dangers[0].eta_s < _SOON_S else None
    if soon is not None:
        return Overview(level, f"no danger to a training: {soon} if it continues{notes}")
    return Overview(level, f"nothing is about to run out{_nearly_full(readings)}{notes}")


class _Danger(NamedTuple):
    """A resource, its assessment, and the task that makes it grow."""

    assessment: Assessment
    reading: Reading
    task_name: str | None

    @property
    def level(self) -> Level:
        return self.assessment.level

    @property
    def eta_s(self) -> float:
        forecast = self.assessment.forecast
        return math.inf if forecast is None else forecast.eta_s

    @property
    def ends(self) -> bool:
        """Whether exhaustion harms a training. A slowdown by heat or a full disk does not."""
        scope = SPECS[self.reading.key.kind].scope
        return self.reading.fatal or scope in (Scope.MEMORY, Scope.CARD)

    def end(self, *, certain: bool = True) -> str:
        """Return `RAM full in about 4 min`, or `RAM could be full in about 4 min`."""
        label = clean(self.reading.label, 80)
        if self.assessment.forecast is None:
            how = "nearly full" if self.reading.unit == "bytes" else "close to its limit"
            return f"{label} {how}"
        end = phrases.end_text(self.reading, label, certain=certain)
        return f"{end} {phrases.format_eta(self.eta_s)}"

    @property
    def task_suffix(self) -> str:
        """Text such as `: train.ipynb`. Empty if the task is unknown."""
        return "" if self.task_name is None else f": {clean(self.task_name)}"


def _concerns_only(incident: Incident, tasks: Collection[ProcessKey]) -> bool:
    """Whether all tasks that an incident names are stopped. The incident is then not a danger."""
    contributors = {contributor.task for contributor in incident.contributors}
    return bool(contributors) and contributors <= set(tasks) and not is_condition(incident.resource)


def _worst_text(
    level: Level, dangers: Sequence[_Danger], open_ones: Sequence[Incident], cards: Sequence[Card]
) -> str:
    """Return the resource of this level that runs out first, otherwise the incident or GPU."""
    for danger in dangers:
        if danger.level is level:
            return f"{danger.end()}{danger.task_suffix}"
    for incident in open_ones:
        if incident.level is level:
            return f"{clean(incident.label, 80)}: {clean(incident.why or '?', 200)}"
    card = next(each for each in cards if each.level is level)
    return f"{clean(card.label, 80)} {card.title or 'has a fault'}"


def _nearly_full(readings: Sequence[Reading]) -> str:
    """Return a note on a GPU whose memory is steady but full: a larger request may fail."""
    for reading in readings:
        full = reading.limit > 0 and reading.used >= _NEARLY_FULL * reading.limit
        if full and reading.key.kind is ResourceKind.GPU_MEMORY:
            return f"; {clean(reading.label, 80)} is nearly full, and steady"
    return ""
