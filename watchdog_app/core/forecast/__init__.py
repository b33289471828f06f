"""
Forecasts of the time to exhaustion of one series.

Every forecaster is a `Forecaster` and returns an `Outlook`; `stages.forecaster_for` chooses one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.decisions import Caution, Forecast, Regime

# Factor on the required evidence by the setting `watch.caution`: the table in docs/forecast.md.
DEMAND = {Caution.LOW: 1.3, Caution.NORMAL: 1.0, Caution.HIGH: 0.75}

LOW_SHARE = 0.6  # of a convincing time: 9 in 10 of the recorded failures came later


@dataclass(slots=True)
class Outlook:
    """
    The forecast of one series at one moment.

    `strict_eta_s`, `eager_eta_s` and `heads_up_eta_s` are times to exhaustion from growth with
    enough evidence: for a notification, for a silent checkpoint, for a quiet line on the screens.
    None: no such growth.
    """

    regime: Regime = Regime.UNKNOWN
    forecast: Forecast | None = None
    slope_per_s: float = 0.0
    span_s: float = 0.0  # length of the present movement
    of_peaks: bool = False  # the slope is that of the peaks, often far above the present level
    fastest_per_s: float = 0.0  # fastest plausible growth, sets the sampling interval
    strict_eta_s: float | None = None
    eager_eta_s: float | None = None
    heads_up_eta_s: float | None = None
    last_chance_s: float | None = None  # time to full at the last seconds' growth, near the limit
    critical: bool = False  # at the limit, higher than ever before and still rising

    def age(self, passed_s: float) -> None:
        """Update the times to exhaustion after `passed_s` seconds without a new reading."""
        f = self.forecast
        if f is not None:
            eta_s, low_s = _left_s(f.eta_s, passed_s), _left_s(f.low_s, passed_s)
            self.forecast = Forecast(eta_s, low_s, _left_s(f.high_s, passed_s))
        if self.strict_eta_s is not None:
            self.strict_eta_s = _left_s(self.strict_eta_s, passed_s)
        if self.eager_eta_s is not None:
            self.eager_eta_s = _left_s(self.eager_eta_s, passed_s)
        if self.heads_up_eta_s is not None:
            self.heads_up_eta_s = _left_s(self.heads_up_eta_s, passed_s)


def _left_s(eta_s: float, passed_s: float) -> float:
    return eta_s - passed_s if eta_s > passed_s else 0.0


class Forecaster(ABC):
    """Forecasts one series. The caller passes the time; memory use is bounded."""

    _outlook: Outlook
    early = False  # whether to ask for less evidence before a notification

    @abstractmethod
    def update(self, mono_s: float, used: float, limit: float) -> None:
        """
        Add a sample.

        Args:
            mono_s: time of the sample, later than the last one.
            used: level in the resource's unit.
            limit: limit in the same unit.
        """

    def set_caution(self, caution: Caution) -> None:  # noqa: B027 - a default
        """Set how much evidence growth needs from now on; some need the same at any caution."""

    def assess(self) -> Outlook:
        """The forecast as of the last sample."""
        return self._outlook
