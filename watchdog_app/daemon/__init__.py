"""The daemon: connects sensors, core, actions and protocol."""
