"""Recorded series: read them, replay them through the engine, report."""
