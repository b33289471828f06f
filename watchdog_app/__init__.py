"""Sees a training run out of memory coming, names the notebook, saves the work."""

__version__ = "0.1.0"
