"""Which forecaster reads a ceiling: each kind runs out in its own way."""

from __future__ import annotations

from watchdog_app.core.forecast import Forecaster, TrendForecaster
from watchdog_app.core.outlook import CeilingKind, CeilingReading


def forecaster_for(reading: CeilingReading) -> Forecaster:
    """A new one for the series that begins with this reading."""
    # Each is loaded with the first look at such a ceiling: most machines have but memory.
    kind = reading.key.kind
    if kind is CeilingKind.TEMPERATURE:
        from watchdog_app.core.forecast.heat import HeatForecaster

        return HeatForecaster(reading.lethal)
    if kind is CeilingKind.BATTERY:
        from watchdog_app.core.forecast.discharge import DischargeForecaster

        return DischargeForecaster()
    if kind in (CeilingKind.GPU_MEMORY, CeilingKind.GPU_ALLOCATOR):
        from watchdog_app.core.forecast.device_memory import DeviceMemoryForecaster

        return DeviceMemoryForecaster()
    if kind is CeilingKind.POWER:
        from watchdog_app.core.forecast.level import LevelForecaster

        return LevelForecaster()  # a card at full load draws what it may
    return TrendForecaster()
