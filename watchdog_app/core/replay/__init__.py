"""Recorded series: read them, replay them through the engine, report, record a running task."""
