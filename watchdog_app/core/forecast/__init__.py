"""
Time to exhaustion of one series: what it does, where that leads, how sure that is.

Every forecaster is a `Forecaster` and returns an `Outlook`; `stages.forecaster_for` chooses one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from watchdog_app.core.model.decisions import Caution, Forecast, Regime

# Evidence asked for, by what a person set: the table in docs/forecast.md.
DEMAND = {Caution.LOW: 1.3, Caution.NORMAL: 1.0, Caution.HIGH: 0.75}


@dataclass(slots=True)
class Outlook:
    """
    One series at one moment.

    `strict_eta_s` and `eager_eta_s` are times to exhaustion read only from
    growth with enough evidence behind it: enough to tell a person, enough for
    a silent checkpoint. None: no such growth.
    """

    regime: Regime = Regime.UNKNOWN
    forecast: Forecast | None = None
    slope_per_s: float = 0.0
    span_s: float = 0.0  # how long the series has moved so
    of_peaks: bool = False  # it is the peaks that rise so, far above the present level at times
    fastest_per_s: float = 0.0  # fastest plausible fill rate, for the pace of looking
    strict_eta_s: float | None = None
    eager_eta_s: float | None = None
    last_chance_s: float | None = None  # time to full by the last seconds' growth, near the limit
    critical: bool = False  # at the limit, in new territory and still rising

    def age(self, passed_s: float) -> None:
        """The same outlook some seconds later without a new reading."""
        if self.forecast is not None:
            f = self.forecast
            self.forecast = Forecast(
                max(0.0, f.eta_s - passed_s),
                max(0.0, f.low_s - passed_s),
                max(0.0, f.high_s - passed_s),
            )
        if self.strict_eta_s is not None:
            self.strict_eta_s = max(0.0, self.strict_eta_s - passed_s)
        if self.eager_eta_s is not None:
            self.eager_eta_s = max(0.0, self.eager_eta_s - passed_s)


class Forecaster(Protocol):
    """Reads one series and says where it leads. Time is an argument; memory is bounded."""

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """
        Take a sample; times increase.

        Args:
            mono_s: when it was measured.
            used: in the resource's unit.
            limit: in the same unit.
        """

    def set_caution(self, caution: Caution) -> None:
        """From now on ask for more or less evidence before growth counts as convincing."""

    def assess(self) -> Outlook:
        """Where the series leads, as of the last sample."""
