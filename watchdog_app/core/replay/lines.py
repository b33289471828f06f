"""
The forecast as a filter: a sample a line in, its answer a line out, at once.

In: `{"t": s, "used": bytes, "limit": bytes}`. Out: `{"eta_s", "low_s", "high_s", "alarm",
"stage", "regime"}`; unknown and endless times are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, TextIO

from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import Assessment, Regime, SaveCost, Stage
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.replay.play import reached

_NO_COSTS = SaveCost()
NOTHING_SEEN = Assessment(Stage.OK, Regime.UNKNOWN, 0.0, 0.0, None, "no readings yet")


def answer_lines(
    lines: Iterable[str],
    out: TextIO,
    settings: Settings,
    alarm_stage: Stage = Stage.WARN,
    costs: SaveCost = _NO_COSTS,
) -> int:
    """
    Answer each line before the next is read; how many were no samples.

    A line that is no sample changes nothing: it is answered as the one before, with the reason
    under "error" besides. So is one whose time does not follow the one before. A limit of null
    or 0 is none.
    """
    watch = ResourceMonitor(settings.watch, settings.stages)
    bad, said, last_s = 0, answer(NOTHING_SEEN, alarm_stage), -math.inf
    for line in lines:
        if not line.strip():
            continue
        try:
            t, used, limit = _sample(line, last_s)
        except ValueError as error:
            bad += 1
            out.write(f'{said[:-2]}, "error": {json.dumps(str(error))}}}\n')
        else:
            last_s = t
            said = answer(watch.step(t, used, limit, costs), alarm_stage)
            out.write(said)
        out.flush()
    return bad


def answer(assessment: Assessment, alarm_stage: Stage) -> str:
    """One line of JSON."""
    forecast = assessment.forecast
    if forecast is None:
        eta = low = high = "null"
    else:
        eta, low, high = map(_seconds, (forecast.eta_s, forecast.low_s, forecast.high_s))
    alarm = "true" if reached(assessment, alarm_stage) else "false"
    return (
        f'{{"eta_s": {eta}, "low_s": {low}, "high_s": {high}, "alarm": {alarm}, '
        f'"stage": "{assessment.stage.name.lower()}", "regime": "{assessment.regime.value}"}}\n'
    )


def _sample(line: str, last_s: float) -> tuple[float, float, float]:
    try:
        found: Any = json.loads(line)
    except RecursionError:
        raise ValueError("this is no sample, but braces within braces") from None
    except ValueError:
        raise ValueError("this is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError(  # noqa: TRY004 - for the caller any bad line is a bad value
            'a sample is {"t": seconds, "used": bytes, "limit": bytes}'
        )
    values = []
    for name in ("t", "used", "limit"):
        value = found.get(name)
        if value is None and name == "limit" and name in found:
            value = 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is missing or no number")  # noqa: TRY004
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ValueError(f"{name} is not finite, or too large")
        if number < 0 and name != "t":
            raise ValueError(f"{name} is less than nothing")
        values.append(number)
    if values[0] <= last_s:
        raise ValueError(f"t is {values[0]:g}, not after {last_s:g}")
    return values[0], values[1], values[2]


def _seconds(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "null"
