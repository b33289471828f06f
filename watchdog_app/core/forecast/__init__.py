"""Time to exhaustion of one series: what it does, where that leads, how sure that is."""

from watchdog_app.core.forecast.forecaster import TrendForecaster
from watchdog_app.core.forecast.outlook import Forecaster, Outlook

__all__ = ["Forecaster", "Outlook", "TrendForecaster"]
