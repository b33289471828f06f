"""One ceiling under watch: a forecaster and the stages it leads through."""

from __future__ import annotations

import math

from watchdog_app.core.forecast import Forecaster, Outlook, TrendForecaster
from watchdog_app.core.outlook import Assessment, Caution, Costs, Regime, Stage
from watchdog_app.core.settings import StageSettings, WatchSettings
from watchdog_app.units import format_bytes, format_duration

_UNKNOWN_SAVE_S = 5.0  # half a gigabyte to a slow disk
_UNKNOWN_STEP_S = 1.0
_NO_COSTS = Costs()
_HOLD_OPEN_S = 4.0  # an alarm outlives its evidence this long, so that it does not flap
_CLEAR = 1.5  # a stage is left at this multiple of the time at which it was entered
_MATTERS_S = 300.0  # growth that could fill the room in this time is looked at as fast as allowed
_LOOKS = 100.0  # looks wanted on the way to the limit
_LOW_SHARE = 0.6
_HORIZON = {Caution.LOW: 0.5, Caution.NORMAL: 1.0, Caution.HIGH: 2.0}


class CeilingWatch:
    """
    One ceiling under watch.

    `step` never raises on finite input; samples that repeat a time or go back
    are ignored. Everything is in the ceiling's own unit and in seconds.
    """

    __slots__ = (
        "_assessment",
        "_forecaster",
        "_hold",
        "_notify",
        "_rescue",
        "_stages",
        "_t",
        "_unit",
        "_watch",
        "next_look_s",
    )

    def __init__(
        self,
        watch: WatchSettings,
        stages: StageSettings,
        forecaster: Forecaster | None = None,
        unit: str = "bytes",
    ) -> None:
        self._watch = watch
        self._stages = stages
        self._unit = unit
        self._forecaster: Forecaster = TrendForecaster() if forecaster is None else forecaster
        self._t: float | None = None
        self._notify = _Tier()
        self._rescue = _Tier()
        self._hold = _Tier()
        self._assessment = Assessment(Stage.OK, Regime.UNKNOWN, 0.0, 0.0, None, "no readings yet")
        self.next_look_s = watch.interval_s

    def step(
        self, now_mono_s: float, used: float, limit: float, costs: Costs = _NO_COSTS
    ) -> Assessment:
        """Take a reading and say how far this ceiling has come."""
        if not (math.isfinite(now_mono_s) and math.isfinite(used) and math.isfinite(limit)):
            return self._assessment
        if self._t is not None and now_mono_s <= self._t:
            return self._assessment
        self._t = now_mono_s
        if limit <= 0.0:
            self._assessment = Assessment(
                Stage.OK, Regime.UNKNOWN, 0.0, 0.0, None, "the limit is unknown"
            )
            self.next_look_s = self._watch.interval_s
            return self._assessment
        self._forecaster.update(now_mono_s, used, limit)
        outlook = self._forecaster.assess()
        stretch = _HORIZON[self._watch.caution]
        notify = self._notify.step(
            now_mono_s, _low(outlook.strict_eta_s), self._stages.warn_s * stretch
        )
        rescue = self._rescue.step(
            now_mono_s, _low(outlook.eager_eta_s), self._cost_s(costs) * stretch
        )
        rescue = rescue or notify
        hold = self._hold.step(
            now_mono_s,
            _low(outlook.strict_eta_s) if outlook.critical else None,
            self._stages.hold_s,
        )
        self.next_look_s = self._pace(used, limit, outlook)
        stage = Stage.OK
        if hold:
            stage = Stage.HOLD
        elif rescue:
            stage = Stage.RESCUE
        elif self.next_look_s < 0.5 * self._watch.interval_s:
            stage = Stage.WATCH
        self._assessment = Assessment(
            stage=stage,
            regime=outlook.regime,
            slope_per_s=outlook.slope_per_s,
            ratio=used / limit,
            forecast=outlook.forecast,
            why=self._why(used, limit, outlook),
            notify=notify,
            rescue=rescue,
        )
        return self._assessment

    def _cost_s(self, costs: Costs) -> float:
        save = _UNKNOWN_SAVE_S if costs.save_s is None else costs.save_s
        step = _UNKNOWN_STEP_S if costs.step_s is None else costs.step_s
        return max(self._stages.rescue_floor_s, (save + step) * self._stages.safety_factor)

    def _pace(self, used: float, limit: float, outlook: Outlook) -> float:
        slow, fast = self._watch.interval_s, self._watch.fast_interval_s
        if outlook.fastest_per_s <= 0.0:
            return slow
        fill_s = max(0.0, limit - used) / outlook.fastest_per_s
        if fill_s < _MATTERS_S:
            return fast
        return max(fast, min(slow, fill_s / _LOOKS))

    def _why(self, used: float, limit: float, outlook: Outlook) -> str:
        bytes_ = self._unit == "bytes"
        level = (
            f"{format_bytes(used)} of {format_bytes(limit)}"
            if bytes_
            else f"{used:.4g} of {limit:.4g} {self._unit}"
        )
        if outlook.forecast is None:
            return f"{outlook.regime.value}; {level}"
        rate = (
            format_bytes(outlook.slope_per_s)
            if bytes_
            else f"{outlook.slope_per_s:.3g} {self._unit}"
        )
        return f"rising {rate}/s for {format_duration(outlook.span_s)}; {level}"


def _low(eta_s: float | None) -> float | None:
    """The low end of a convincing claim's time: 9 in 10 of the recorded failures came later."""
    return None if eta_s is None else _LOW_SHARE * eta_s


class _Tier:
    """One alarm with separate levels for opening and closing."""

    __slots__ = ("_until", "open")

    def __init__(self) -> None:
        self.open = False
        self._until = -math.inf

    def step(self, now: float, eta_s: float | None, horizon_s: float) -> bool:
        bound = horizon_s * _CLEAR if self.open else horizon_s
        if eta_s is not None and eta_s < bound:
            self._until = now + _HOLD_OPEN_S
        self.open = now <= self._until
        return self.open
