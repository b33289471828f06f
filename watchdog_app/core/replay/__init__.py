"""Recorded series: read, played through the engine, drawn, and made from a running task."""
