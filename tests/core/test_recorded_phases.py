"""
What phases and announcements of a training foretell and explain, as recorded.

`support.decisions` compares what is foretold with what was before: every threshold of
`core.policy.phases` decides one of these answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import decisions

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.policy.phases import Phases

MB = 1024.0**2
EPOCH_S, VALIDATES_S = 60.0, 15.0  # the last part of an epoch

Level = Callable[[float], float]  # in MB
Says = Callable[[float], dict[str, Any]]


def validating(peak: float, *, drift: float = 0.0, more: float = 0.0, keeps: float = 0.0) -> Level:
    """A peak in each validation: `drift` lies under it and `more` on it with each epoch."""

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
    """Ten phases, each for six seconds of an epoch."""
    return {"phase": f"part {int(t % 60 // 6)}", "epoch": int(t // EPOCH_S)}


def announced(size: float, *, number: int = 1, begin_s: float = 10.0, **more: Any) -> Says:
    """From `begin_s` on: so many MB will be taken."""

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
            "coming": [[need.what, need.bytes / MB, need.epoch] for need in known.coming(t)],
            "rest": None if (rest := known.rest()) is None else rest.bytes / MB,
            "filling": known.filling(t),
            "explained": [
                room
                for room in (20, 100, 150, 300, 600, 900)
                if known.explains(t, room * MB, announced=True)
            ],
            "by_phase": [
                room
                for room in (20, 100, 150, 300, 600, 900)
                if known.explains(t, room * MB, announced=False)
            ],
        }
        kinds = str((line["explained"], line["by_phase"], len(line["coming"]), rest is None))
        if kinds != before or t % 20 == 0:
            decisions.note({"t": t, **line})
        before = kinds
