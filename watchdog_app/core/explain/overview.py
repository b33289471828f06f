"""The state of the whole machine in one level and one sentence."""

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

_SOON_S = 120.0  # a forecast nearer than this is named before its evidence is certain
_NEARLY_FULL = 0.98  # of a card's memory
_BLINDING = ("gpu", "hardware", "machine", "engine")  # sources of faults that hide a danger


class Card(NamedTuple):
    """A graphics card and what is wrong with it."""

    label: str
    level: Level
    title: str  # "is lost"; empty where it is well


class Overview(NamedTuple):
    """What every screen says first."""

    level: Level
    headline: str  # without a point at its end


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
    held: Mapping[ProcessKey, str],
) -> Overview:
    """
    What is most urgent on this machine.

    Args:
        tasks: of the latest sample.
        readings: of the same sample.
        assessments: by resource.
        incidents: the open ones.
        agents: by task.
        cards: every graphics card.
        faults: what cannot be measured, and why.
        paused: tasks that watchdog has paused.
        held: tasks that stand still at the limit of `watchdog exec`, with the PID and the size
            to give `watchdog limit`.
    """
    names = {task.key: clean(task.name) for task in tasks}
    standing = [key for key in (*held, *paused) if key in names]
    dangers = [
        (assessments[reading.key], reading)
        for reading in readings
        if reading.key in assessments and not (held and reading.key.kind is ResourceKind.GUARD)
    ]
    open_ones = [each for each in incidents if not _concerns_only(each, standing)]
    level = max(
        [
            *(assessment.level for assessment, _ in dangers),
            *(each.level for each in open_ones),
            *(each.level for each in cards),
            Level.OK,
        ]
    )
    if level >= Level.WARNING:
        return Overview(level, _worst(level, dangers, open_ones, cards, incidents))
    if standing:
        return Overview(Level.WARNING, _standing(standing[0], names, held, len(standing) - 1))
    fault = next((each for each in faults if each.source.partition(".")[0] in _BLINDING), None)
    if fault is not None:
        return Overview(Level.WARNING, clean(fault.message.partition(". ")[0].rstrip("."), 200))
    saving = [names[key] for key, agent in agents.items() if agent.saving and key in names]
    return Overview(*_without_danger(level, dangers, saving, readings, incidents))


def _without_danger(
    level: Level,
    dangers: Sequence[tuple[Assessment, Reading]],
    saving: Sequence[str],
    readings: Sequence[Reading],
    incidents: Sequence[Incident],
) -> tuple[Level, str]:
    """What may become one, else what is being saved, else that all is well."""
    soon = _soonest([each for each in dangers if _eta_s(each[0]) < _SOON_S and _ends(each[1])])
    if soon is not None:
        text = f"{_end(*soon)} if it goes on; that is not certain yet"
        return Level.WATCH, text + _whose(soon[1], incidents)
    if saving:
        return level, f"saving {saving[0]}"
    growing = [each for each in dangers if each[0].level is Level.WATCH]
    if growing:
        return level, f"growing, no danger yet{_whose(growing[0][1], incidents)}"
    notes = "" if level is Level.OK else "; see the notes"
    return level, f"nothing is about to run out{_nearly_full(readings)}{notes}"


def _concerns_only(incident: Incident, tasks: Collection[ProcessKey]) -> bool:
    """Whether all tasks that an incident names are stopped: then it is no danger any more."""
    contributors = {contributor.task for contributor in incident.contributors}
    return bool(contributors) and contributors <= set(tasks) and not is_condition(incident.resource)


def _worst(
    level: Level,
    dangers: Sequence[tuple[Assessment, Reading]],
    open_ones: Sequence[Incident],
    cards: Sequence[Card],
    incidents: Sequence[Incident],
) -> str:
    """The resource of this level that ends soonest, else the incident, else the card."""
    near = _soonest([each for each in dangers if each[0].level is level])
    if near is not None:
        return _end(*near) + _whose(near[1], incidents)
    for incident in open_ones:
        if incident.level is level:
            return f"{clean(incident.label, 80)}: {clean(incident.why or '?', 200)}"
    card = next(each for each in cards if each.level is level)
    return f"{clean(card.label, 80)} {card.title or 'has a fault'}"


def _soonest(
    dangers: Sequence[tuple[Assessment, Reading]],
) -> tuple[Assessment, Reading] | None:
    def urgency(each: tuple[Assessment, Reading]) -> tuple[float, float]:
        return _eta_s(each[0]), -each[0].ratio

    return min(dangers, key=urgency, default=None)


def _end(assessment: Assessment, reading: Reading) -> str:
    """`RAM full in about 4 min`."""
    label = clean(reading.label, 80)
    forecast = assessment.forecast
    if forecast is None:
        return f"{label} {'nearly full' if reading.unit == 'bytes' else 'close to its limit'}"
    return f"{phrases.ending(reading, label)} {phrases.when(forecast.eta_s)}"


def _eta_s(assessment: Assessment) -> float:
    return math.inf if assessment.forecast is None else assessment.forecast.eta_s


def _ends(reading: Reading) -> bool:
    """Whether its end harms a training; heat that slows down and a full disk do not."""
    return reading.fatal or SPECS[reading.key.kind].scope in (Scope.MEMORY, Scope.CARD)


def _whose(reading: Reading, incidents: Sequence[Incident]) -> str:
    """`: train.ipynb`, the task that makes it grow; empty if that is not known."""
    for incident in incidents:
        if incident.resource == reading.key and incident.contributors:
            return f": {clean(incident.contributors[0].name)}"
    return ""


def _standing(
    first: ProcessKey, names: Mapping[ProcessKey, str], held: Mapping[ProcessKey, str], more: int
) -> str:
    rest = f" and {more} more" if more else ""
    if first in held:
        give = f"; give it more: watchdog limit {held[first]}"
        return f"held at its memory limit: {names[first]}{rest}{give}"
    return f"paused: {names[first]}{rest}"


def _nearly_full(readings: Sequence[Reading]) -> str:
    """A card that is all but full and steady: the next larger request may fail."""
    for reading in readings:
        full = reading.limit > 0 and reading.used >= _NEARLY_FULL * reading.limit
        if full and reading.key.kind is ResourceKind.GPU_MEMORY:
            return f"; {clean(reading.label, 80)} is nearly full, and steady"
    return ""
