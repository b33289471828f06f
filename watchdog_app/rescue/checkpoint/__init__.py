"""Rescues on disk: their format, writing, reading, and owners."""
