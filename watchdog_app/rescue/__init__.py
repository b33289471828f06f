"""Rescues on disk: their owner, and whether they fit a program. Imports no framework."""
