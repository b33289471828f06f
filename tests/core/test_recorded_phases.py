"""
What phases and announcements of a training predict and explain, compared with a recording.

`support.decisions` compares the predictions: every threshold of `core.policy.phases` decides at
least one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import decisions
from support.records import host, process, task

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Attribution, Contributor, Observation
from watchdog_app.core.model.machine import Pressure, ProcessKey, Snapshot, Task, TaskKind
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy.anticipation import Thrashing, TrainingPhases
from watchdog_app.core.policy.phases import Phases
from watchdog_app.core.policy.tracker import Tracker

MB = 1024.0**2
EPOCH_S, VALIDATES_S = 60.0, 15.0  # the last part of an epoch

Level = Callable[[float], float]  # in MB
Says = Callable[[float], dict[str, Any]]


def validating(peak: float, *, drift: float = 0.0, more: float = 0.0, keeps: float = 0.0) -> Level:
    """A peak in each validation: each epoch adds `drift` to its base and `more` to its height."""

    def level(t: float) -> float:
        epoch, at = int(t // EPOCH_S), t % EPOCH_S - (EPOCH_S - VALIDATES_S)
        rise = max(0.0, min(1.0, 2 * at / VALIDATES_S)) * (peak + more * epoch)
        return 400 + drift * epoch + rise + keeps * epoch * peak

    return level


def phases(name: str = "validate", last: int = 99, **more: Any) -> Says:
    """The phase at the end of each epoch, up to epoch `last`."""

    def says(t: float) -> dict[str, Any]:
        epoch, at = int(t // EPOCH_S), t % EPOCH_S
        now = name if at >= EPOCH_S - VALIDATES_S and epoch <= last else "train"
        return {"phase": now, "epoch": epoch, **more}

    return says


def many(t: float) -> dict[str, Any]:
    """Ten phases of six seconds each."""
    return {"phase": f"part {int(t % 60 // 6)}", "epoch": int(t // EPOCH_S)}


def announced(size: float, *, number: int = 1, begin_s: float = 10.0, **more: Any) -> Says:
    """Announce this many MB from `begin_s` on."""

    def says(t: float) -> dict[str, Any]:
        if t < begin_s:
            return {}
        return {"expected_bytes": int(size * MB), "expected_number": number, **more}

    return says


def filling(size: float, per_s: float, begin_s: float = 12.0) -> Level:
    """Along a line, up to `size`."""
    return lambda t: 400 + min(size, max(0.0, t - begin_s) * per_s)


def both(t: float) -> dict[str, Any]:
    """A second announcement before the first is full."""
    return announced(300, number=1)(t) if t < 30 else announced(200, number=2)(t)


CASES: dict[str, tuple[Level, Says]] = {
    "validations alike": (validating(650), phases()),
    "validations that get a little higher": (validating(500, more=60), phases()),
    "validations that get much higher": (validating(300, more=120), phases()),
    "validations over a leak": (validating(500, drift=40), phases()),
    "validations that keep what they took": (validating(200, keeps=1.0), phases()),
    "validations that keep a quarter": (validating(400, keeps=0.24), phases()),
    "validations that take little": (validating(31), phases()),
    "validations that take just enough": (validating(33), phases()),
    "validations that end": (validating(650), phases(last=1)),
    "a training that ends in a validation": (
        validating(650), lambda t: {**phases()(t), "training": t < 175},
    ),
    "a phase of its own name": (validating(650), phases("my\nphase")),
    "a phase that saves": (validating(650), phases("save")),
    "ten phases": (lambda t: 400 + 40 * (t % 60 // 6), many),
    "a level that swings by itself": (lambda t: 400 + 300 * (t % 7 > 3), phases()),
    "a buffer that fills": (filling(500, 10), announced(500)),
    "a buffer that fills, with its name": (
        filling(500, 10), announced(500, expected_for="the shuffle buffer"),
    ),
    "a buffer that fills to nineteen twentieths": (filling(476, 10), announced(500)),
    "a buffer that stays just below": (filling(474, 10), announced(500)),
    "a buffer and the first step": (filling(600, 10), announced(500)),
    "a buffer and far more": (filling(1000, 10), announced(500)),
    "a buffer that stalls half full": (filling(250, 10), announced(500)),
    "a buffer that never fills": (lambda _: 400.0, announced(500)),
    "a buffer that fills slowly": (filling(500, 0.5), announced(500)),
    "a buffer of less than was said": (filling(250, 10), announced(500, expected_at_most=True)),
    "an announcement of nothing": (filling(250, 10), announced(0)),
    "two announcements": (filling(500, 10), both),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_phases_foretell_and_explain_as_before(name: str) -> None:
    level, says = CASES[name]
    known, before = Phases(), ""
    for t in map(float, range(700 if "never" in name else 320)):
        used = level(t) * MB
        more = {"training": True, **says(t)}
        known.observe(t, used, AgentState(ProcessKey(1, 1), "keras", "/r", **more))
        line = {
            "coming": [[need.what, need.bytes / MB, need.epoch] for need in known.upcoming_needs()],
            "rest": None if (rest := known.remaining_need()) is None else rest.bytes / MB,
            "filling": known.filling(),
            "explained": [
                room
                for room in (20, 100, 150, 300, 600, 900)
                if known.explains(room * MB, announced=True)
            ],
            "by_phase": [
                room
                for room in (20, 100, 150, 300, 600, 900)
                if known.explains(room * MB, announced=False)
            ],
        }
        kinds = str((line["explained"], line["by_phase"], len(line["coming"]), rest is None))
        if kinds != before or t % 20 == 0:
            decisions.note({"t": t, **line})
        before = kinds


KEY, SERVER = ProcessKey(1, 1), ProcessKey(9, 1)


def _task(key: ProcessKey, used: float, kind: TaskKind = TaskKind.SCRIPT) -> Task:
    return task(process(key.pid, rss=used), kind=kind)


@pytest.mark.parametrize("limit_mb", [700, 1060, 1250])
@pytest.mark.parametrize("name", [name for name in CASES if "many" not in name])
def test_needs_are_foreseen_and_growth_is_explained_as_before(name: str, limit_mb: float) -> None:
    """Alone in its group, with a server, with another program; its agent leaves at 280 s."""
    level, says = CASES[name]
    phases_of, tracker, before = TrainingPhases(), Tracker(Settings()), ""
    for t in map(float, range(290)):
        used = level(t) * MB
        agent = AgentState(KEY, "keras", "/r", **{"training": True, **says(t)})
        silent = AgentState(KEY, "keras", "/r")
        tasks = {KEY: _task(KEY, used), SERVER: _task(SERVER, MB, TaskKind.SERVER)}
        reading = Reading(
            ResourceKey(ResourceKind.CGROUP, "/g"), "g", used, limit_mb * MB, True, tuple(tasks)
        )
        agents = {KEY: [silent, agent]} if t < 280 else {}
        observation = Observation(Snapshot(t, t, host(), ()), tasks, [reading], agents)
        tracker.update(observation)
        phases_of.update(observation, tracker)
        expected = phases_of.predict(reading)
        own = Attribution((Contributor(KEY, "x", 1.0, 0.8),), 0.2, 5.0)
        less = Attribution((Contributor(KEY, "x", 1.0, 0.79),), 0.2, 5.0)
        two = [tasks[KEY], tasks[SERVER], _task(ProcessKey(5, 1), MB)]
        explained = [
            phases_of.explains(reading, own, tasks.values()),
            phases_of.explains(reading, less, tasks.values()),
            phases_of.explains(reading, own, two),
            *(
                phases_of.explains(replace(reading, unwatched=part * limit_mb * MB), own, [])
                for part in (0.02, 0.021)
            ),
        ]
        line = {
            "expected": None if expected is None else [expected.stage, expected.why],
            "explained": [index for index, each in enumerate(explained) if each],
            "filling": len(phases_of.filling()),
        }
        kinds = str((expected is None, line["explained"], line["filling"]))
        if kinds != before:
            decisions.note({"t": t, **line})
        before = kinds


@pytest.mark.parametrize("full_percent", [None, 9.9, 10.0])
@pytest.mark.parametrize("moved", [1.0, 1.1])
@pytest.mark.parametrize("free", [0.25, 0.26])
def test_thrashing_is_foreseen_as_before(
    full_percent: float | None, moved: float, free: float
) -> None:
    """`moved` MiB per second for 20 s; then a rest, and again."""
    found, tracker = Thrashing(), Tracker(Settings())
    total = 1 << 30
    kinds = (ResourceKind.RAM, ResourceKind.RAM_SWAP, ResourceKind.CGROUP, ResourceKind.SHM)
    readings = [
        Reading(ResourceKey(kind, "x"), "x", 1.0, limit, fatal, (), swapped=swapped)
        for kind in kinds
        for fatal in (True, False)
        for limit, swapped in ((0.0, 1.0), (2.0, 0.0), (2.0, 1.0))
    ]
    for t in range(40):
        bytes_moved = int(moved * (1 << 20) * (min(t, 20) + max(0, t - 28)))
        pressure = None if full_percent is None else Pressure(50.0, full_percent, 0.0)
        swaps = dict.fromkeys(("swap_in_bytes", "swap_out_bytes"), bytes_moved)
        machine = host(total, free * total, **swaps, pressure=pressure)
        observation = Observation(Snapshot(float(t), float(t), machine, ()), {}, readings, {})
        tracker.update(observation)
        found.update(observation, tracker)
        open_ = [index for index, each in enumerate(readings) if found.predict(each)]
        if open_ or t % 10 == 0:
            decisions.note({"t": t, "thrashing": open_})
