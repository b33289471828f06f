"""Wires sensors, core, actions and protocol together."""
