"""Rescues on disk: their format, how one is written and read, whose it is."""
