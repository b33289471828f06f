"""Adapters for the frameworks: the state of a training, its data and its resume."""
