"""Which forecaster reads a ceiling: each kind runs out in its own way."""

from __future__ import annotations

from watchdog_app.core.forecast import Forecaster, TrendForecaster
from watchdog_app.core.outlook import CeilingReading
from watchdog_app.core.resources import SPECS


def forecaster_for(reading: CeilingReading) -> Forecaster:
    """A new one for the series that begins with this reading."""
    # Each is loaded with the first look at such a ceiling: most machines have but memory.
    name = SPECS[reading.key.kind].forecaster
    if name == "heat":
        from watchdog_app.core.forecast.heat import HeatForecaster

        return HeatForecaster(reading.lethal)
    if name == "discharge":
        from watchdog_app.core.forecast.discharge import DischargeForecaster

        return DischargeForecaster()
    if name == "device_memory":
        from watchdog_app.core.forecast.device_memory import DeviceMemoryForecaster

        return DeviceMemoryForecaster()
    return TrendForecaster()
