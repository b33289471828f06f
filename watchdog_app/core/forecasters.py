"""Which forecaster reads a ceiling: each kind runs out in its own way."""

from __future__ import annotations

from watchdog_app.core.forecast import Forecaster, TrendForecaster
from watchdog_app.core.forecast.device_memory import DeviceMemoryForecaster
from watchdog_app.core.forecast.discharge import DischargeForecaster
from watchdog_app.core.forecast.heat import HeatForecaster
from watchdog_app.core.forecast.level import LevelForecaster
from watchdog_app.core.outlook import CeilingKind, CeilingReading


def forecaster_for(reading: CeilingReading) -> Forecaster:
    """A new one for the series that begins with this reading."""
    kind = reading.key.kind
    if kind is CeilingKind.TEMPERATURE:
        return HeatForecaster(reading.lethal)
    if kind is CeilingKind.BATTERY:
        return DischargeForecaster()
    if kind in (CeilingKind.GPU_MEMORY, CeilingKind.GPU_ALLOCATOR):
        return DeviceMemoryForecaster()
    if kind is CeilingKind.POWER:
        return LevelForecaster()  # a card at full load draws what it may
    return TrendForecaster()
