"""The monitor of one resource: its forecaster and its stages."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.explain import phrases
from watchdog_app.core.forecast import LOW_SHARE, Forecaster, Outlook
from watchdog_app.core.forecast.forecaster import TrendForecaster
from watchdog_app.core.model.decisions import Assessment, Caution, Regime, SaveCost, Stage
from watchdog_app.core.model.resource import SPECS, Reading
from watchdog_app.core.model.settings import StageSettings, WatchSettings


def forecaster_for(reading: Reading) -> Forecaster:
    """A new forecaster for the series that starts with this reading."""
    # Import a forecaster only with the first such resource: most machines only need memory.
    module, _, name = SPECS[reading.key.kind].forecaster.partition(".")
    found: Forecaster = getattr(import_module(f"{__package__}.{module}"), name)()
    return found


_OK, _WATCH, _, _SAVE, _PAUSE = Stage  # a global is read ten times faster than a member
UNKNOWN_SAVE_S = 7.0  # assumed time of an unmeasured save: most of a gigabyte to a slow disk
UNKNOWN_STEP_S = 1.0
_NO_COSTS = SaveCost()
_UNKNOWN = Assessment(Stage.OK, Regime.UNKNOWN, 0.0, 0.0, None, "no readings yet")
_LAST_S = 1.5  # one sampling interval, a step and a small save
_LAST_FACTOR = 1.5
_REWORD_S, _REWORD_AT_REST_S = 0.5, 3.0
_MOVED = 0.02  # of the limit: a larger change updates the reason at once
_HOLD_OPEN_S = 4.0  # an alarm stays on this long after its evidence, so that it does not flap
_HOLD_OPEN_SLOW_S = 15.0
_HOLD_PAUSE_S = 1.0  # short, so that the last resort ends as soon as possible
_CLEAR = 1.5  # a stage ends at this multiple of the time at which it starts
_MATTERS_S = 300.0  # growth that could fill the room in this time needs the fastest samples
_SAMPLES_TO_LIMIT = 100.0  # samples wanted on the way to the limit
_HORIZON = {Caution.LOW: 0.5, Caution.NORMAL: 1.0, Caution.HIGH: 2.0}
_REGIME_TEXTS = {
    Regime.UNKNOWN: "too few readings yet",
    Regime.FLAT: "level",
    Regime.FALLING: "falling",
    Regime.LINEAR: "steady",
    Regime.SATURATING: "slowing",
    Regime.STAIRCASE: "in steps",
    Regime.SAWTOOTH: "up and down",
    Regime.BURST: "in bursts",
}


class ResourceMonitor:
    """
    The monitor of one resource.

    `step` never raises on finite input. It ignores samples that are not newer than the last.
    Amounts are in the resource's unit, times in seconds.

    Args:
        watch: settings of the samples.
        stages: settings of the stages.
        forecaster: forecaster of the series; None: one for memory.
        unit: unit of the resource: "bytes", "celsius", "ratio" or "seconds".
    """

    def __init__(
        self,
        watch: WatchSettings,
        stages: StageSettings,
        forecaster: Forecaster | None = None,
        unit: str = "bytes",
    ) -> None:
        self._unit = unit
        self._forecaster: Forecaster = TrendForecaster() if forecaster is None else forecaster
        self.configure(watch, stages)
        self._t = -math.inf
        self._reason = ""
        self.assessment = _UNKNOWN
        self.next_sample_s = watch.interval_s

    def configure(self, watch: WatchSettings, stages: StageSettings) -> None:
        """
        Apply new settings: the forecaster keeps its series, the stages restart.

        Args:
            watch: settings of the samples.
            stages: settings of the stages.
        """
        self._watch, self._stages = watch, stages
        self._forecaster.set_caution(watch.caution)
        # Temperature and charge change slowly and are read rarely, so their evidence is not steady.
        outlives_s = _HOLD_OPEN_S if self._unit == "bytes" else _HOLD_OPEN_SLOW_S
        self._notify, self._rescue = _Tier(outlives_s), _Tier(outlives_s)
        self._hold, self._heads_up = _Tier(_HOLD_PAUSE_S), _Tier(outlives_s)
        self._shown: tuple[Regime, bool, float] | None = None
        self._shown_ratio, self._shown_until = 0.0, -math.inf

    def warn_early(self, on: bool) -> None:
        """Ask for less evidence before a notification from the next reading on, or as usual."""
        self._forecaster.early = on

    def step(
        self, now_mono_s: float, used: float, limit: float, costs: SaveCost = _NO_COSTS
    ) -> Assessment:
        """
        Add a reading and return the new assessment of the resource.

        Args:
            now_mono_s: time of the reading.
            used: level in the resource's unit.
            limit: limit in the same unit.
            costs: save costs of the trainings that use the resource.
        """
        if not math.isfinite(now_mono_s + used + limit) or now_mono_s <= self._t:
            return self.assessment
        self._t = now_mono_s
        if limit <= 0.0:
            self.assessment = replace(_UNKNOWN, why="the limit is unknown")
            self.next_sample_s = self._watch.interval_s
            return self.assessment
        self._forecaster.update(now_mono_s, used, limit)
        outlook = self._forecaster.assess()
        notify, rescue, hold = self._update_tiers(now_mono_s, outlook, costs)
        self.next_sample_s = self._sample_interval_s(used, limit, outlook)
        heads_up = self._heads_up.step(now_mono_s, outlook.heads_up_eta_s, math.inf)
        stage = _PAUSE if hold else _SAVE if rescue else _WATCH if heads_up else _OK
        why = self._current_reason(now_mono_s, used, limit, outlook)
        regime, slope_per_s, forecast = outlook.regime, outlook.slope_per_s, outlook.forecast
        # Positional, because names cost three times as much.
        self.assessment = Assessment(
            stage, regime, slope_per_s, used / limit, forecast, why, notify, rescue
        )
        return self.assessment

    def _update_tiers(
        self, now: float, outlook: Outlook, costs: SaveCost
    ) -> tuple[bool, bool, bool]:
        """Whether it is time to notify, to save and to pause."""
        stages, stretch = self._stages, _HORIZON[self._watch.caution]
        strict, eager = outlook.strict_eta_s, outlook.eager_eta_s
        within = 0.0
        if outlook.last_chance_s is not None:
            # The last moment at which a checkpoint can still complete.
            last_s = max(_LAST_S, _LAST_FACTOR * ((costs.save_s or 0.0) + (costs.step_s or 0.0)))
            eager = 0.0 if outlook.last_chance_s < last_s * stretch else eager
        if eager is not None:
            save = UNKNOWN_SAVE_S if costs.save_s is None else costs.save_s
            step = UNKNOWN_STEP_S if costs.step_s is None else costs.step_s
            safe, floor = (save + step) * stages.save_safety_factor, stages.save_floor_s
            within = (safe if safe > floor else floor) * stretch
        notify = self._notify.step(now, strict, stages.warn_s * stretch)
        rescue = self._rescue.step(now, eager, within)
        hold = self._hold.step(now, strict if outlook.critical else None, stages.pause_s)
        return notify, rescue or notify, hold

    def _sample_interval_s(self, used: float, limit: float, outlook: Outlook) -> float:
        slow, fast = self._watch.interval_s, self._watch.fast_interval_s
        if outlook.fastest_per_s <= 0.0:
            return slow
        fill_s = (limit - used) / outlook.fastest_per_s
        if fill_s < _MATTERS_S:
            return fast
        return max(fast, min(slow, fill_s / _SAMPLES_TO_LIMIT))

    def _current_reason(self, now: float, used: float, limit: float, outlook: Outlook) -> str:
        """The reason in words, updated when it changes or is out of date."""
        rising = outlook.forecast is not None
        facts, ratio = (outlook.regime, rising, limit), used / limit
        stale = now >= self._shown_until and (rising or ratio != self._shown_ratio)
        if stale or facts != self._shown or abs(ratio - self._shown_ratio) > _MOVED:
            self._shown, self._shown_ratio = facts, ratio
            self._shown_until = now + (_REWORD_S if rising else _REWORD_AT_REST_S)
            self._reason = self._format_reason(used, limit, outlook)
        return self._reason

    def _format_reason(self, used: float, limit: float, outlook: Outlook) -> str:
        level = phrases.format_level(used, limit, self._unit)
        forecast = outlook.forecast
        if self._unit == "seconds":
            return f"its time passes; {level}"
        if forecast is None:
            return f"{_REGIME_TEXTS[outlook.regime]}; {level}"
        moving = phrases.format_slope(outlook.slope_per_s, self._unit).lstrip("+-")
        rising = f"{'draining' if self._unit == 'ratio' else 'rising'} {moving}".rstrip()
        if outlook.of_peaks:
            # The forecast follows the peaks and would not fit the level alone.
            rising = f"peaks {rising}"
        if outlook.span_s >= 1.0:
            rising += f" for {format_duration(outlook.span_s)}"
        return f"{rising}, {_REGIME_TEXTS[outlook.regime]}; {level}"


class _Tier:
    """
    One alarm with hysteresis.

    Args:
        outlives_s: time for which it stays open after the last evidence.
    """

    __slots__ = ("_outlives_s", "_until", "open")

    def __init__(self, outlives_s: float) -> None:
        self._outlives_s = outlives_s
        self.open = False
        self._until = -math.inf

    def step(self, now: float, eta_s: float | None, horizon_s: float) -> bool:
        if eta_s is not None:
            bound = horizon_s * _CLEAR if self.open else horizon_s
            if LOW_SHARE * eta_s < bound:
                self._until = now + self._outlives_s
        self.open = now <= self._until
        return self.open
